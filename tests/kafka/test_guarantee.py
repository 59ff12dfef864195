"""Whatever happens to workers and broker: each transaction has one effect, one score and one alert, to the bit.

Each test compares what came out of real workers with what an in-process engine says about what went in.
"""

import random
import shutil
import signal
import time

import pytest

from stream_ccsd.kafka.codec import transaction_message
from stream_ccsd.transaction import Transaction
from tests.kafka.cluster import Cluster, Expectation, messages, wait_for


def test_two_workers_say_what_one_process_says(cluster, many, expected):
    workers = [cluster.worker("a"), cluster.worker("b")]
    cluster.send(messages(many))
    cluster.wait_until_done(len(many))
    expected.check(cluster, exactly_once_each=True)
    assert sum(w.metric("stream_ccsd_events_total") for w in workers) == len(many)
    assert all(w.metric("stream_ccsd_events_total") > 0 for w in workers)
    assert [w.stop() for w in workers] == [0, 0]


def test_workers_killed_at_random(cluster, many, expected):
    workers = [cluster.worker("a"), cluster.worker("b")]
    for worker in workers:
        worker.wait_until_ready()
    chance, killed = random.Random(5), []

    def disturb(sent):
        if len(killed) < 5 and sent >= 3000 * (len(killed) + 1):
            victim = chance.choice(workers)
            time.sleep(chance.uniform(0.0, 0.3))
            victim.kill()
            victim.start()
            killed.append(victim)

    cluster.send(messages(many), rate=2500, during=disturb)
    assert len(killed) == 5
    cluster.wait_until_done(len(many))
    expected.check(cluster)


def test_a_worker_is_added_and_one_removed(cluster, many, expected):
    first = cluster.worker("a")
    first.wait_until_ready()
    joined = []

    def change(sent):
        if sent >= 6000 and not joined:
            joined.append(cluster.worker("b"))
        if sent >= 14_000 and len(joined) == 1:
            joined.append(first.stop())

    cluster.send(messages(many), rate=2000, during=change)
    cluster.wait_until_done(len(many))
    expected.check(cluster)
    assert joined[1] == 0
    assert joined[0].metric("stream_ccsd_events_total") > 0


def test_a_worker_that_was_taken_for_dead_wakes_up(cluster, many, expected):
    sleeper, other = cluster.worker("a"), cluster.worker("b")
    for worker in (sleeper, other):
        worker.wait_until_ready()
    woken, before = [], []

    def freeze(sent):
        if sent >= 5000 and not woken:
            woken.append(time.monotonic() + 8)  # longer than the session
            before.append(len(other.said("ready")))
            sleeper.signal(signal.SIGSTOP)
        if woken and time.monotonic() > woken[0]:
            sleeper.signal(signal.SIGCONT)

    cluster.send(messages(many), rate=1500, during=freeze)
    sleeper.signal(signal.SIGCONT)
    cluster.wait_until_done(len(many))
    expected.check(cluster)
    takeovers = other.said("ready")[before[0] :]
    assert any(said["partitions"] == [0, 1, 2, 3] for said in takeovers)  # it was taken for dead
    for worker in (sleeper, other):  # and the changelog is still sound
        worker.stop()
        shutil.rmtree(worker.folder)
    after = [t.__class__(t.account, t.time + 1000, t.amount, t.category, t.merchant, "x" + t.id) for t in many[:2000]]
    again = cluster.worker("c")
    again.wait_until_ready()
    cluster.send(messages(after))
    cluster.wait_until_done(len(many) + len(after))
    Expectation(_model(cluster), [*many, *after]).check(cluster)


def test_the_broker_is_stopped_and_restarted(own_broker, tmp_path, model_folder, many, expected):
    cluster = Cluster(own_broker.address, tmp_path, model_folder)
    try:
        workers = [cluster.worker("a"), cluster.worker("b")]
        for worker in workers:
            worker.wait_until_ready()
        cluster.send(messages(many[:10_000]), rate=5000)
        own_broker.stop()
        time.sleep(2)
        own_broker.start()
        cluster.send(messages(many[10_000:]))
        cluster.wait_until_done(len(many), patience=180)
        expected.check(cluster)
    finally:
        cluster.stop()


def test_transactions_produced_twice(cluster, many, model):
    chosen = set(sorted({t.account for t in many})[:60])
    part = [t for t in many if t.account in chosen]
    twice = [t for pair in zip(part, part, strict=True) for t in pair] + part  # at once, and all of them again later
    expectation = Expectation(model, twice)
    assert [r.transaction for r in expectation.entered] == part
    cluster.worker("a")
    cluster.send(messages(twice))
    cluster.wait_until_done(len(twice))
    expectation.check(cluster, exactly_once_each=True)
    letters = cluster.records(cluster.settings.dead_letters)
    assert len(letters) == len(expectation.refused)
    assert {dict(r.headers)["kind"] for r in letters} == {b"duplicate", b"too late"}


