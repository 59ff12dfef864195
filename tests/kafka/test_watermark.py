"""What a model update learns from follows from what the topics hold, not from how they were read."""

import random
from math import inf

from stream_ccsd.kafka.codec import LARGEST, parse_score, parse_verdict
from stream_ccsd.kafka.learner.watermark import EventTimeMerge, Watermark
from stream_ccsd.learning.schedule import Schedule
from stream_ccsd.transaction import Refusal
from stream_ccsd.verdict import Verdict

SCHEDULE = Schedule(every=10.0, delay=5.0)


def score(time, partition=0, position=0, inputs=(1.0,), account="C1"):
    place = {"partition": partition, "position": position}
    return {**place, "id": f"t{partition}/{position}", "account": account, "time": time, "inputs": inputs}


def verdict(time, transaction="x", account="C1", who="ann"):
    return Verdict(transaction, account, "fraud", who, time)


def places(update):
    return [(r["time"], r["partition"], r["position"]) for r in update.scores]


def test_a_model_update_waits_until_every_partition_has_come_as_far():
    watermark = Watermark(SCHEDULE, idle=100.0)
    assert watermark.next(0.0) is None
    watermark.enter_score(1.0, 0, score(9.0, 0, 5))
    watermark.enter_score(1.0, 1, score(3.0, 1, 9))
    watermark.enter_score(2.0, 0, score(10.0, 0, 6))
    assert watermark.moment == 10.0
    assert watermark.next(50.0) is None
    watermark.enter_score(51.0, 1, score(9.0, 1, 10))
    watermark.enter_score(52.0, 1, score(25.0, 1, 11))
    update = watermark.next(52.5)
    assert update.moment == 10.0
    assert places(update) == [(3.0, 1, 9), (9.0, 0, 5), (9.0, 1, 10)]  # by time, then by place
    assert watermark.next(53.0) is None  # the first partition is at 10
    watermark.enter_score(54.0, 0, score(20.0, 0, 7))
    assert places(watermark.next(55.0)) == [(10.0, 0, 6)]
    assert watermark.pending == 2


def test_an_idle_partition_is_given_up_and_what_comes_late_is_for_the_next_update():
    watermark = Watermark(SCHEDULE, idle=100.0)
    watermark.enter_score(1.0, 1, score(3.0, 1, 0))
    watermark.enter_score(2.0, 0, score(11.0, 0, 0))
    assert watermark.next(100.9) is None
    assert places(watermark.next(101.0)) == [(3.0, 1, 0)]
    watermark.enter_score(102.0, 1, score(4.0, 1, 1))
    watermark.enter_score(102.0, 1, score(20.0, 1, 2))
    watermark.enter_score(103.0, 0, score(20.0, 0, 1))
    assert places(watermark.next(104.0)) == [(4.0, 1, 1), (11.0, 0, 0)]


def test_copies_count_once():
    watermark = Watermark(SCHEDULE, idle=100.0)
    assert watermark.enter_score(1.0, 0, score(3.0, 0, 0))
    assert not watermark.enter_score(1.5, 0, score(3.0, 0, 0))
    assert watermark.enter_verdict(verdict(4.0))
    assert not watermark.enter_verdict(verdict(4.0))
    assert watermark.enter_verdict(verdict(4.0, who="bob"))
    watermark.enter_score(2.0, 0, score(10.0, 0, 1))
    update = watermark.next(3.0)
    assert (len(update.scores), [v.who for v in update.verdicts]) == (1, ["ann", "bob"])
    assert not watermark.enter_score(4.0, 0, score(3.0, 0, 0))
    assert not watermark.enter_verdict(verdict(4.0))


def test_a_forged_score_at_a_place_to_come_does_not_hide_the_genuine_one():
    watermark = Watermark(SCHEDULE, idle=100.0)
    assert watermark.enter_score(1.0, 0, score(3.0, 0, 1, account="forged"))
    assert watermark.enter_score(1.0, 0, score(3.0, 0, 0))
    assert watermark.enter_score(1.0, 0, score(4.0, 0, 1))
    assert not watermark.enter_score(1.0, 0, score(4.0, 0, 1))


def test_verdicts_are_heard_when_their_time_has_come():
    watermark = Watermark(SCHEDULE, idle=100.0)
    for said in (verdict(10.0, "b"), verdict(10.5, "c"), verdict(7.0, "d"), verdict(10.0, "a")):
        watermark.enter_verdict(said)
    watermark.enter_score(1.0, 0, score(3.0))
    watermark.enter_score(2.0, 0, score(20.0, 0, 1))
    assert [v.transaction for v in watermark.next(3.0).verdicts] == ["d", "a", "b"]
    watermark.enter_verdict(verdict(1.0, "late"))
    assert [v.transaction for v in watermark.next(4.0).verdicts] == ["late", "c"]


