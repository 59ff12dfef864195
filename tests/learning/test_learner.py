"""Learning on a simulated stream whose labels become verdicts days later; every score comes before its verdict."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from stream_ccsd.engine import Engine
from stream_ccsd.fields import density_terms
from stream_ccsd.learning.features import Features
from stream_ccsd.learning.learner import Learner, listening
from stream_ccsd.learning.schedule import Schedule
from stream_ccsd.learning.selection import SUM
from stream_ccsd.model.model import Model
from stream_ccsd.records import Origin, score_batch, score_record
from stream_ccsd.transaction import identity
from stream_ccsd.verdict import Verdict
from tests.learning.simulated import BUDGET, learn_over, precision

DELAY = 3.0
DAILY = Schedule(every=1.0, delay=DELAY)
# From here on, averages are taken: half of the frauds were found before.
LATER = 28.0


@pytest.fixture(scope="module")
def verdicts(population):
    _, stream, fraud = population
    return [found(t, "fraud") for t in stream if t.id in fraud]


def found(t, verdict, after=DELAY, who="desk", **more):
    return Verdict(t.id, t.account, verdict, who, t.time + after, **more)


@pytest.fixture(scope="module")
def run(population, verdicts):
    """The stream with daily model updates."""
    model, stream, _ = population
    return learn_over(model, DAILY, stream, verdicts)


def early(population, verdicts, until=24.0):
    """The first part: a few fits of weights, in a second."""
    model, stream, _ = population
    return model, [t for t in stream if t.time < until], [v for v in verdicts if v.time < until]


def test_later_frauds_are_found_better(population, plain, run):
    _, _, fraud = population
    for by in ("score", "evidence"):
        before, after = precision(plain, fraud, LATER, by), precision(run.results, fraud, LATER, by)
        assert after > before + 0.2, by
    account = run.learner.model.facts["lessons"]
    assert account["weighed_by"] != SUM
    assert account["frauds"] > 100
    assert account["average_precision"] > precision(plain, fraud, LATER)


def test_until_the_first_verdict_nothing_changes(population, plain, run, verdicts):
    model, stream, _ = population
    first = min(moment for moment in run.models if moment >= min(v.time for v in verdicts))
    for a, b in zip(plain, run.results, strict=True):
        if a.transaction.time >= first:
            break
        assert (a.scores, a.rarities, a.score, a.terms) == (b.scores, b.rarities, b.score, b.terms)
    assert {m.version for moment, m in run.models.items() if moment < first} == {listening(model).version}
    silent = learn_over(model, DAILY, stream[:2000], [])
    assert {m.version for m in silent.models.values()} == {listening(model).version}
    unsure = learn_over(model, DAILY, stream[:2000], [found(t, "unsure") for t in stream[:100]])
    assert {m.version for m in unsure.models.values()} == {listening(model).version}


def test_terms_add_up_whatever_was_learnt(run):
    for r in run.results:
        assert math.fsum(r.terms.values()) == pytest.approx(r.evidence, abs=1e-9)
    assert any(r.terms["lately"] for r in run.results)


def test_few_verdicts_leave_the_plain_sum(run):
    few = [m for m in run.models.values() if 0 < m.facts.get("lessons", {}).get("frauds", 0) < 30]
    assert few
    for m in few:
        count = len(density_terms(m.settings.declared))
        assert (m.learnt.weights[:count] == 1.0).all()
        assert (m.learnt.weights[count:] == 0.0).all()  # fraud rates would only show who pays often
        assert not len(m.learnt.roots)
        assert m.facts["lessons"]["weighed_by"] == SUM


def test_weights_are_learnt_again_when_frauds_fell_and_rose(population, verdicts):
    """Overruled for a day: weights are fitted again as soon as the frauds are known again, not a week later."""
    model, stream, _ = population
    labels = [replace(v, source="label") for v in verdicts if v.time < 20.0]
    doubted = [replace(v, who=who, time=20.5) for v in labels[20:] for who in ("ann", "bob")]
    heard = [*labels, *(replace(v, verdict="normal") for v in doubted), *(replace(v, time=21.5) for v in doubted)]
    run = learn_over(model, DAILY, [t for t in stream if t.time < 23.0], heard)
    facts = {moment: run.models[moment].facts["lessons"] for moment in (20.0, 21.0, 22.0)}
    assert [f["weighed_by"] == SUM for f in facts.values()] == [False, True, False]
    assert 30 <= facts[22.0]["frauds"] < 1.5 * facts[20.0]["weighed_at"]
    assert facts[22.0]["number"] % 7  # not an update that would have fitted them anyway


def test_the_same_again(population, verdicts):
    """To the bit, whoever arrives first and however many results come at once."""
    model, stream, heard = early(population, verdicts)
    one = learn_over(model, DAILY, stream, heard)
    assert any(m.facts.get("lessons", {}).get("weighed_at") for m in one.models.values())
    two = learn_over(model, DAILY, stream, heard[::-1], batch=7)
    assert [m.version for m in one.models.values()] == [m.version for m in two.models.values()]
    assert [r.scores for r in one.results] == [r.scores for r in two.results]


def test_a_label_buffer_built_again_from_records(population, verdicts):
    """Killed after any update, a learner that reads records back and keeps its models goes on as if it had not been."""
    model, stream, heard = early(population, verdicts)
    whole = learn_over(model, DAILY, stream, heard)
    moments = [*whole.models]
    records = [
        score_record(Origin(i), r) for i, r in enumerate(whole.results, start=1) if r.transaction.time < moments[-1]
    ]
    read = json.loads(json.dumps(records))
    for held in (0, len(moments) - 6, len(moments) - 1):
        learner = Learner(model, DAILY)
        for i, moment in enumerate(moments):
            begin = moments[i - 1] if i else -math.inf
            own = [r for r in read if begin <= r["time"] < moment]
            assert learner.due(own[0]["time"] if not i else begin) is None
            if i % 2:
                learner.see_rows(Features.of_records(own, learner.model))
            else:
                learner.see_rows(Features.of_batch(score_batch(own), learner.model))
            learner.hear(v for v in heard if begin < v.time <= moment)
            assert learner.due(moment) == moment
            if i < held:
                learner.remember(moment, whole.models[moment])
            else:
                assert learner.learn(moment).version == whole.models[moment].version, (held, moment)


def test_a_model_that_learnt_is_saved_whole(population, run, tmp_path):
    _, stream, _ = population
    model = run.learner.model
    loaded = Model.load(model.save(tmp_path / "model"))
    assert loaded.version == model.version
    assert loaded.facts["lessons"] == model.facts["lessons"]
    for a, b in zip(Engine(model).process_many(stream[-500:]), Engine(loaded).process_many(stream[-500:]), strict=True):
        assert (a.scores, a.terms, a.alert) == (b.scores, b.terms, b.alert)
    changed = replace(model, learnt=model.learnt._replace(rates=model.learnt.rates + 1e-9))
    assert changed.version != model.version


def test_alerts_say_what_verdicts_have_found(run):
    said = [reason.text for r in run.results if r.alert for reason in r.alert.reasons]
    assert any("had fraud" in text and text.endswith("times as often as others lately") for text in said)
    for r in run.results:
        if r.alert and r.alert.raised_by == "evidence":
            assert max(reason.nats for reason in r.alert.reasons) > 0


def test_the_alert_budget_holds(population, plain, run):
    """Among normal transactions, over the second half of what came after the first fit of weights."""
    model, _, fraud = population

    def rate(results):
        normal = [r for r in results if r.transaction.time >= LATER and r.transaction.id not in fraud]
        assert len(normal) > 1500
        return sum(r.score >= model.threshold for r in normal) / len(normal)

    assert BUDGET / 3 < rate(run.results) < 3 * BUDGET, (rate(run.results), rate(plain))


def test_one_verdict_in_twenty_is_wrong(population, run, verdicts):
    """Half of them call a fraud normal, half a normal transaction fraud."""
    model, stream, fraud = population
    rng = np.random.default_rng(5)
    innocent = [t for t in stream if t.id not in fraud]
    count = len(verdicts) // 40
    denied = {int(i) for i in rng.choice(len(verdicts), count, replace=False)}
    wrong = [replace(v, verdict="normal") if i in denied else v for i, v in enumerate(verdicts)]
    wrong += [found(innocent[i], "fraud") for i in rng.choice(len(innocent), count, replace=False)]
    misled = learn_over(model, DAILY, stream, wrong)
    assert precision(misled.results, fraud, LATER) > precision(run.results, fraud, LATER) - 0.05


def busiest(stream, fraud, place):
    """Normal transactions of a merchant, by its place among the busiest."""
    seen = [t.merchant for t in stream if t.id not in fraud]
    merchant = sorted(set(seen), key=seen.count)[-place]
    return merchant, [t for t in stream if t.merchant == merchant and t.id not in fraud]


def test_a_merchant_that_somebody_slanders(population, run, verdicts):
    """All of its transactions are called fraud for two weeks, in chargebacks; then the truth comes out."""
    model, stream, fraud = population
    merchant, there = busiest(stream, fraud, 3)
    slandered = [t for t in there if 5 <= t.time < 19]
    assert len(slandered) > 20
    lies = [found(t, "fraud", who="mallory", source="chargeback") for t in slandered]
    truth = [
        Verdict(v.transaction, v.account, "normal", who, max(v.time, 22.5) + 0.1 * i)
        for v in lies
        for i, who in enumerate(("ann", "bob"))
    ]
    misled = learn_over(model, DAILY, stream, [*verdicts, *lies, *truth])
    assert record(misled.models[21.0], merchant) > 1.0
    assert record(run.models[21.0], merchant) < 0.5
    assert record(misled.models[24.0], merchant) < record(misled.models[21.0], merchant) - 1.0
    assert record(misled.models[24.0], merchant) == pytest.approx(record(run.models[24.0], merchant), abs=0.5)
    assert precision(misled.results, fraud, LATER) > precision(run.results, fraud, LATER) - 0.05


def test_what_one_person_says_of_a_merchant_has_a_bounded_weight(population, run, verdicts):
    """Half of its payments are called fraud by one who finds fraud nowhere else, for good. It took half of the AP."""
    model, stream, fraud = population
    _, there = busiest(stream, fraud, 1)
    lies = [found(t, "fraud", who="mallory") for t in there[::2]]
    assert len(lies) > len(verdicts) / 2
    misled = learn_over(model, DAILY, stream, [*verdicts, *lies])
    assert misled.learner.model.facts["lessons"]["outweighed"] > 0
    assert precision(misled.results, fraud, LATER) > precision(run.results, fraud, LATER) - 0.05


def record(model, value, field=2):
    """Of a merchant, what is remembered longest; 0 of one that has none."""
    learnt = model.learnt
    first, last = learnt.start[field], learnt.start[field + 1]
    code = identity(value) if field == 0 else model.codes(value)
    at = np.flatnonzero(learnt.codes[first:last] == code)
    return float(learnt.rates[first + at[0], -1]) if len(at) else 0.0


def test_the_only_fraud_overruled_is_unlearnt(population):
    model, stream, _ = population
    t = stream[10]
    lesson = learn_over(model, DAILY, stream[:2500], [found(t, "fraud"), found(t, "normal", after=DELAY + 2)])
    versions = [m for m in lesson.models.values() if "lessons" in m.facts]
    assert record(versions[0], t.merchant) > 0
    assert record(versions[0], t.account, 0) > 0
    assert record(versions[-1], t.merchant) <= 0
    assert record(versions[-1], t.account, 0) <= 0
    assert versions[-1].facts["lessons"]["frauds"] == 0


def test_a_fraud_before_anything_is_known_to_be_normal_ends_no_alerts(population, verdicts):
    """Rates stay those of the fit until there are normal transactions to measure them on."""
    model, stream, _ = population
    prompt = [found(t, "fraud", after=0.1) for t in stream[:5]]
    lesson = learn_over(model, Schedule(1.0, 7.0), [t for t in stream if t.time < 4.0], prompt)
    taught = [m for m in lesson.models.values() if "lessons" in m.facts]
    assert taught
    for m in taught:
        assert m.tails["evidence"] is model.tails["evidence"]
        assert record(m, stream[0].account, 0) > 0
