import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.run.fitting import population_settings
from replay.sources.simulator.population import simulate
from stream_ccsd.engine import Engine
from stream_ccsd.fitting import fit
from stream_ccsd.model.calibration import _KNOTS, _thinned, fit_tail, rarities, rarity
from stream_ccsd.numerics.arrays import shuffled
from stream_ccsd.settings import Settings


def test_rates_of_the_body_are_empirical():
    scores = np.random.default_rng(0).normal(size=20_000)
    tail = fit_tail(scores, 0.01)
    for q in (0.1, 0.5, 0.9, 0.98):
        assert np.exp(-rarity(tail, np.quantile(scores, q))) == pytest.approx(1 - q, rel=0.02)


@pytest.mark.parametrize("shape", [0.0, 0.3])
def test_rates_beyond_the_data_are_extrapolated(shape):
    """Known tails: exponential and Pareto. One in a million is asked of 50,000 scores."""
    rng = np.random.default_rng(1)
    uniform = rng.random(50_000)
    scores = -np.log(uniform) if shape == 0 else (uniform**-shape - 1) / shape
    true = -np.log(1e-6) if shape == 0 else (1e-6**-shape - 1) / shape
    tail = fit_tail(scores, 0.02)
    assert rarity(tail, true) == pytest.approx(-np.log(1e-6), rel=0.15)


@given(st.lists(st.floats(-1e3, 1e3), max_size=60), st.floats(-2e3, 2e3), st.floats(0, 100))
def test_rarity_never_falls_and_is_finite(scores, at, step):
    tail = fit_tail(np.array(scores), 0.05)
    here, there = rarity(tail, at), rarity(tail, at + step)
    assert np.isfinite([here, there]).all()
    assert 0 <= here <= there + 1e-12


def test_a_missing_score_is_not_rare():
    tail = fit_tail(np.random.default_rng(0).normal(size=1000), 0.01)
    assert rarity(tail, np.nan) == 0.0
    assert rarity(fit_tail(np.empty(0), 0.01), 1e9) < 1e-200


def test_it_ranks_beyond_the_largest_score():
    """An empirical rate would stop at 1/n; ranking needs it to go on."""
    tail = fit_tail(np.random.default_rng(0).normal(size=1000), 0.01)
    values = [rarity(tail, v) for v in (4.0, 6.0, 10.0, 100.0)]
    assert values == sorted(set(values))


@pytest.mark.parametrize(
    ("scores", "at", "rate"),
    [
        ([0.0] * 600 + [1.0] * 400, 1.0, 0.4),
        ([0.0] * 6950 + [2.0] * 3000 + [3.0] * 50, 2.0, 0.305),
        ([5.0] * 100, 5.0, 1.0),
    ],
)
def test_equal_scores_are_as_common_as_they_are(scores, at, rate):
    tail = fit_tail(np.array(scores), 0.01)
    assert np.exp(-rarity(tail, at)) == pytest.approx(rate, rel=0.02)


def test_without_any_spread_rarity_stays_sane():
    assert rarity(fit_tail(np.full(100, 5.0), 0.01), 5.001) < 6


