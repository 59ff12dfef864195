"""Densities that follow a stream: slowly, with new values, and back within the budget after prices have risen."""

from dataclasses import replace

import numpy as np
import pytest

from offline.fraud.simulated import FACTOR, SHIFT_DAY, follow
from replay.sources.simulator.population import PriceShift
from stream_ccsd.engine import Engine
from stream_ccsd.evidence.densities import EVERYTHING
from stream_ccsd.evidence.supervised import input_names
from stream_ccsd.learning.adaptation import adapted, share_of
from stream_ccsd.learning.features import Features
from stream_ccsd.learning.learner import listening
from stream_ccsd.model.calibration import fit_tail, followed, rarities, score_at
from stream_ccsd.model.model import Model
from tests.learning.conftest import SMALL_POPULATION


@pytest.fixture(scope="module")
def rows(calm, calm_model):
    return Features.of(calm, calm_model)


def total(densities, first=0, last=None):
    return densities.amount_mass[first:last].sum()


def test_rows_hold_what_was_scored(rows, calm, calm_model):
    entered = [r for r in calm if r.entered]
    assert len(rows) == len(entered)
    assert rows.names.shape == (len(rows), 2)
    assert rows.numbers.shape == (len(rows), 0)
    assert rows.inputs.shape == (len(rows), len(input_names(calm_model.settings.declared)))
    assert rows.evidence.tolist() == [r.evidence for r in entered]
    assert rows.alerted.sum() == sum(r.alert is not None for r in calm)
    devices = {r.transaction.fields["device"] for r in calm} - set(calm_model.names.values())
    assert devices <= set(rows.texts.values())
    half = np.arange(len(rows)) < 100
    again = Features.concatenate([rows.take(half), rows.take(~half)])
    assert again.key.tolist() == rows.key.tolist()
    assert again.texts == rows.texts
    assert len(Features.of([], calm_model)) == 0


def test_it_is_a_pure_function_that_can_be_saved(rows, calm_model, tmp_path):
    one, other = adapted(calm_model, rows, 0.1), adapted(calm_model, rows, 0.1)
    assert one.version == other.version != calm_model.version
    assert adapted(calm_model, rows, 0.2).version != one.version
    for name, value in one.laws._asdict().items():
        np.testing.assert_array_equal(value, getattr(other.laws, name), err_msg=name)
    loaded = Model.load(one.save(tmp_path / "m"))
    assert loaded.version == one.version
    assert loaded.facts["adapted"] == {"times": 1, "transactions": len(rows), "until": rows.time.max()}
    nothing = rows.take(np.zeros(len(rows), bool))
    assert adapted(calm_model, nothing, 0.5) is calm_model
    assert adapted(calm_model, rows, 0.0) is calm_model


def test_densities_keep_their_mass_and_add_up(rows, calm_model):
    before, after = calm_model.laws, adapted(calm_model, rows, 0.3).laws
    assert after.amount_mass[EVERYTHING] == pytest.approx(before.amount_mass[EVERYTHING])
    known = 1 + len(after.categories)
    assert total(after, 1, known) == pytest.approx(after.amount_mass[EVERYTHING])
    assert total(after, known) == pytest.approx(after.amount_mass[EVERYTHING])
    assert after.name_mass == pytest.approx(before.name_mass)
    assert len(after.amount_mass) == known + len(after.pairs) == len(after.amount_start) - 1
    assert after.hour.sum() == pytest.approx(before.hour.sum(), rel=0.01)
    assert np.all(np.diff(after.pairs.astype(float)) > 0)
    for name, value in before._asdict().items():
        kind = getattr(after, name)
        if isinstance(value, np.ndarray):
            assert (kind.dtype, kind.ndim) == (value.dtype, value.ndim), name


def test_a_mixture_is_a_mixture(rows, calm_model):
    """Shares of categories are those of the fit and those of the rows, mixed."""
    densities, after = calm_model.laws, adapted(calm_model, rows, 0.25).laws
    share = dict(
        zip(densities.categories.tolist(), densities.amount_mass[1:] / densities.amount_mass[EVERYTHING], strict=False)
    )
    for i, code in enumerate(after.categories.tolist()):
        mixed = 0.75 * share.get(code, 0.0) + 0.25 * (rows.category == code).mean()
        assert after.amount_mass[1 + i] / after.amount_mass[EVERYTHING] == pytest.approx(mixed, rel=0.02)