def test_one_time_in_the_far_future_does_not_end_an_account(cluster, many, model):
    """It becomes a dead letter of its own kind, and what comes later is scored as if it had never been."""
    part = many[:1000]
    victim = part[300].account
    far = Transaction(victim, 1e15, 9.5, "food", "m0001", "far")
    sent = messages(part)
    sent.insert(400, (victim.encode(), transaction_message(far)))
    worker = cluster.worker("a")
    cluster.send(sent)
    cluster.wait_until_done(len(sent))
    Expectation(model, part).check(cluster, exactly_once_each=True)
    (letter,) = cluster.records(cluster.settings.dead_letters)
    assert dict(letter.headers)["kind"] == b"too far ahead"
    assert (letter.key, letter.value) == (victim.encode(), transaction_message(far))
    assert worker.metric("stream_ccsd_rejects_total") == 1
    assert worker.stop() == 0


GARBAGE = [
    (b"C1", None),
    (b"C1", b""),
    (b"C1", b"{"),
    (b"C1", b"\xff\xfe\x00broken"),
    (b"C1", b"[]"),
    (b"C1", b"null"),
    (b"C1", b"[" * 50_000),
    (b"C1", b'{"account": "C1"}'),
    (b"C1", b'{"account":"C1","time":1,"amount":NaN,"category":"c","merchant":"m","id":"x"}'),
    (b"C1", b'{"account":"C1","time":1,"amount":-1,"category":"c","merchant":"m","id":"x"}'),
    (b"C1", b'{"account":"C1","time":1,"amount":1e400,"category":"c","merchant":"m","id":"x"}'),
    (b"C1", b'{"account":"\\ud800","time":1,"amount":1,"category":"c","merchant":"m","id":"x"}'),
    (b"C2", b'{"account":"C1","time":1,"amount":1,"category":"c","merchant":"m","id":"x"}'),
    (None, b'{"account":"C1","time":1,"amount":1,"category":"c","merchant":"m","id":"x"}'),
    (b"C1", b'{"account":"C1","time":1,"amount":1,"category":"c","merchant":"m","id":' + b"1" * 10_000 + b"}"),
]


def test_garbage_mixed_in(cluster, many, model):
    part = many[:5000]
    sent = messages(part)
    for number in range(0, len(sent), 50):
        sent.insert(number, GARBAGE[number // 50 % len(GARBAGE)])
    garbage = len(sent) - len(part)
    cluster.worker("a")
    cluster.send(sent)
    cluster.wait_until_done(len(sent))
    Expectation(model, part).check(cluster, exactly_once_each=True)
    letters = cluster.records(cluster.settings.dead_letters)
    assert len(letters) == garbage
    assert {(r.key, r.value) for r in letters} == set(GARBAGE)
    inputs = {(r.partition, r.offset): (r.key, r.value) for r in cluster.records(cluster.settings.transactions)}
    for letter in letters:
        about = dict(letter.headers)
        assert inputs[int(about["partition"]), int(about["position"])] == (letter.key, letter.value)
        assert about["topic"].decode() == cluster.settings.transactions
        assert about["reason"]
        assert about["kind"] in (b"malformed", b"key")


def test_messages_larger_than_the_dead_letters_take(cluster, many, model):
    part = many[:500]
    huge = (
        b'{"account": "' + b"x" * 1_008_463
    )  # just small enough to be sent, but not with the headers of a dead letter
    sent = messages(part)
    for place in range(100, 400, 50):
        sent.insert(place, (b"x" * 40_000, huge))
    worker = cluster.worker("a")
    cluster.send(sent)
    cluster.wait_until_done(len(sent))
    Expectation(model, part).check(cluster, exactly_once_each=True)
    letters = cluster.records(cluster.settings.dead_letters)
    assert len(letters) == 6
    for letter in letters:
        assert letter.value == huge[: len(letter.value)]
        assert int(dict(letter.headers)["truncated_from"]) == len(huge)
    # They were shortened before they were sent: none was refused, and no producer had to be made anew.
    assert not worker.said("sending again")
    assert worker.stop() == 0


@pytest.mark.parametrize("store", ["rocksdb", "memory"])
def test_a_store_is_lost_and_recovered(cluster, many, model, store):
    many = many[:6000]
    expected, half = Expectation(model, many), 4000
    worker = cluster.worker("a", store=store)
    cluster.send(messages(many[:half]))
    cluster.wait_until_done(half)
    wait_for(lambda: worker.metric("stream_ccsd_accounts") > 0, "accounts", worker)
    accounts = worker.metric("stream_ccsd_accounts")
    assert accounts == len({t.account for t in many[:half]})
    assert worker.stop() == 0
    shutil.rmtree(worker.folder)
    worker.start()
    cluster.send(messages(many[half:]))
    cluster.wait_until_done(len(many))
    expected.check(cluster, exactly_once_each=True)
    progress = worker.said("recovering account states")
    assert progress[-1]["remaining"] == 0
    assert progress[-1]["recovered"] >= accounts
    assert worker.said("ready")[-1]["accounts"] == accounts


def _model(cluster):
    from stream_ccsd.model.model import Model

    return Model.load(cluster.settings.model)
