import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_ccsd.library.tails import fit_tail, rarity


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