def test_few_transactions_never_count_for_more_than_those_of_the_fit(rows, calm_model):
    few = rows.take(np.arange(3))
    before, after = calm_model.laws.amount_mass[EVERYTHING], adapted(calm_model, few, 0.5).laws.amount_mass[EVERYTHING]
    assert before - 30 < after < before


def test_what_is_new_enters_and_what_is_gone_leaves(calm, calm_model):
    moved = []
    for result in calm[:2000]:
        t = replace(result.transaction, category="drones", merchant="sky")
        moved.append(replace(result, transaction=t))
    rows = Features.of(moved, calm_model)
    first = adapted(calm_model, rows, 0.05)
    assert {"drones", "sky"} <= set(first.names.values())
    assert first.name(first.codes("drones")) == "drones"
    assert first.codes("drones") == calm_model.codes("drones")
    before, after = (Engine(m).process(moved[0].transaction).terms for m in (calm_model, first))
    assert after["category"] < before["category"] - 1.0
    center = first.laws.center[first.laws.categories.tolist().index(first.codes("drones"))]
    assert center == pytest.approx(np.median(np.log1p(rows.amount)), abs=0.1)
    last = first
    for _ in range(12):
        last = adapted(last, rows, 0.5)
    assert [last.names[code] for code in last.laws.categories.tolist()] == ["drones"]
    Engine(last).process_many([r.transaction for r in calm[:50]])


def test_declared_numbers_follow(stream):
    from stream_ccsd.fitting import fit
    from stream_ccsd.settings import Settings

    def far(transaction, kilometres):
        return replace(transaction, fields={"distance": kilometres})

    near = [far(t, 5.0 + i % 7) for i, t in enumerate(stream.transactions)]
    model = listening(fit(near, Settings(divergence=False, fields=("distance:number",))))
    later = [far(t, None if i % 4 == 0 else 500.0) for i, t in enumerate(stream.transactions)]
    rows = Features.of(Engine(model).process_many(later), model)
    assert rows.numbers.shape == (len(later), 1)
    after = adapted(model, rows, 0.4)
    assert after.laws.number_missing[0] == pytest.approx(0.1, abs=0.01)
    there, then = (Engine(m).process(later[1]).terms["distance"] for m in (model, after))
    assert then < there - 1.0


def test_a_tail_that_is_followed_by_what_it_was_made_of_stays(calm):
    rng = np.random.default_rng(0)
    scores = rng.exponential(2.0, 200_000)
    tail = fit_tail(scores[:100_000], 0.01)
    line = -np.log(1e-3)
    below = scores[100_000:][scores[100_000:] < score_at(tail, line)]
    moved = tail
    for part in np.split(below[: len(below) // 50 * 50], 50):
        moved = followed(moved, part, share_of(1.0, 10.0), line)
    at = np.array([3.0, 6.0, 10.0, 14.0, 20.0])
    assert rarities(moved, at) == pytest.approx(rarities(tail, at), abs=0.35)
    assert rarities(tail, np.array([score_at(tail, line)]))[0] == pytest.approx(line)


def test_a_tail_follows_scores_that_are_wider_now():
    """It never sees what lies above the line, and still comes to say how often that is reached."""
    rng = np.random.default_rng(0)
    tail, line = fit_tail(rng.exponential(2.0, 100_000), 0.01), -np.log(1e-3)
    for _ in range(60):
        scores = rng.exponential(3.0, 3000)
        tail = followed(tail, scores[scores < score_at(tail, line)], 0.1, line)
    assert np.exp(-score_at(tail, line) / 3.0) == pytest.approx(1e-3, rel=0.5)


def test_after_prices_have_risen_the_rate_is_back_within_the_budget(calm_model):
    """Fitted densities stay far beyond the budget; those that follow need some weeks, a week of which is the delay."""
    transactions = SMALL_POPULATION.transactions(PriceShift(SHIFT_DAY, FACTOR))[1]
    budget = calm_model.settings.alert_rate
    fixed, following = follow(calm_model, transactions, None), follow(calm_model, transactions)
    assert fixed.reached[SHIFT_DAY:].sum() > 2 * budget * fixed.transactions[SHIFT_DAY:].sum()
    assert fixed.back_after(SHIFT_DAY, budget) is None
    after = following.back_after(SHIFT_DAY, budget)
    assert after is not None
    assert after <= 20
    assert following.reached[-20:].sum() < 0.4 * fixed.reached[-20:].sum()
