"""A mirror without a broker: messages into the intake, arrivals into the file, and kills in between."""

import asyncio
import json
import random
import time
from contextlib import asynccontextmanager, closing
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.cases.cases import Analyst, Cases
from replay.cases.verdicts import VerdictLog, audit_log_beside
from replay.mirror.event_merge import _APART, Intake
from replay.mirror.file import MirrorFile, calendar_of, first_facts, learnt_facts
from replay.mirror.follow import Following
from replay.mirror.messages import parse_alert, parse_letter, parse_score
from replay.mirror.mirror import Mirror
from replay.mirror.offsets import Ranges, Seen
from replay.state import schema
from replay.state.file import StateFile
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.codec import alert_message, dead_letter, score_messages, verdict_message
from stream_ccsd.kafka.faust.metadata import Topic
from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.records import score_batch
from stream_ccsd.stores import Totals
from stream_ccsd.transaction import Refusal
from stream_ccsd.verdict import Verdict

TOPICS = {"scores": "s", "alerts": "a", "dead_letters": "d", "verdicts": "v"}
GARBAGE = [None, b"", b"{", b"[]", b"7", b'{"partition": 0}', b'{"a": 1e999}', b'"\\ud800"', b"[" * 50_000, b"\xff"]


def message(topic, offset, value, partition=0, headers=(), timestamp=1_000_000, key=None):
    said = {"topic": topic, "partition": partition, "offset": offset, "timestamp": timestamp}
    return SimpleNamespace(**said, key=key, value=value, headers=list(headers))


def source(result, offset, partition=0):
    return message("transactions", offset, b"{}", partition, key=result.transaction.account.encode())


class Topics:
    """What workers would have written about some results, with partitions by account.

    Those who send transactions may choose partitions in another way than workers do: ``spread``.
    """

    def __init__(self, results, partitions=3, spread=False):
        self.messages = {(kind, p): [] for kind in ("s", "a", "d") for p in range(partitions)}
        self.scores, self.alerts = [], []
        counts = [0] * partitions
        for number, result in enumerate(results):
            p = hash_of(result.transaction.account) % partitions
            where = source(result, counts[p], p)
            counts[p] += 1
            if spread:
                p = hash_of(result.transaction.account) // partitions % partitions
            if number % 17 == 5:
                letter = dead_letter("d", where, Refusal("too much", "amount", "7"))
                self.put("d", p, letter.value, letter.headers)
                continue
            self.scores += score_messages([where], [result])
            self.put("s", p, self.scores[-1])
            if result.alert:
                self.alerts.append(alert_message(where, result.alert))
                self.put("a", p, self.alerts[-1])

    def put(self, topic, p, value, headers=()):
        own = self.messages[topic, p]
        own.append(message(topic, len(own), value, p, headers))

    def all(self):
        return sum(map(len, self.messages.values()))


def hash_of(account):
    return sum(account.encode())


class Reader:
    """The follower's part: reads topics in any order, and loses its memory when it is killed."""

    def __init__(self, path, topics, facts=None, **limits):
        self.path, self.topics, self.limits, self.now = path, topics, limits, 1001.0
        with closing(MirrorFile.at(path, facts or first_facts("kafka://b"))):
            pass
        self.begin()

    def begin(self):
        self.file = MirrorFile.reopen(self.path)
        for name, value in self.limits.items():
            setattr(self.file, name, value)
        self.intake = Intake(TOPICS, self.file.notes, self.file.has_alert, self.file.has_score, clock=lambda: self.now)
        self.at = {place: self.intake.start(place) or 0 for place in self.topics.messages}

    def kill(self):
        self.file.close()
        self.begin()

    def read(self, place, count):
        own = self.topics.messages[place]
        for found in own[self.at[place] : self.at[place] + count] if self.intake.wants(place) else ():
            self.at[place] += 1
            self.intake.take(found)

    def write(self, most=1000, batches=1000):
        for _ in range(batches):
            arrivals = self.intake.ready(min(most, self.file.batch_size))
            if not arrivals:
                return
            self.file.write(arrivals, self.intake.to_notes())

    def finish(self):
        while any(self.at[place] < len(own) for place, own in self.topics.messages.items()):
            for place in self.topics.messages:
                self.read(place, 50)
            self.write()
        self.now += 2 * _APART
        for kind in ("scores", "alerts"):
            self.intake.complete(kind, self.now)
        self.write()
        self.file.write([], self.intake.to_notes())


