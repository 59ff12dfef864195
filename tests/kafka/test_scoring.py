"""A partition's scorer without a broker: replays change nothing, whatever was stored when."""

import asyncio
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_ccsd.engine import Engine
from stream_ccsd.kafka.codec import (
    KEPT,
    NOTHING,
    TOPIC,
    OutgoingRecord,
    dead_letter,
    fitted,
    is_account,
    pack_stored,
    shortened,
    stored_offset,
    transaction_message,
)
from stream_ccsd.kafka.faust.table import newest_states
from stream_ccsd.kafka.ops.metrics import Metrics
from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.kafka.worker.guarantee import Processor
from stream_ccsd.kafka.worker.scoring import ForeignStateError, PartitionScorer, check_topic
from stream_ccsd.stores import ALERT_CAP
from stream_ccsd.transaction import Refusal, Schema
from tests.conftest import with_settings

SETTINGS = WorkerSettings()


def record(offset, value, key=b"C1", partition=0):
    return SimpleNamespace(
        topic="transactions", partition=partition, offset=offset, timestamp=1000 + offset, key=key, value=value
    )


@pytest.fixture(scope="module")
def records(stream):
    return [record(i, transaction_message(t), t.account.encode()) for i, t in enumerate(stream.transactions[:600])]


def scorer(model, states, **settings):
    return PartitionScorer(model, WorkerSettings(**settings), Schema(), states.get)


@pytest.fixture(scope="module")
def straight(model, records):
    """Outputs and states of a run without failures."""
    states = {}
    run = scorer(model, states)
    outputs = []
    for start in range(0, len(records), 50):
        done = run.score(records[start : start + 50])
        outputs += done.outputs
        states.update(done.states)
    return outputs, states


@settings(max_examples=50)
@given(data=st.data())
def test_any_failures_give_the_same_outputs_and_states(model, records, straight, data):
    """Batches of any size; after each, the worker may die before or after its states were stored, or half of them."""
    states, outputs, position = {}, {}, 0
    run = scorer(model, states)
    while position < len(records):
        size = data.draw(st.integers(1, 200))
        done = run.score(records[position : position + size])
        for output in done.outputs:
            outputs.setdefault((output.topic, output.value), output)
        fate = data.draw(st.sampled_from(["finished", "finished", "nothing stored", "half stored", "not committed"]))
        kept = list(done.states.items())
        if fate == "half stored":
            kept = kept[: len(kept) // 2]
        if fate != "nothing stored":
            states.update(kept)
        if fate == "finished":
            position += size
        else:  # another worker goes on from the committed offset, which may lie further back
            run = scorer(model, states)
            position = max(0, position - data.draw(st.integers(0, 100)))
    wanted, final = straight
    assert states == final
    assert len(outputs) == len(wanted)
    assert set(outputs) == {(o.topic, o.value) for o in wanted}


def test_a_batch_scored_again_gives_the_same_bytes(model, records):
    states = {}
    first = scorer(model, states).score(records)
    again = scorer(model, states).score(records)
    assert first.outputs == again.outputs
    assert first.states == again.states
    states.update(first.states)
    passed = scorer(model, states).score(records)
    assert (passed.passed_over, passed.outputs, passed.states) == (len(records), [], {})


def test_new_accounts_are_counted_once(model, records, stream):
    states = {}
    run = scorer(model, states)
    created = 0
    for start in range(0, len(records), 40):
        done = run.score(records[start : start + 40])
        created += done.created
        states.update(done.states)
    assert created == len(states) == len({t.account for t in stream.transactions[:600]})


def test_an_engine_that_fails_costs_one_transaction(model, records, monkeypatch, caplog):
    poison = Schema().parse_json(records[7].value).id
    process_many = Engine.process_many

    def fail(self, transactions):
        batch = list(transactions)
        if any(t.id == poison for t in batch):
            raise RuntimeError("a fault of ours")
        return process_many(self, batch)

    monkeypatch.setattr(Engine, "process_many", fail)
    done = scorer(model, {}).score(records[:20])
    assert done.entered == 19
    assert done.rejects == {"internal error": 1}
    letter = next(o for o in done.outputs if o.topic == SETTINGS.dead_letters)
    assert letter.value == records[7].value
    assert b"a fault of ours" in dict(letter.headers)["reason"]
    (line,) = [r for r in caplog.records if r.message == "a transaction could not be scored"]
    assert line.offset == 7
    assert "RuntimeError: a fault of ours" in line.exc_text


class Store:
    """Account states in a dictionary, as the processor asks for them."""

    def __init__(self):
        self.states = {}

    def read(self, partition, account):
        return self.states.get((partition, account))

    def write(self, partition, states, created, changelog_offset):
        self.states.update({(partition, account): state for account, state in states.items()})

    def outdated(self, partition):
        return set()

    def changelog_seen(self, partition):
        return None


class Partitions:
    """One empty changelog, and a topic that ends behind everything."""

    async def log_end(self, partition):
        return 1000

    def changelog_end(self, partition):
        return -1

    def finished(self, partition, next_offset):
        pass


def handle(model, store, batch, topic_id="one"):
    """A batch through a processor; what it counted, and what it sent."""
    metrics, sent = Metrics(), []

    async def confirm(outputs):
        sent.extend(outputs)
        return list(range(len(outputs)))

    async def run():
        processor = Processor(SETTINGS, Schema(), model, lambda: store, confirm, metrics, topic_id)
        processor.partitions = Partitions()
        await processor.handle({0: batch})
        await processor.settled()
        processor.close()
        if processor.failure:
            raise processor.failure

    asyncio.run(run())
    return metrics, sent


def test_a_fault_of_ours_is_counted(model, records, monkeypatch):
    def fail(self, transactions):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Engine, "process_many", fail)
    metrics, _ = handle(model, Store(), records[:5])
    assert metrics.registry.get_sample_value("stream_ccsd_internal_errors_total") == 5


