from dataclasses import asdict, replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_ccsd.account import ANSWERS, RECENT
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.fitting import FitError, fit
from stream_ccsd.model.model import Model
from stream_ccsd.result import Result
from stream_ccsd.settings import Settings, SettingsError
from stream_ccsd.stores import ALERT_CAP
from stream_ccsd.transaction import Transaction
from tests.conftest import SMALL, with_settings


def in_batches(engine: Engine, transactions, size: int) -> list[Result]:
    return [r for i in range(0, len(transactions), size) for r in engine.process_many(transactions[i : i + size])]


@pytest.mark.parametrize("size", [7, 1000])
def test_the_same_bits_whatever_the_batch(model, stream, results, size):
    engine = Engine(model)
    assert in_batches(engine, stream.transactions, size) == results
    assert any(r.alert for r in results)
    assert any(r.divergence is not None for r in results)


def test_the_same_bits_with_state_carried_through_bytes_and_engines(model, stream, results, tmp_path):
    """At random moments everything but the packed states and the saved model is thrown away."""
    rng = np.random.default_rng(0)
    model.save(tmp_path / "model")
    states: dict[str, bytes] = {}
    comp, position = [], 0
    while position < len(stream.transactions):
        size = int(rng.integers(1, 400))
        engine = Engine(Model.load(tmp_path / "model"), states)
        comp += engine.process_many(stream.transactions[position : position + size])
        states = {k: bytes(bytearray(v)) for k, v in engine.states.items()}
        position += size
    assert comp == results


def test_batches_longer_than_a_chunk(model, stream, results, monkeypatch):
    monkeypatch.setattr("stream_ccsd.engine._CHUNK", 37)
    engine = Engine(model)
    assert engine.process_many(stream.transactions) == results
    assert len(engine._batch.events) == 37


@pytest.mark.parametrize("cut", [10, 500, 1500])
def test_the_future_cannot_change_the_past(model, stream, results, cut):
    rng = np.random.default_rng(cut)
    past, future = stream.transactions[:cut], stream.transactions[cut:]
    other = [replace(t, amount=float(rng.exponential(500)), merchant="elsewhere") for t in future]
    assert Engine(model).process_many([*past, *other])[:cut] == results[:cut]


def test_scoring_sees_no_label():
    columns = {"account", "time", "amount", "category", "merchant", "id", "fields"}
    assert set(Transaction.__dataclass_fields__) == columns


def test_accounts_do_not_influence_each_other(model, stream, results):
    """Whatever the interleaving, an account's results are those of its own events alone."""
    name = stream.transactions[5].account
    mine = [t for t in stream.transactions if t.account == name]
    assert Engine(model).process_many(mine) == [r for r in results if r.transaction.account == name]


def test_the_maximum_is_the_running_maximum(results):
    highest: dict[str, float] = {}
    for r in results:
        account = r.transaction.account
        highest[account] = max(highest.get(account, -np.inf), r.score)
        assert r.maximum == highest[account]


def test_accumulated_is_the_sum_of_the_three_highest(results):
    name = results[0].transaction.account
    scores: list[float] = []
    for r in results:
        if r.transaction.account == name:
            scores.append(r.score)
            assert r.accumulated == pytest.approx(sum(sorted(scores)[-3:]))


# --- duplicates, lateness, damage ------------------------------------------------------------------------------


def test_a_duplicate_changes_nothing_and_answers_as_before(model, stream):
    engine = Engine(model)
    results = engine.process_many(stream.transactions[:1500])
    alerted = next(r for r in reversed(results) if r.alert)
    recent = [r for r in results if r.transaction.account == alerted.transaction.account][-ANSWERS:]
    before = dict(engine.states)
    for first in recent:
        again = engine.process(first.transaction)
        assert again.status == "duplicate"
        for name in ("scores", "score", "maximum", "rarities"):
            assert getattr(again, name) == getattr(first, name)
        assert (again.alert is None) == (first.alert is None)
    assert engine.states == before


def test_a_duplicate_repeats_its_alert_to_the_letter(model, stream):
    engine = Engine(model)
    for transaction in stream.transactions:
        result = engine.process(transaction)
        if result.alert and result.alert.densities.change:
            assert engine.process(transaction).alert == result.alert
            return
    pytest.fail("no alert with densities")