@pytest.fixture(scope="module")
def some(model, stream):
    """Results with many alerts among them."""
    return Engine(model, threshold=1.0).process_many(stream.transactions[:1200])


@pytest.fixture(scope="module")
def topics(some):
    made = Topics(some)
    assert len(made.alerts) > 50
    return made


def as_written(value):
    """A record of a topic, without what the mirror changes."""
    said = json.loads(value) if isinstance(value, bytes) else dict(value)
    offset = said.pop("offset", said["position"])
    return {**said, "position": offset}


def by_place(records):
    return sorted(records, key=lambda r: (r["partition"], r["position"]))


def check_whole(reader, topics):
    """Everything that is on the topics is in the file, once, and the file is whole."""
    reader.file.close()
    schema.check(reader.path)
    with closing(StateFile.open(reader.path, read_only=True)) as file:
        records = file.records
        alerts = list(records.alerts())
        assert by_place(map(as_written, alerts)) == by_place(map(as_written, topics.alerts))
        wanted = {}
        for value in topics.scores:
            score = as_written(value)
            wanted.setdefault(score["account"], []).append(score)
        for account, own in wanted.items():
            found = records.scores_of(account)
            assert [f["position"] for f in found] == sorted(f["position"] for f in found)
            assert [as_written(f) for f in found] == own
            summary = records.account(account)
            assert (summary.transactions, summary.alerts) == (len(own), sum(s["alert"] for s in own))
            assert summary.maximum == own[-1]["maximum"]
        letters = sum(len(own) for (kind, _), own in topics.messages.items() if kind == "d")
        late = sum(json.loads(s)["status"] == "late" for s in topics.scores)
        assert records.totals() == Totals(
            file.position, len(topics.scores), late, len(wanted), len(topics.alerts), letters
        )
        assert len(list(records.dead_letters())) == letters
        numbers = [s["position"] for account in wanted for s in records.scores_of(account)]
        numbers += [letter["position"] for letter in records.dead_letters()]
        return alerts, sorted(numbers), file.position


def test_a_file_of_messages_answers_as_a_replays(topics, tmp_path):
    reader = Reader(tmp_path / "m.db", topics)
    reader.finish()
    alerts, numbers, reached = check_whole(reader, topics)
    assert numbers == list(range(1, reached + 1))
    with closing(StateFile.open(tmp_path / "m.db", read_only=True)) as file:
        for alert in alerts:  # under the number of its score
            (score,) = [s for s in file.records.scores_of(alert["account"]) if s["id"] == alert["transaction"]]
            assert (score["position"], score["offset"], score["alert"]) == (alert["position"], alert["offset"], True)
        letter = next(iter(file.records.dead_letters()))
        assert (letter["kind"], letter["field"], letter["topic"]) == ("malformed", "amount", "transactions")
        assert letter["line"] == f"transactions/{letter['partition']}/{letter['offset']}"
        assert file.records.dead_letter_counts()[0].kind == "malformed"


@pytest.fixture(scope="module")
def spread(some):
    return Topics(some, spread=True)


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), is_spread=st.booleans())
def test_killed_anywhere_nothing_is_lost_or_doubled(topics, spread, tmp_path_factory, seed, is_spread):
    """Topics in any order, alerts before and behind their scores, small and large batches; and copies of everything."""
    chance, topics = random.Random(seed), spread if is_spread else topics
    reader = Reader(tmp_path_factory.mktemp("killed") / "m.db", topics)
    seen = []
    for _ in range(40):
        place = chance.choice(list(topics.messages))
        reader.read(place, chance.choice([1, 5, 40, 300]))
        reader.write(chance.choice([1, 3, 500]), chance.choice([1, 2, 50]))
        if chance.random() < 0.1:
            for kind in ("scores", "alerts"):  # whoever follows by number misses nothing
                if all(reader.at[p] == len(own) for p, own in topics.messages.items() if p[0] == kind[0]):
                    reader.intake.complete(kind, reader.now)
        newest = [a["position"] for a in reader.file.records.newest_alerts(10**6)][::-1]
        assert newest[: len(seen)] == seen
        seen = newest
        if chance.random() < 0.3:
            reader.kill()
    reader.finish()
    check_whole(reader, topics)


