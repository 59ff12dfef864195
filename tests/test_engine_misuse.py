"""What nobody should do to an engine, and somebody will: odd values, threads, failing stores, times from the future."""

import math
import threading
from dataclasses import replace

import pytest

from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.fitting import fit
from stream_ccsd.transaction import Transaction
from tests.conftest import SMALL, with_settings


def test_what_is_no_transaction_at_all_costs_its_neighbours_nothing(model, stream):
    good = stream.transactions[:20]
    odd = [None, 7, "a,1,2,c,m,x", {"account": "a"}, [], object()]
    mixed = [item for pair in zip(good, odd * 4, strict=False) for item in pair]
    results = Engine(model).process_many(mixed)
    assert [r.status for r in results] == ["scored", "refused"] * 20
    assert [r.evidence for r in results[::2]] == [r.evidence for r in Engine(model).process_many(good)]


def test_threads_share_an_engine(model, stream, results):
    """Accounts are spread over threads, each in its own order: the answers are those of one thread."""
    engine, answers = Engine(model), {}
    accounts = sorted({t.account for t in stream.transactions})

    def work(part):
        mine = [t for t in stream.transactions if t.account in part]
        for start in range(0, len(mine), 7):
            for result in engine.process_many(mine[start : start + 7]):
                answers[result.transaction.id] = result

    threads = [threading.Thread(target=work, args=(set(accounts[i::4]),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[r.transaction.id] for r in results] == results


class FailingStore(dict):
    """Takes some of an update and then fails, as a store without transactions does."""

    def __init__(self, fails):
        super().__init__()
        self.fails = fails

    def update(self, states):
        for number, (account, state) in enumerate(states.items()):
            if self.fails and number == len(states) // 2:
                self.fails -= 1
                raise OSError("the store is full")
            self[account] = state


def test_a_batch_that_the_store_took_half_of_can_be_tried_again(model, stream, results):
    engine, found = Engine(model, FailingStore(5)), []
    for start in range(0, len(stream.transactions), 100):
        batch = stream.transactions[start : start + 100]
        while True:
            try:
                found += engine.process_many(batch)
                break
            except OSError:
                continue
    assert found == results
    assert engine.states == _states(model, stream)


def _states(model, stream):
    engine = Engine(model)
    engine.process_many(stream.transactions)
    return engine.states


def test_a_time_from_a_far_future_is_refused_and_its_account_goes_on(model):
    engine = Engine(model)
    event = Transaction("a", 5.0, 5.0, "fuel", "m0001", "1")
    ahead = replace(event, time=1e15, id="2")
    results = engine.process_many([event, ahead, replace(event, time=6.0, id="3")])
    assert [r.status for r in results] == ["scored", "too far ahead", "scored"]
    assert "1000000000000000.0" in results[1].reason
    near = with_settings(model, horizon=10.0)
    last = model.facts["last_time"]
    statuses = [Engine(near).process(replace(event, time=last + ahead)).status for ahead in (10.0, 10.5)]
    assert statuses == ["scored", "too far ahead"]


@pytest.mark.parametrize("threshold", [math.nan, math.inf, -math.inf, "7", None, True])
def test_a_threshold_is_a_finite_number(model, threshold):
    if threshold is None:
        assert Engine(model, threshold=None).threshold == model.threshold
        return
    with pytest.raises(StreamCcsdError, match="finite number"):
        Engine(model, threshold=threshold)


@pytest.mark.parametrize("change", [{"amount": math.nan}, {"amount": math.inf}, {"amount": -1.0}, {"time": math.nan}])
def test_fit_refuses_what_is_no_transaction(stream, change):
    first, *rest = stream.transactions[:200]
    with pytest.raises(StreamCcsdError, match=f"'{first.id}' of account '{first.account}'.*{next(iter(change))}"):
        fit([replace(first, **change), *rest], SMALL)
    with pytest.raises(StreamCcsdError, match="expected a transaction"):
        fit([None, *rest], SMALL)