def test_states_belong_to_one_topic_whatever_its_length(model, records):
    store = Store()
    _, sent = handle(model, store, records[:50])
    assert [o.key for o in sent if o.topic == SETTINGS.changelog].count(TOPIC) == 1
    _, sent = handle(model, store, records[50:100])
    assert TOPIC not in [o.key for o in sent]
    with pytest.raises(ForeignStateError, match="made anew"):
        handle(model, store, records[100:150], topic_id="another")


def test_states_of_another_version_are_refused(model, records):
    store = Store()
    handle(model, store, records[:50])
    mark = store.states[0, TOPIC]
    assert check_topic("t", "one", mark) == {}
    store.states[0, TOPIC] = b"\1" + mark[1:]
    with pytest.raises(ForeignStateError, match="another version"):
        handle(model, store, records[50:100])


def test_a_damaged_state_refuses_its_account_only(model, records):
    states = {}
    run = scorer(model, states)
    states.update(run.score(records[:100]).states)
    account = records[0].key
    damaged = {**states, account: states[account][:-3] + b"xyz"}
    done = scorer(model, damaged).score(records[100:200])
    hit = sum(r.key == account for r in records[100:200])
    assert done.rejects == ({"damaged state": hit} if hit else {})
    assert done.entered == 100 - hit
    assert account not in done.states


def test_states_of_another_topic_are_noticed(model, records):
    states = scorer(model, {}).score(records[:100]).states
    with pytest.raises(ForeignStateError, match="made anew"):
        scorer(model, states).score([record(0, records[50].value, records[50].key)], log_end=1)


def test_states_of_other_windows_are_noticed(model, records):
    states = scorer(model, {}).score(records[:100]).states
    other = with_settings(model, window=9)
    with pytest.raises(ForeignStateError, match="are for window 8"):
        scorer(other, states).score(records[100:200])


def test_the_alert_cap_is_kept_for_the_partition(model, records):
    capped = with_settings(model, alert_cap=1, alert_interval=1000.0)
    states = {}
    run = scorer(capped, states, threshold=0.0)
    states.update(run.score(records[:50]).states)
    assert ALERT_CAP.encode() in states
    assert [key for key in states if not is_account(key)] == [ALERT_CAP.encode()]
    again = scorer(capped, states, threshold=0.0).score(records[50:100])
    assert again.alerts == 0  # the one alert was in the first batch
    assert again.entered == 50


def test_a_worker_explores(model, records):
    plain, explored = (scorer(model, {}, threshold=0.0, explore=share).score(records[:200]) for share in (None, 1.0))
    assert 0 < plain.alerts < explored.alerts == explored.entered


