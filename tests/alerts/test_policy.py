"""Alerts: what they state, and when they are raised, held back and repeated."""

from dataclasses import replace

import numpy as np
import pytest

from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.fitting import fit
from stream_ccsd.stores import ALERT_CAP
from stream_ccsd.transaction import Transaction, identity
from tests.conftest import SMALL, with_settings


def alerts_of(model, transactions, **changes):
    return [r for r in Engine(with_settings(model, **changes)).process_many(transactions) if r.alert]


def test_alerts_state_everything(results, model):
    alert = next(r.alert for r in results if r.alert and r.alert.densities.change)
    assert alert.score >= alert.threshold == model.threshold
    assert alert.tail_rate == pytest.approx(np.exp(-alert.score))
    assert alert.model == model.version
    assert alert.score_name == "fused"
    assert [r.nats for r in alert.reasons] == sorted((r.nats for r in alert.reasons), reverse=True)
    assert 0 < sum(n.share for n in alert.neighbours) <= 1 + 1e-6
    axis = np.array(alert.densities.change)
    for curve in (alert.densities.account, alert.densities.normal):
        assert len(curve) == len(axis)
        assert 0.3 < np.trapezoid(curve, axis) < 1.01  # mass beyond both ends is cut off
    assert alert.account in alert.headline


def test_alert_ids_depend_on_account_and_transaction_only(results, model, stream):
    other = Engine(model, threshold=0.5).process_many(stream.transactions)
    ids = {r.transaction.id: r.alert.id for r in other if r.alert}
    ours = {r.transaction.id: r.alert.id for r in results if r.alert}
    assert len(set(ids.values())) == len(ids)
    assert all(ids[k] == v for k, v in ours.items() if k in ids)
    assert set(ids) & set(ours)


def test_a_further_alert_needs_the_margin(model, stream):
    for margin in (0.0, 2.0):
        last: dict[str, float] = {}
        for r in alerts_of(model, stream.transactions, alert_margin=margin):
            account = r.transaction.account
            assert r.alert.score >= last.get(account, -np.inf) + margin
            last[account] = r.alert.score
    assert len(alerts_of(model, stream.transactions, alert_margin=0.0)) > len(
        alerts_of(model, stream.transactions, alert_margin=50.0)
    )


def test_the_cooldown_is_kept(model, stream):
    times: dict[str, list[float]] = {}
    for r in alerts_of(model, stream.transactions, alert_margin=0.0, alert_cooldown=10.0):
        times.setdefault(r.transaction.account, []).append(r.transaction.time)
    assert all((np.diff(t) >= 10.0).all() for t in times.values())


def test_the_cap_holds_back_and_survives_a_restart(model, stream):
    capped = with_settings(model, alert_cap=1, alert_interval=20.0)
    engine = Engine(capped)
    results = engine.process_many(stream.transactions)
    per_interval = np.bincount([int(r.transaction.time // 20) for r in results if r.alert])
    assert per_interval.max() == 1
    assert any(r.held_back for r in results)
    states: dict[str, bytes] = {}
    comp = []
    for i in range(0, len(stream.transactions), 100):
        restarted = Engine(capped, states)
        comp += restarted.process_many(stream.transactions[i : i + 100])
    assert comp == results
    assert set(states) == {t.account for t in stream.transactions} | {ALERT_CAP}
    states[ALERT_CAP] = b"broken"
    with pytest.raises(StreamCcsdError, match="count of alerts"):
        Engine(capped, states)


@pytest.mark.parametrize("name", ["evidence", "takeover", "divergence"])
def test_alerts_on_one_score(model, stream, name):
    for r in Engine(with_settings(model, alert_on=name)).process_many(stream.transactions):
        assert r.score == (r.rarities[name] or 0.0)


def test_the_threshold_follows_the_budget(stream):
    normal = stream.normal_accounts()
    transactions = [t for t in stream.transactions if t.account in normal]
    assert fit(transactions, replace(SMALL, alert_rate=0.01)).threshold == pytest.approx(-np.log(0.01))


def test_a_share_of_the_budget_is_drawn_at_random(model, stream, results):
    """Whatever they score: those with the lowest hashes, the same in every process, besides all other alerts."""
    explored = Engine(model, threshold=2.0, explore=0.5).process_many(stream.transactions)
    plain = Engine(model, threshold=2.0).process_many(stream.transactions)
    share = 0.5 * np.exp(-2.0)
    drawn = {t.id for t in stream.transactions if identity(t.id) < share * 2.0**64}
    assert len(drawn) == pytest.approx(share * len(stream.transactions), rel=0.2)
    assert {r.transaction.id for r in explored if r.alert} == {r.transaction.id for r in plain if r.alert} | drawn
    assert [r.score for r in explored] == [r.score for r in plain] == [r.score for r in results]
    low = [r.alert for r in explored if r.alert and r.score < 2.0]
    assert {a.raised_by for a in low} == {"exploration"}
    assert len(low) > 50
    # The setting says the same, a flag has the last word, and by a higher threshold less is drawn.
    asked = with_settings(model, explore=0.5)
    for given, wanted in (({}, explored), ({"explore": 0.0}, plain)):
        again = Engine(asked, threshold=2.0, **given).process_many(stream.transactions)
        assert [r.alert is None for r in again] == [r.alert is None for r in wanted]
    assert not [r for r in Engine(asked, threshold=1e6).process_many(stream.transactions) if r.alert]
    with pytest.raises(StreamCcsdError, match=r"from 0 to 1, got 1\.5"):
        Engine(model, explore=1.5)


def test_a_clock_that_jumped_ahead_does_not_silence_the_cap(model):
    engine = Engine(with_settings(model, alert_cap=1), threshold=0.0)
    events = [Transaction("far", 5e4, 5.0, "fuel", "m0001", "0")]
    events += [Transaction(f"a{i}", float(i), 5.0, "fuel", "m0001", str(i)) for i in range(1, 6)]
    assert sum(r.alert is not None for r in engine.process_many(events)) == 6