def test_a_redelivered_run_of_events_is_recognised(model):
    """More copies than answers are kept, all at one time: none of them is entered again."""
    events = [Transaction("a", 1.0, 5.0 + i, "fuel", "m0001", str(i)) for i in range(RECENT)]
    engine = Engine(model)
    engine.process_many(events)
    before = dict(engine.states)
    again = engine.process_many(events)
    assert {r.status for r in again} == {"duplicate"}
    assert engine.states == before
    assert all(r.score is None and "no longer kept" in r.reason for r in again[:-ANSWERS])
    assert all(r.score is not None for r in again[-ANSWERS:])


def test_a_known_id_with_another_content_says_so(model):
    engine = Engine(model)
    event = Transaction("a", 1.0, 5.0, "fuel", "m0001", "1")
    first = engine.process(event)
    other = engine.process(replace(event, amount=5e6, merchant="elsewhere"))
    assert other.status == "duplicate"
    assert other.score == first.score
    assert other.alert is None
    assert "another transaction had this id" in other.reason


def test_a_duplicate_within_a_batch(model, stream):
    first = stream.transactions[0]
    a, b = Engine(model).process_many([first, first])
    assert (a.status, b.status) == ("scored", "duplicate")
    assert a.score == b.score


def test_late_events_within_the_grace_are_marked_and_beyond_it_refused(model):
    engine = Engine(with_settings(model, grace=5.0))
    event = Transaction("a", 10.0, 5.0, "fuel", "m0001", "1")
    late, too_late = replace(event, id="2", time=6.0), replace(event, id="3", time=4.5)
    assert [r.status for r in engine.process_many([event, late])] == ["scored", "late"]
    before = dict(engine.states)
    refused = engine.process(too_late)
    assert refused.status == "too late"
    assert refused.score is None
    assert "5.5 units of time behind the account's newest (10), more than the grace of 5 units" in refused.reason
    assert engine.states == before
    assert engine.process(replace(event, id="4", time=10.0)).status == "scored"


def test_damaged_state_is_refused_and_kept_and_the_others_go_on(model, stream):
    engine = Engine(model)
    engine.process_many(stream.transactions[:300])
    bad, good = stream.transactions[0].account, stream.transactions[1].account
    damaged = engine.states[bad][:-1]
    engine.states[bad] = damaged
    batch = [Transaction(a, 1e4, 5.0, "fuel", "m0001", f"new{i}") for i, a in enumerate([bad, good, bad])]
    first, second, third = engine.process_many(batch)
    assert (first.status, second.status, third.status) == ("damaged state", "scored", "damaged state")
    assert "checksum" in first.reason
    assert bad in first.reason
    assert engine.states[bad] == damaged


@pytest.mark.parametrize(
    "change",
    [
        {"amount": np.nan},
        {"amount": np.inf},
        {"amount": -1.0},
        {"time": np.nan},
        {"account": ""},
        {"account": ALERT_CAP},
        {"amount": "5"},
        {"merchant": None},
        {"amount": None},
        {"amount": Decimal("NaN")},
        {"amount": Fraction(1, 3)},
        {"amount": np.array([1.0, 2.0])},
        {"time": np.array([])},
        {"time": {}},
        {"id": 7},
    ],
)
def test_transactions_made_by_hand_are_checked_at_the_door(model, change):
    good = Transaction("a", 1.0, 5.0, "fuel", "m0001", "1")
    engine = Engine(model)
    first, bad, last = engine.process_many([good, replace(good, **{"id": "2", **change}), replace(good, id="3")])
    assert (first.status, bad.status, last.status) == ("scored", "refused", "scored")
    assert bad.reason.startswith(next(iter(change)))
    assert set(engine.states) == {"a"}


class FailingStore(dict):
    """A store that cannot be written to at first."""

    full = True

    def update(self, *args, **kwargs):
        if self.full:
            raise OSError("no space left on device")
        super().update(*args, **kwargs)


def test_a_store_that_fails_leaves_everything_as_it_was(model, stream):
    store = FailingStore()
    engine = Engine(model, store)
    with pytest.raises(OSError, match="no space"):
        engine.process_many(stream.transactions[:50])
    assert store == {}
    store.full = False
    assert engine.process_many(stream.transactions[:50]) == Engine(model).process_many(stream.transactions[:50])