def test_ids_may_come_from_the_place(model):
    schema = Schema(id=None)
    value = b'{"account":"C1","time":1,"amount":2.5,"category":"c","merchant":"m"}'
    run = PartitionScorer(model, SETTINGS, schema, {}.get)
    done = run.score([record(4, value)])
    assert b'"id":"transactions/0/4"' in done.outputs[0].value


def test_keys_are_checked_unless_told_otherwise(model):
    value = b'{"account":"C1","time":1,"amount":2.5,"category":"c","merchant":"m","id":"x"}'
    assert scorer(model, {}).score([record(0, value, b"C2")]).rejects == {"key": 1}
    assert scorer(model, {}, check_key=False).score([record(0, value, None)]).entered == 1


@given(offset=st.integers(0, 2**63), state=st.binary(max_size=50))
def test_stored_states_carry_their_offset(offset, state):
    data = pack_stored(offset, state)
    assert stored_offset(data) == offset
    assert data.endswith(state)


@given(data=st.binary(max_size=20))
def test_bytes_that_are_no_state_have_seen_nothing(data):
    assert stored_offset(data) >= NOTHING
    assert stored_offset(b"") == stored_offset(None) == NOTHING


@given(
    writes=st.lists(st.tuples(st.integers(0, 2), st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 30)), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_recovery_keeps_of_each_account_the_state_that_has_seen_most(writes, cuts):
    """In whatever order two workers' writes lie in the changelog, and however it is cut into stretches."""
    events = [
        SimpleNamespace(message=SimpleNamespace(partition=p, key=key, value=pack_stored(seen, b"s"), offset=i))
        for i, (p, key, seen) in enumerate(writes)
    ]
    store, count, outdated = {}, 0, set()
    edges = [0, *sorted(min(c, len(events)) for c in cuts), len(events)]
    for start, stop in pairwise(edges):
        for p, change in newest_states(lambda p, k: store.get((p, k)), events[start:stop]).items():
            store.update({(p, key): value for key, value in change.states.items()})
            count += change.created
            outdated = (outdated - {(p, key) for key in change.states}) | {(p, key) for key in change.outdated}
            assert change.end == max(e.message.offset for e in events[start:stop] if e.message.partition == p)
    most = {}
    for p, key, seen in writes:
        most[p, key] = max(seen, most.get((p, key), -1))
    assert {place: stored_offset(value) for place, value in store.items()} == most
    assert count == len(most)
    last = {(p, key): seen for p, key, seen in writes}  # what compaction would keep
    assert outdated == {place for place, seen in last.items() if seen < most[place]}


def test_a_dead_letter_is_the_message_itself():
    letter = dead_letter("d", record(3, b"\xff", b"\x00k"), Refusal("no JSON", "amount", "ä"))
    assert (letter.topic, letter.key, letter.value) == ("d", b"\x00k", b"\xff")
    assert dict(letter.headers) == {
        "kind": b"malformed",
        "reason": b"no JSON",
        "topic": b"transactions",
        "partition": b"0",
        "position": b"3",
        "timestamp": b"1003",
        "field": b"amount",
        "value": "ä".encode(),
    }
    assert dead_letter("d", record(3, None, None), Refusal("empty")).value == b""


def test_long_dead_letters_keep_their_beginning():
    short, long = OutgoingRecord("d", b"k", b"v", []), OutgoingRecord("d", b"k", b"v" * (KEPT + 1), [("a", b"b")])
    assert shortened(short) is short
    cut = shortened(long)
    assert (cut.value, cut.headers) == (b"v" * KEPT, [("a", b"b"), ("truncated_from", str(KEPT + 1).encode())])


@given(
    key=st.none() | st.integers(0, 200_000).map(lambda n: b"k" * n),
    value=st.integers(0, 2_000_000).map(lambda n: b"v" * n),
    largest=st.integers(1_000, 1_100_000),
)
def test_dead_letters_fit_their_topic(key, value, largest):
    letter = dead_letter("d", record(3, value, key), Refusal("no JSON", "amount", "x" * 80))
    found = fitted(letter, largest)
    size = len(found.key or b"") + len(found.value) + sum(len(n) + len(v) for n, v in found.headers)
    assert size <= largest
    assert value.startswith(found.value)
    whole = (found.key, found.value) == (key, value)
    assert whole == ("truncated_from" not in dict(found.headers))
    if len(key or b"") + len(value) + 1000 < largest:
        assert whole