def test_copies_after_a_workers_failure_are_there_once(some, tmp_path):
    topics = Topics(some)
    reader = Reader(tmp_path / "m.db", topics)
    for place in topics.messages:
        reader.read(place, 100)
    reader.write()
    for (kind, p), own in list(topics.messages.items()):
        for copy in own[len(own) // 2 :]:
            topics.put(kind, p, copy.value, copy.headers)
    reader.finish()
    letters = sum(len(own) for (kind, _), own in topics.messages.items() if kind == "d")
    for (kind, _), own in topics.messages.items():
        if kind == "d":
            del own[len({tuple(m.headers) for m in own}) :]
    assert letters > sum(len(own) for (kind, _), own in topics.messages.items() if kind == "d")
    check_whole(reader, topics)


def test_neither_waits_for_ever(some, tmp_path):
    """Scores without their alerts, alerts without their scores; what comes later gets a number of its own."""
    topics = Topics(some)
    late = [(place, own.pop()) for place, own in topics.messages.items() if place[0] == "a" and own]
    lost = {(p, own[0].offset) for (kind, p), own in topics.messages.items() if kind == "s"}
    for p, _ in lost:
        topics.messages["s", p].pop(0)
    reader = Reader(tmp_path / "m.db", topics)
    for place in topics.messages:
        reader.at[place] = 0
    reader.finish()
    before = reader.file.position
    for place, found in late:
        topics.messages[place].append(found)
    reader.kill()
    reader.finish()
    alerts = [json.loads(line) for line in reader.file.records.alert_lines()]
    assert by_place(map(as_written, alerts)) == by_place(map(as_written, topics.alerts))
    assert reader.file.position == before + len(late)
    assert [a["position"] for a in alerts][-len(late) :] == list(range(before + 1, before + 1 + len(late)))


def test_scores_and_alerts_that_wait_for_each_other_go_on(some, tmp_path, monkeypatch):
    """Of one partition, where no more alerts are read before a score has gone that waits for a later alert."""
    monkeypatch.setattr("replay.mirror.event_merge._ALERTS_AHEAD", 3)
    topics = Topics(some, partitions=1)
    own = topics.messages["a", 0]
    for offset, found in enumerate(own := own[::-1]):
        found.offset = offset
    topics.messages["a", 0] = own
    reader = Reader(tmp_path / "m.db", topics)
    for _ in range(10_000):
        for place in topics.messages:
            reader.read(place, 50)
        reader.write()
        reader.now += 1.0
        if all(reader.at[place] == len(m) for place, m in topics.messages.items()):
            break
    reader.finish()
    alerts = [json.loads(line) for line in reader.file.records.alert_lines()]
    assert by_place(map(as_written, alerts)) == by_place(map(as_written, topics.alerts))
    assert sum(batch.num_rows for batch in reader.file.records.score_batches()) == len(topics.scores)


@settings(max_examples=6)
@given(keep=st.integers(1, 400), keep_alerts=st.integers(1, 30), seed=st.integers(0, 10**6))
def test_bounds_hold_and_histories_end_where_they_were_cut(topics, tmp_path_factory, keep, keep_alerts, seed):
    chance = random.Random(seed)
    path = tmp_path_factory.mktemp("bounded") / "m.db"
    reader = Reader(path, topics, keep=keep, keep_alerts=keep_alerts)
    for _ in range(50):
        reader.read(chance.choice(list(topics.messages)), chance.choice([1, 2, 9, 60]))
        reader.write(chance.choice([1, 4, 100]))
        count = sum(batch.num_rows for batch in reader.file.records.score_batches())
        assert count <= keep
        assert count == reader.file.notes.get("kept", {}).get("scores", 0)
        assert len(list(reader.file.records.alerts())) <= keep_alerts
        if chance.random() < 0.1:
            reader.kill()
    reader.finish()
    letters = sum(len(own) for (kind, _), own in topics.messages.items() if kind == "d")
    assert reader.file.position == len(topics.scores) + letters  # what went does not come back
    reader.file.close()
    schema.check(path)
    with closing(StateFile.open(path, read_only=True)) as file:
        kept = [row for batch in file.records.score_batches() for row in batch.to_pylist()]
        assert keep - max(1, keep // 10) - 256 <= len(kept) <= keep
        assert [row["position"] for row in kept] == sorted(row["position"] for row in kept)
        names = {row["account"] for row in kept}
        assert {a.account for a in file.records.accounts_by_maximum(10**6)} == names
        for account in names:
            own = [row["position"] for row in kept if row["account"] == account]
            assert [s["position"] for s in file.records.scores_of(account)] == own
            assert [s["position"] for s in file.records.scores_of(account, limit=2)] == own[-2:]
        newest = sorted(json.loads(a)["time"] for a in file.records.alert_lines())
        assert len(newest) == min(keep_alerts, len(topics.alerts))
        assert file.records.totals().transactions == len(topics.scores)  # counts stay


def test_a_slow_stream_is_no_batch_a_transaction(topics, tmp_path):
    reader = Reader(tmp_path / "m.db", topics)
    for _ in range(200):
        for p in range(3):
            reader.read(("s", p), 1)
            reader.read(("a", p), 1)
            reader.write()
    assert 1 <= len(list(reader.file.records.score_batches())) <= 6
    reader.finish()
    check_whole(reader, topics)


def test_garbage_is_counted_and_costs_nothing(some, tmp_path):
    topics = Topics(some)
    rest = {}
    for (kind, p), own in topics.messages.items():
        rest[kind, p] = [message(kind, i, v, p) for i, v in enumerate(GARBAGE)]
        rest[kind, p] += [message(kind, m.offset + len(GARBAGE), m.value, p, m.headers) for m in own]
    whole, topics.messages = topics.messages, rest
    reader = Reader(tmp_path / "m.db", topics)
    reader.finish()
    assert reader.intake.foreign == {kind: 3 * len(GARBAGE) for kind in ("scores", "alerts", "dead_letters")}
    reader.kill()
    assert sum(reader.intake.foreign.values()) == 9 * len(GARBAGE)
    topics.messages = whole
    check_whole(reader, topics)


def altered(value, **changes):
    return json.dumps({**json.loads(value), **changes}).encode()


WRONG = {
    "account": [7, None, "\ud800"],
    "time": ["soon", True, 1e17, float("nan"), 10**400],
    "position": [1.5, 2**63, "1"],
    "score": [None, float("inf"), 2**53 + 1, -(2**60)],
    "model": [None],
}


def test_what_is_no_score_or_alert(topics):
    score, alert = topics.scores[0], topics.alerts[0]
    assert parse_score(score) == json.loads(score)
    assert parse_alert(alert) == json.loads(alert)
    for name, values in WRONG.items():
        for value in values:
            assert parse_score(altered(score, **{name: value})) is None, (name, value)
            assert parse_alert(altered(alert, **{name: value})) is None, (name, value)
    for changes in ({"status": "refused"}, {"fields": {"x": []}}, {"fields": {"\ud800": 1}}, {"inputs": ["a"]}):
        assert parse_score(altered(score, **changes)) is None
    for changes in ({"reasons": [7]}, {"reasons": [{"nats": 1.0}]}, {"densities": None}, {"other": float("inf")}):
        assert parse_alert(altered(alert, **changes)) is None
    # Of another version: unknown names, and no names of what may be null.
    without = {k: v for k, v in json.loads(score).items() if k not in ("label", "timestamp")}
    newer = json.dumps({**without, "new": [1]}).encode()
    assert parse_score(newer) == {**json.loads(score), "label": None, "timestamp": None}
    for headers in ([], [("kind", b"none")], [("kind", b"key"), ("partition", b"-1"), ("position", b"x")]):
        assert parse_letter(message("d", 0, b"raw", headers=headers)) is None


def test_verdicts_are_handed_on_and_others_counted():
    intake = Intake(TOPICS)
    said = Verdict("t1", "C1", "fraud", "ann", 3.0)
    for offset, value in enumerate([verdict_message(said), b"no", None, verdict_message(said)]):
        intake.take(message("v", offset, value))
    assert intake.verdicts == [said, said]
    assert intake.foreign == {"verdicts": 2}
    assert intake.to_notes()["offsets"] == {"v": {"0": 4}}


@given(st.lists(st.integers(0, 60)), st.integers(1, 8))
def test_ranges_are_a_set(numbers, most):
    ranges, known = Ranges(), set()
    for number in numbers:
        assert ranges.add(number) == (number not in known)
        known.add(number)
        assert (number in ranges, number + 61 in ranges) == (True, False)
    assert {n for first, last in ranges.pairs() for n in range(first, last + 1)} == known
    assert Ranges(ranges.pairs()).pairs() == ranges.pairs()
    before = ranges.pairs()
    ranges.forget_lowest(most)
    assert ranges.pairs() == before[-most:]
    for highest in (40, 20, 0):
        ranges.forget_above(highest)
        kept = {n for first, last in before[-most:] for n in range(first, last + 1) if n <= highest}
        assert {n for first, last in ranges.pairs() for n in range(first, last + 1)} == kept


def test_what_was_seen_stays_small():
    seen = Seen()
    for number in range(0, 40_000, 2):
        assert seen.add("a", number, 0)
        assert seen.add("b", number, 0)
    assert sum(map(len, seen.to_dict().values())) == 4096
    assert seen.has("a", 39_998, 0)
    assert not seen.has("a", 39_997, 0)
    assert not seen.has("c", 1, 0)
    assert Seen(seen.to_dict()).has("a", 39_998, 0) is None  # after a kill


def test_a_forged_message_at_a_place_to_come_does_not_hide_the_genuine_one(some, tmp_path):
    """However many there are, right before it, or killed in between; copies are still copies."""
    topics = Topics(some[:400], partitions=1)
    own, alerts = topics.messages["s", 0], topics.messages["a", 0]
    genuine = [m.value for m in own]
    assert len(alerts) > 3
    others = [{}, {"account": "forged"}]  # also in the name of the same customer
    forged = [altered(value, id=f"forged {i}", **others[i % 2]) for i, value in enumerate(genuine)]
    own.clear()
    for value in forged[:20]:  # all of them ahead
        topics.put("s", 0, value)
    for number, value in enumerate(genuine):
        if 100 < number < 200 and number % 7 == 0:
            topics.put("s", 0, forged[number])
        topics.put("s", 0, value)
        if number % 50 == 49:
            for copy in genuine[number - 5 : number + 1]:
                topics.put("s", 0, copy)
    said = [m.value for m in alerts]
    alerts.clear()
    for value in said:
        topics.put("a", 0, altered(value, account="forged", transaction="f", id="f" + json.loads(value)["id"]))
        topics.put("a", 0, value)
    reader = Reader(tmp_path / "m.db", topics)
    for count in (20, 10):
        reader.read(("s", 0), count)
        reader.write()
        reader.kill()
    reader.finish()
    rows = [row for batch in reader.file.records.score_batches() for row in batch.to_pylist()]
    found = [row["id"] for row in rows if "forged" not in row["id"]]
    assert sorted(found) == sorted(json.loads(value)["id"] for value in genuine)
    shown = [json.loads(line) for line in reader.file.records.alert_lines()]
    by_id = {row["position"]: row["id"] for row in rows}
    ids = {json.loads(value)["id"] for value in said}
    assert {a["id"] for a in shown if a["account"] != "forged"} == ids
    for alert in shown:  # a forged alert is no genuine score's
        if alert["account"] != "forged":
            assert by_id[alert["position"]] == alert["transaction"]


@given(
    name=st.sampled_from(["time", "amount", "evidence", "takeover", "score", "maximum", "position", "partition"]),
    value=st.integers() | st.integers(2**52, 2**54) | st.integers(2**62, 2**64) | st.floats() | st.none(),
    large=st.floats() | st.integers(),
)
def test_what_passes_as_a_score_can_be_stored(topics, name, value, large):
    """Whole numbers beyond 2^53 are none that a column can hold, and inputs are of single precision."""
    for changes in ({name: value}, {"inputs": [large]}, {"fields": {"x": large}}):
        record = parse_score(altered(topics.scores[0], **changes))
        if record is not None:
            score_batch([record])


def test_a_message_that_cannot_be_stored_is_set_aside(handed, topics, tmp_path, monkeypatch):
    """Whatever the check lets through: the page goes on with all others, and says what is wrong with that one."""
    monkeypatch.setattr("replay.mirror.messages._EXACT", 2**60)
    path = tmp_path / "m.db"
    values = [v for v in topics.scores if not json.loads(v)["alert"]][:30]
    bad = altered(values[7], amount=2**53 + 1)
    sent = [*values[:7], bad, *values[8:]]
    handed.keeping = [message("scores", i, v) for i, v in enumerate(sent)]
    with Mirror(handed, Sent(), path, None) as mirror:
        until(lambda: handed._file.position == len(sent))
        assert (mirror.status()["state"], mirror.status()["error"]) == ("following", None)
    with closing(StateFile.open(path, read_only=True)) as file:
        ids = [row["id"] for batch in file.records.score_batches() for row in batch.to_pylist()]
        assert sorted(ids) == sorted(json.loads(v)["id"] for v in sent if v is not bad)
        (letter,) = file.records.dead_letters()
        assert (letter["line"], letter["kind"]) == ("scores/0/7", "internal error")
        assert "ArrowInvalid" in letter["reason"]
        assert json.loads(letter["raw"])["id"] == json.loads(bad)["id"]


def test_another_file_is_refused(tmp_path):
    facts = {**first_facts("kafka://b"), "source": "file:1:2"}
    StateFile.create(tmp_path / "replay.db", facts).close()
    with pytest.raises(StreamCcsdError, match="belongs to a replay"):
        MirrorFile.reopen(tmp_path / "replay.db")


def test_nothing_of_a_batch_that_fails(topics, tmp_path, monkeypatch):
    reader = Reader(tmp_path / "m.db", topics)
    reader.read(("s", 0), 100)
    arrivals, before = reader.intake.ready(50), dict(reader.file.notes)
    monkeypatch.setattr(reader.file, "check_in_place", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        reader.file.write(arrivals, reader.intake.to_notes(), {**reader.file.facts, "threshold": 1.0})
    monkeypatch.undo()
    assert (reader.file.position, reader.file.notes) == (0, before)
    reader.kill()
    reader.finish()
    check_whole(reader, topics)


def test_facts_come_from_messages_or_the_model(topics, model, model_folder):
    alerts = [parse_alert(a) for a in topics.alerts]
    unknown = first_facts("kafka://b")
    assert (unknown["model"], unknown["calendar"]["unit"]) == ("", "number")
    facts = learnt_facts(unknown, alerts)
    assert (facts["model"], facts["threshold"]) == (model.version, 1.0)
    assert facts["policy"] == {**unknown["policy"], "threshold": 1.0}
    assert learnt_facts(unknown, []) == unknown
    named = first_facts("kafka://b", model_folder)
    assert (named["model"], named["calendar"]) == (model.version, model.calendar.to_dict())


@settings(max_examples=50)
@given(st.sampled_from(["seconds", "milliseconds", "days"]), st.lists(st.floats(0, 1e4), min_size=1, max_size=5))
def test_a_calendar_is_read_off_dated_alerts(unit, times):
    from stream_ccsd.calendar import Calendar, parse_moment

    calendar = Calendar(unit, parse_moment("2018-04-01"))
    found = calendar_of([(time, calendar.iso(time)) for time in times])
    assert found in (calendar, Calendar())
    assert found == calendar or max(times) - min(times) < 10


def test_after_a_kill_only_alerts_that_waited_are_read_again(topics):
    """Whatever has become of the others since: they may have gone from the file already."""
    notes = {"offsets": {"a": {"0": 5}}, "open": {"a": {"0": [2]}}}
    intake = Intake(TOPICS, notes)
    assert intake.start(("a", 0)) == 2
    assert intake.missed(("a", 0), 2, 9) == 1 + 4
    assert intake.missed(("a", 0), 3, 9) == intake.missed(("a", 0), 5, 9) == 4
    for offset, value in enumerate(topics.alerts[:7]):
        said = intake.to_notes()
        waiting = [o for o in (2, 5, 6) if o < max(offset, 5)]
        assert (said["offsets"], said["open"]) == ({"a": {"0": max(offset, 5)}}, {"a": {"0": waiting}})
        intake.take(message("a", offset, value))
    assert intake.pending == 3


class Handed(Following):
    """Follows no broker, but what a test hands it: messages, or errors, which are raised."""

    def __init__(self, path):
        super().__init__(WorkerSettings.load({"broker": "kafka://b:1"}), path, 1000, 100, None)
        self.handed, self.topics = [], {}
        self.keeping = []  # what a topic keeps: read from where the file stopped, as often as needed

    @asynccontextmanager
    async def _consumer(self):
        yield SimpleNamespace(assign=lambda places: None)

    async def _read(self, consumer, places):
        await asyncio.sleep(0.01)
        while self.handed:
            found = self.handed.pop(0)
            if isinstance(found, BaseException):
                raise found
            self._intake.take(found)
        for found in self.keeping:
            self._intake.take(found)


class Sent:
    """Takes verdicts as a broker would."""

    def __init__(self):
        self.verdicts = []

    async def send(self, verdicts):
        await asyncio.sleep(0.01)
        self.verdicts += verdicts

    async def close(self):
        pass


def until(condition):
    end = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def handed(tmp_path, monkeypatch):
    """What a mirror follows, over a file that is there."""

    @asynccontextmanager
    async def admin_client(brokers, security):
        yield None

    async def describe(admin, names):
        return SimpleNamespace(topics=dict(made.topics))

    monkeypatch.setattr("replay.mirror.follow.admin_client", admin_client)
    monkeypatch.setattr("replay.mirror.follow.describe", describe)
    path = tmp_path / "m.db"
    MirrorFile.at(path, first_facts("kafka://b:1")).close()
    made = Handed(path)
    return made


def noted(path):
    with closing(StateFile.open(path, read_only=True)) as file:
        return file.notes["mirror"]


def test_a_verdict_that_arrives_while_another_is_sent_holds_neither_up(handed, tmp_path, monkeypatch):
    """A page holds the audit log until its own is sent, by the loop that has the other one to write into it."""
    monkeypatch.setattr("replay.mirror.mirror.PATIENCE", 1.0)
    path, sender = tmp_path / "m.db", Sent()
    theirs = Verdict("t1", "C1", "normal", "bob", 2.0)
    alert = {"account": "C2", "transaction": "t2", "time": 2.0}

    def send(verdicts):
        handed.handed.append(message("verdicts", 0, verdict_message(theirs)))
        until(lambda: not handed.handed)
        time.sleep(0.5)  # now it is to be written
        mirror.send(verdicts)

    with (
        Mirror(handed, sender, path, None) as mirror,
        closing(Cases(audit_log_beside(path), send=send)) as cases,
        closing(VerdictLog.open(audit_log_beside(path), read_only=True)) as audit_log,
    ):
        (own,) = cases.judge([alert], "fraud", "", Analyst("ann"), SimpleNamespace(newest_time=lambda: 3.0))
        assert sender.verdicts == [own.verdict]
        until(lambda: [entry.verdict for entry in audit_log.entries()] == [own.verdict, theirs])
        assert mirror.status()["state"] == "following"


def test_a_clients_own_cancellation_is_no_end(handed, tmp_path, monkeypatch):
    monkeypatch.setattr("replay.mirror.follow._BACKOFF", (0.3,))
    with Mirror(handed, Sent(), tmp_path / "m.db", None) as mirror:
        for error, said in ((asyncio.CancelledError(), "does not answer"), (KeyError("x"), "(KeyError: 'x')")):
            until(lambda: mirror.status()["state"] == "following")
            handed.handed.append(error)
            until(lambda: mirror.status()["state"] == "reconnecting")
            assert said in mirror.status()["error"]
            assert ("broker" in mirror.status()["error"]) == isinstance(error, asyncio.CancelledError)
        until(lambda: mirror.status()["state"] == "following")


def test_a_mirror_that_dies_says_so(handed, tmp_path, caplog):
    class Fatal(BaseException):
        pass

    with Mirror(handed, Sent(), tmp_path / "m.db", None) as mirror:
        until(lambda: mirror.status()["state"] == "following")
        said = Verdict("t1", "C1", "fraud", "ann", 3.0)
        handed.handed += [message("verdicts", 0, verdict_message(said)), Fatal("no more")]
        until(lambda: not mirror._thread.is_alive())
        status = mirror.status()
        assert status["state"] == "closed"
        assert status["error"].startswith("mirroring has ended")
        assert "Fatal: no more" in status["error"]
        assert noted(tmp_path / "m.db") == status
        with closing(StateFile.open(tmp_path / "m.db", read_only=True)) as file:
            assert not file.notes["offsets"]  # what it had read and not written is read again
        assert "mirroring has ended" in caplog.text
        with pytest.raises(StreamCcsdError, match="start again"):
            mirror.send([])


def test_a_topic_made_anew_is_no_broker_that_is_away(handed, tmp_path):
    path = tmp_path / "m.db"
    handed.topics = {"scores": Topic(0, "one")}
    with Mirror(handed, Sent(), path, None) as mirror:
        until(lambda: mirror.status()["state"] == "following")
        handed.topics = {"scores": Topic(0, "two")}
        handed.handed.append(OSError())  # another round
        until(lambda: "made anew" in (mirror.status()["error"] or ""))
        assert mirror.status()["error"].startswith("topic 'scores' on b:1 was made anew")
        assert "another --state" in mirror.status()["error"]
        until(lambda: noted(path)["error"] == mirror.status()["error"])