def test_a_mistaken_date_holds_no_lessons_and_a_stream_that_jumps_does():
    watermark = Watermark(SCHEDULE, idle=100.0)
    watermark.enter_score(1.0, 0, score(3.0, 0, 0))
    watermark.enter_score(2.0, 0, score(1e6, 0, 1))
    watermark.enter_score(3.0, 0, score(4.0, 0, 2))
    assert watermark.next(1e9) is None
    for position in range(3, 23):
        assert watermark.next(1e9) is None
        watermark.enter_score(4.0, 0, score(5000.0, 0, position))
    assert len(watermark.next(1e9).scores) == 2
    assert watermark.next(1e9).moment == 20.0


def test_scores_of_a_model_that_does_not_learn_tell_the_time_and_nothing_else():
    watermark = Watermark(SCHEDULE, idle=100.0)
    watermark.enter_score(1.0, 0, score(3.0, inputs=None))
    watermark.enter_score(2.0, 0, score(10.0, 0, 1, inputs=None))
    assert watermark.next(3.0).scores == []


def updates_of(logs, chunks, idle):
    """Model updates of topics that are read in chunks, to the end: as a learner does that reads what is there."""
    arrivals, watermark, found = EventTimeMerge(logs), Watermark(SCHEDULE, idle), []
    read = dict.fromkeys(logs, 0)

    def go_on(reached):
        for arrival in arrivals.until(reached):
            while (update := watermark.next(arrival.time)) is not None:
                found.append(update)
            if isinstance(arrival.found, Verdict):
                watermark.enter_verdict(arrival.found)
            else:
                watermark.enter_score(arrival.time, arrival.partition, arrival.found)

    while any(read[place] < len(log) for place, log in logs.items()):
        place = chunks.choice([place for place, log in logs.items() if read[place] < len(log)])
        size = chunks.randint(1, 20)
        for offset, (time, said) in enumerate(logs[place][read[place] : read[place] + size], read[place]):
            arrivals.add(place, offset, time, said)
        read[place] += size
        go_on(arrivals.reached({p: inf for p, log in logs.items() if read[p] >= len(log)}))
    assert not len(arrivals)
    return [(update.moment, places(update), update.verdicts) for update in found]


def test_however_topics_are_read_the_model_updates_are_the_same():
    """Times that jump back, partitions that pause for longer than anybody waits, verdicts that are late."""
    chance = random.Random(3)
    logs = {}
    for partition in range(3):
        now, time, log = 0.0, 0.0, []
        for position in range(200):
            now += chance.choice([0.0, 1.0, 1.0, 40.0 if partition == 2 else 1.0])
            time += chance.expovariate(2.0)
            log.append((now, score(time - chance.choice([0.0, 0.0, 6.0]), partition, position)))
        logs["scores", partition] = log
    when = sorted(chance.uniform(0, 200) for _ in range(80))
    logs["verdicts", 0] = [(now, verdict(chance.uniform(0, now), str(i))) for i, now in enumerate(when)]
    first, *others = [updates_of(logs, random.Random(seed), idle=30.0) for seed in range(8)]
    assert len(first) > 5
    assert sum(len(scores) for _, scores, _ in first) > 300
    assert all(other == first for other in others)


class Message:
    topic, partition, offset, timestamp, key = "verdicts", 1, 7, 0, b"C1"

    def __init__(self, value):
        self.value = value


def test_what_is_no_verdict_says_why():
    good = b'{"transaction": "x", "account": "C1", "verdict": "fraud", "who": "ann", "time": 3}'
    assert parse_verdict(Message(good), None) == verdict(3.0)
    assert isinstance(parse_verdict(Message(good), None, 3.0), Verdict)
    assert parse_verdict(Message(good), None, 2.9).field == "time"  # beyond what the model is for
    bad = [
        None,
        b"",
        b"{",
        b"[" * 50_000,
        b"[]",
        b"{}",
        b"\xff",
        good.replace(b"fraud", b"perhaps"),
        b" " * LARGEST + good,
    ]
    for value in bad:
        refusal = parse_verdict(Message(value), None)
        assert isinstance(refusal, Refusal)
        assert refusal.reason


def test_what_is_no_score_is_passed_over():
    for value in (None, b"", b"{", b"[]", b"3", b'{"time": 3}', b"[" * 50_000):
        assert parse_score(value, 3) is None