@settings(max_examples=60)
@given(st.data())
def test_any_order_of_events_is_survived(model, data):
    """Times out of order, repeated ids, unknown merchants, extreme amounts: every event is answered, in any batches."""
    events = data.draw(
        st.lists(
            st.builds(
                Transaction,
                account=st.sampled_from(["a", "b"]),
                time=st.floats(-100, 100),
                amount=st.one_of(st.floats(0, 2.0**53), st.just(0.0)),
                category=st.sampled_from(["", "fuel", "zzz"]),
                merchant=st.sampled_from(["m0001", "elsewhere", "x"]),
                id=st.integers(0, 40).map(str),
            ),
            max_size=60,
        )
    )
    patient = with_settings(model, grace=data.draw(st.sampled_from([0.0, 50.0, 1e9])))
    one_by_one = [*map(Engine(patient).process, events)]
    assert in_batches(Engine(patient), events, data.draw(st.integers(1, 60))) == one_by_one
    for r in one_by_one:
        numbers = [v for v in (*r.scores.values(), *(r.terms or {}).values(), r.score) if v is not None]
        assert r.score is None or np.isfinite(numbers).all()


# --- fitting and settings --------------------------------------------------------------------------------------


def test_the_order_of_accounts_changes_nothing(model, stream):
    normal = stream.normal_accounts()
    shuffled = sorted((t for t in stream.transactions if t.account in normal), key=lambda t: (t.account[::-1], t.time))
    again = fit(shuffled, SMALL)
    assert again.version == model.version
    assert again.fingerprint == model.fingerprint


@pytest.mark.parametrize("amount", [lambda i: 0.0, lambda i: 9.99, lambda i: 9.99 if i % 9 else 4.0 + i % 7])
def test_repetitive_amounts_can_be_fitted(amount):
    events = [Transaction(f"a{i % 4}", float(i), amount(i), "fuel", "m", str(i)) for i in range(200)]
    results = Engine(fit(events, SMALL)).process_many([replace(e, account="new") for e in events[:60]])
    assert np.isfinite([r.score for r in results]).all()
    assert results[-1].divergence is not None


def test_cold_start_is_explicit(model):
    events = [Transaction("a", float(i), 5.0, "fuel", "m0001", str(i)) for i in range(SMALL.window + 2)]
    for i, r in enumerate(Engine(model).process_many(events)):
        assert r.waits == max(0, SMALL.window - i)
        assert (r.divergence is None) == (r.waits > 0)


def test_fit_needs_two_accounts(stream):
    one = [t for t in stream.transactions if t.account == stream.transactions[0].account]
    with pytest.raises(FitError, match="at least 2 normal accounts, got 1"):
        fit(one, SMALL)


def test_accounts_too_short_for_windows_still_give_evidence():
    events = [Transaction(f"a{i % 3}", float(i), 5.0 + i, "fuel", "m", str(i)) for i in range(9)]
    result = Engine(fit(events)).process(Transaction("new", 0.0, 500.0, "fuel", "m", "x"))
    assert result.evidence > 1
    assert result.divergence is None


def test_whole_history_models_are_not_for_streams(stream):
    normal = stream.normal_accounts()
    model = fit((t for t in stream.transactions if t.account in normal), replace(SMALL, standardise="history"))
    with pytest.raises(StreamCcsdError, match="a stream does not have"):
        Engine(model)


def test_without_the_divergence_the_rest_is_the_same(model, stream, results):
    for a, b in zip(
        Engine(with_settings(model, divergence=False)).process_many(stream.transactions), results, strict=True
    ):
        assert a.divergence is None
        assert (a.evidence, a.takeover, a.score) == (b.evidence, b.takeover, b.score)


@pytest.mark.parametrize(
    "values",
    [
        {"window": 1},
        {"sigma_x": -1.0},
        {"gate_category": 1.5},
        {"alert_rate": 0.0},
        {"half_life": 0.0},
        {"alert_on": "all"},
        {"half_life": "abc"},
        {"sigma_x": [1]},
        {"sigma_x": 1e300},
        {"sigma_u": 1e-300},
        {"holdout": float("nan")},
        {"alert_cap": 10**30},
        {"seed": 1.5},
        {"alert_on": ["fused"]},
        {"horizon": -1.0},
    ],
)
def test_refuses_settings(values):
    with pytest.raises(SettingsError, match=f"{next(iter(values))} is .*, expected"):
        Settings(**values)


def test_settings_survive_json_and_refuse_misspelt_names():
    assert Settings.from_dict(asdict(SMALL)) == SMALL
    with pytest.raises(SettingsError, match="unknown setting: windw"):
        Settings.from_dict({"windw": 3})