DRAWS = {
    "uniform": lambda rng, count: rng.random(count),
    "rounded": lambda rng, count: np.round(rng.random(count), 5),
    "triangular": lambda rng, count: rng.triangular(0.0, 0.5, 1.0, count),
    "exponential": lambda rng, count: rng.exponential(size=count),
    "heavy": lambda rng, count: rng.standard_t(3, count),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_budget_holds_whatever_the_tail_is_like(name):
    """Of draws that are like the 70,000 it was fitted on, about 1 in 1,000 is that rare, also where there is a wall."""
    rng = np.random.default_rng(4)
    tail = fit_tail(DRAWS[name](rng, 70_000), 0.01)
    rare = rarities(tail, DRAWS[name](rng, 1_000_000))
    for one_in in (200, 1000):
        assert 0.5 < np.mean(rare >= np.log(one_in)) * one_in < 1.3, one_in


def test_a_tail_that_only_thins_out_is_no_wall():
    """The empirical rate of such a one would rank by the order of its last scores, and cost takeover its precision."""
    thin = np.random.default_rng(4).triangular(0.0, 0.5, 1.0, 70_000)
    excess = np.sort(thin)[-700:] - np.sort(thin)[-701]
    tail = fit_tail(thin, 0.01)
    assert len(tail.knots) <= _KNOTS
    assert (tail.shape, tail.scale) == (0.0, pytest.approx(excess.mean()))


# --- accounts are clusters ---------------------------------------------------------------------------------------


def test_one_odd_account_does_not_decide_what_is_rare():
    """A hundred scores of one account at the top: no more than a fiftieth of the tail, or three, are its."""
    rng = np.random.default_rng(0)
    scores, accounts = rng.exponential(size=10_000), np.arange(10_000) % 100
    plain = fit_tail(scores, 0.01, accounts)
    odd = accounts == 7
    scores[odd] += 20.0
    kept = _thinned(scores, accounts, 0.01)
    above = np.sort(scores)[-101]
    assert (kept & odd & (scores > above)).sum() == 3
    assert kept[scores <= above].all()
    assert kept[~odd].all()
    thinned = fit_tail(scores, 0.01, accounts)
    for at in (3.0, 6.0):
        true = np.exp(-at)
        assert abs(np.log(np.exp(-rarity(plain, at)) / true)) < 0.3
    # Without regard to accounts, one in a hundred scores anything up to 20.
    assert np.exp(-rarity(fit_tail(scores, 0.01), 15.0)) > 5e-3
    assert np.exp(-rarity(thinned, 15.0)) < 2e-3


def test_what_stays_of_an_account_is_spread_over_its_scores():
    scores = np.concatenate([np.zeros(5000), np.linspace(10.0, 20.0, 101)])
    accounts = np.concatenate([np.arange(5000) % 50, np.full(101, 99)])
    kept = _thinned(scores, accounts, 0.02)
    assert scores[kept & (accounts == 99)].tolist() == pytest.approx([10.0, 15.0, 20.0])


@given(st.lists(st.tuples(st.floats(-50, 50), st.integers(0, 5)), max_size=80))
def test_whoever_the_scores_belong_to_rarity_never_falls(rows):
    scores, accounts = np.array([r[0] for r in rows]), np.array([r[1] for r in rows], int)
    tail = fit_tail(scores, 0.05, accounts)
    values = [rarity(tail, at) for at in np.linspace(-60, 60, 41)]
    assert np.isfinite(values).all()
    assert (np.diff(values) >= -1e-12).all()


def test_the_order_of_scores_and_missing_ones_change_nothing():
    rng = np.random.default_rng(2)
    scores, accounts = rng.normal(size=3000), rng.integers(0, 20, 3000)
    first = fit_tail(scores, 0.01, accounts)
    gaps = np.insert(scores, 100, np.nan), np.insert(accounts, 100, 3)
    second = fit_tail(*gaps[:1], 0.01, gaps[1])
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_nominal_rate_holds_on_accounts_that_were_not_fitted():
    """A hundred fitted, three hundred others streamed: 1 in 1,000 is about that, also in each single population."""
    rates = []
    for seed in range(4):
        stream = simulate(accounts=400, days=60, fraud_share=0.0, seed=seed).transactions
        fitted = set(shuffled({t.account for t in stream}, seed)[:100])
        settings = population_settings(Settings(divergence=False, alert_rate=1e-3))
        model = fit((t for t in stream if t.account in fitted), settings)
        results = Engine(model).process_many([t for t in stream if t.account not in fitted])
        rates.append(np.mean([r.score >= model.threshold for r in results]))
    assert 1e-3 / 1.5 < np.mean(rates) < 1.5e-3
    assert all(1e-3 / 2.5 < rate < 2.5e-3 for rate in rates)
