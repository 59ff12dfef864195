"""Changes of a stream: real ones are found, others are not, however the stream is cut into batches."""

import json
import logging
from dataclasses import replace
from functools import partial
from itertools import count

import numpy as np
import pytest

from offline.fraud.simulated import CATEGORY, SHIFT_DAY
from replay.run.learning import Learning
from replay.run.session import Session
from replay.sources.source import ListSource
from stream_ccsd.drift import monitor
from stream_ccsd.drift.detector import WARM_UP, ChangeDetector
from stream_ccsd.drift.monitor import DriftMonitor
from stream_ccsd.drift.statistics import SampleLayout
from stream_ccsd.kafka.ops.metrics import Metrics
from stream_ccsd.kafka.worker.model_watch import DriftWatch
from stream_ccsd.records import Origin, score_batch, score_record
from stream_ccsd.verdict import Verdict

THRESHOLD = 1.0


def watched(model, results, batch=500):
    watch, events = DriftMonitor(model), []
    for i in range(0, len(results), batch):
        events += watch.see_results(results[i : i + batch])
    return events


def recorded(results):
    return score_batch([score_record(Origin(i + 1), result) for i, result in enumerate(results)])


def test_nothing_is_said_where_nothing_changes(calm_model, calm):
    assert watched(calm_model, calm) == []


def test_a_dearer_category_is_noticed_within_a_week(calm_model, dearer):
    events = watched(calm_model, dearer)
    price = next(e for e in events if e.what == "amount")
    assert (price.field, price.value) == ("category", CATEGORY)
    assert SHIFT_DAY <= price.since < SHIFT_DAY + 2
    assert SHIFT_DAY < price.time <= SHIFT_DAY + 7
    assert price.after / price.before == pytest.approx(1.5, abs=0.15)
    assert price.text.startswith(f"since 2026-03-06 '{CATEGORY}' costs more: usually ")
    assert all(e.time > SHIFT_DAY for e in events)


def test_records_results_and_batches_of_any_size_say_the_same(calm_model, dearer):
    whole = watched(calm_model, dearer, len(dearer))
    assert whole
    assert watched(calm_model, dearer, 37) == whole
    scores, watch, events = recorded(dearer), DriftMonitor(calm_model), []
    for first in range(0, scores.num_rows, 1009):
        events += watch.see(scores.slice(first, 1009))
        watch = DriftMonitor.from_dict(calm_model, json.loads(json.dumps(watch.to_dict())))  # as if resumed each time
    assert events == whole


def test_what_is_kept_is_bounded_and_still_goes_on_from_plain_values(calm_model, dearer, monkeypatch):
    monkeypatch.setattr(monitor, "_KEPT", 70)
    watch, events, resumed, again = DriftMonitor(calm_model), [], DriftMonitor(calm_model), []
    for i in range(0, len(dearer), 500):
        events += watch.see_results(dearer[i : i + 500])
        again += resumed.see_results(dearer[i : i + 500])
        resumed = DriftMonitor.from_dict(calm_model, resumed.to_dict())
        assert len(watch.to_dict()["periods"]) <= 71
    assert events == again
    assert any(e.value == CATEGORY for e in events)


def test_without_a_unit_of_time_periods_are_transactions(model, results):
    assert model.calendar.of_days(1.0) is None
    watch = DriftMonitor(model)
    for i in range(0, len(results), 300):
        watch.see_results(results[i : i + 300])
    entered = sum(result.entered for result in results)
    counts = [sums[0] for _, sums in watch.to_dict()["periods"]]
    assert counts[:-1] == [1000] * (entered // 1000)
    assert sum(counts) == entered


def test_a_clock_that_jumped_ahead_stops_nothing(calm_model, dearer):
    """One transaction from a year later: the days that follow are days as before."""
    at = next(i for i, r in enumerate(dearer) if r.transaction.time >= 30)
    odd = replace(dearer[at], transaction=replace(dearer[at].transaction, time=400.0))
    events = watched(calm_model, [*dearer[:at], odd, *dearer[at + 1 :]])
    assert any(e.value == CATEGORY for e in events)


def test_verdicts_that_turn_are_noticed(calm_model, calm):
    watch, events, rng = DriftMonitor(calm_model), [], np.random.default_rng(0)
    days = np.array([int(r.transaction.time) for r in calm])
    for day in range(90):
        events += watch.see_results([calm[i] for i in np.flatnonzero(days == day)])
        watch.hear((rng.random(5) < (0.8 if day < 60 else 0.1)).tolist())
    (event,) = [e for e in events if e.what == "precision"]
    assert 58 <= event.since <= 62
    assert event.after < 0.3
    assert event.before > 0.7
    assert "fewer of the judged alerts are fraud" in event.text


def test_another_mix_of_merchants_is_noticed(calm_model, calm):
    """From one day on, what was paid to the three largest merchants is paid to one that nobody knew."""
    largest = SampleLayout.of(calm_model).merchants[:3]
    moved = []
    for result in calm:
        t = result.transaction
        new = t.time >= 60 and t.merchant in largest
        moved.append(replace(result, transaction=replace(t, merchant="elsewhere")) if new else result)
    events = [e for e in watched(calm_model, moved) if e.what == "mix"]
    assert [e.field for e in events] == ["merchant"]
    assert events[0].text.startswith("since 2026-03-0")
    assert events[0].time > 60


def test_a_series_finds_where_a_step_began():
    rng, series = np.random.default_rng(0), ChangeDetector(0.01)
    values = rng.normal(size=60) + np.where(np.arange(60) < 40, 0.0, 3.0)
    found = [changed for i, value in enumerate(values) if (changed := series.add(i, float(value))) is not None]
    ((first, since),) = found
    assert first == 0
    assert 39 <= since <= 41


def test_one_odd_value_is_no_change_and_missing_ones_are_passed_over():
    rng, series = np.random.default_rng(1), ChangeDetector(0.01)
    for i, value in enumerate(rng.normal(size=100)):
        odd = 1e9 if i == 50 else float(value)
        assert series.add(i, np.nan if i % 7 == 3 else odd) is None
    constant = ChangeDetector(0.01)
    assert not [i for i in range(100) if constant.add(i, 2.0)]
    assert WARM_UP < 50


def test_a_resumed_replay_writes_the_same_events(calm_model, dearer, tmp_path):
    source = ListSource("town", [r.transaction for r in dearer], {})
    noticed = []
    whole = Session(source, calm_model, tmp_path / "whole").run(on_drift=noticed.append)
    assert [e.to_dict() for e in noticed] == whole["drift"]
    assert any(e["value"] == CATEGORY for e in whole["drift"])
    report = (tmp_path / "whole" / "report.html").read_text(encoding="utf-8")
    assert "Changes of the stream" in report
    place = tmp_path / "state.db"
    for stop_after in (9_000, 3_000, 10**9):
        session, looks = Session(source, calm_model, tmp_path / "out", place, resume=place.exists()), count()
        last = session.run(stop=partial(lambda looks, most: next(looks) > most, looks, stop_after), batch=700)
    assert last["complete"]
    assert last["drift"] == whole["drift"]
    assert (tmp_path / "out" / "drift.jsonl").read_bytes() == (tmp_path / "whole" / "drift.jsonl").read_bytes()


def test_a_replay_that_learns_notices_that_more_alerts_are_fraud(calm_model, calm, tmp_path):
    """It gets the verdicts at its model updates; one that was stopped and resumed finds the same."""
    accounts, rng = sorted({r.transaction.account for r in calm})[::3], np.random.default_rng(0)
    some = [r.transaction for r in calm if r.transaction.account in accounts and r.transaction.time < 70.0]
    some = [replace(t, account=f"{t.account} {t.time // 6.0}") for t in some]  # whoever is new alerts anew
    verdicts = [
        Verdict(t.id, t.account, "fraud" if t.time > 60.0 and rng.random() < 0.8 else "normal", "ann", t.time)
        for t in some
        if rng.random() < 0.4
    ]
    learning = Learning(every=1.0, delay=7.0, verdicts=tuple(verdicts))
    source = ListSource("town", some, {})
    begin = partial(Session, source, calm_model, threshold=THRESHOLD, learning=learning)
    whole = begin(tmp_path / "whole").run()
    (turned,) = [e for e in whole["drift"] if e["what"] == "precision"]
    assert 58.0 <= turned["since"] <= 64.0
    assert turned["before"] == 0.0
    assert turned["after"] > 0.5
    place, looks = tmp_path / "state.db", count()
    begin(tmp_path / "out", state=place).run(stop=lambda: next(looks) > len(some) * 0.92, batch=700)
    assert begin(tmp_path / "out", state=place, resume=True).run()["drift"] == whole["drift"]


def test_a_worker_logs_and_counts(calm_model, dearer, caplog):
    metrics = Metrics()
    watch = DriftWatch(metrics)
    with caplog.at_level(logging.WARNING):
        for i in range(0, len(dearer), 50):
            watch.see(0, calm_model, dearer[i : i + 50])
    (line,) = [r for r in caplog.records if getattr(r, "what", "") == "amount"]
    assert line.value == CATEGORY
    assert metrics.registry.get_sample_value("stream_ccsd_drift_events_total", {"what": "amount"}) == 1


def test_a_watch_that_fails_does_not_stop_a_worker(calm_model, caplog):
    watch = DriftWatch(Metrics())
    for _ in range(3):
        watch.see(0, calm_model, [None] * 300)
    assert [r.message for r in caplog.records] == ["changes of the stream are not watched any more"]
