import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_ccsd.divergence import cut_spectrum, effective_rank, iqr_bandwidth, median_bandwidth
from tests import naive


@pytest.mark.parametrize("shape", [(2,), (9,), (15, 3)])
def test_median_of_all_pairs(shape):
    points = np.random.default_rng(0).normal(size=shape)
    assert median_bandwidth(points) == pytest.approx(np.median(naive.pair_distances(points)))


def test_iqr_of_all_signed_differences():
    values = np.random.default_rng(1).normal(size=11)
    signed = [a - b for i, a in enumerate(values) for j, b in enumerate(values) if i != j]
    low, high = np.percentile(signed, [25, 75])
    assert iqr_bandwidth(values) == pytest.approx((high - low) / 1.349)


@pytest.mark.parametrize("rule", [median_bandwidth, iqr_bandwidth])
def test_sampled_rules_are_seeded_and_close(rule):
    values = np.random.default_rng(2).normal(size=2000)
    exact = rule(values, pairs=10**7)
    sampled = rule(values, pairs=50_000, seed=3)
    assert sampled == rule(values, pairs=50_000, seed=3)
    assert sampled != rule(values, pairs=50_000, seed=4)
    assert sampled == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("rule", [median_bandwidth, iqr_bandwidth])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0], "two points"),
        ([1.0, np.nan], "two points"),
        ([1.0] * 9, "is 0"),
        ([1.0, np.inf, 2.0], "finite"),
    ],
)
def test_refuses(rule, values, message):
    with pytest.raises(ValueError, match=message):
        rule(values)


def test_missing_values_are_left_out():
    assert median_bandwidth([0.0, np.nan, 1.0, 3.0]) == median_bandwidth([0.0, 1.0, 3.0])


@given(st.integers(1, 8), st.integers(0, 100))
def test_effective_rank_equals_the_formula_and_its_bounds(n, seed):
    factor = np.random.default_rng(seed).normal(size=(n, n))
    gram = factor @ factor.T
    assert effective_rank(gram) == pytest.approx(naive.effective_rank(gram))
    assert 1 - 1e-9 <= effective_rank(gram) <= n + 1e-9


@pytest.mark.parametrize("drop", [0.0, 1e-6, 0.2])
def test_cut_spectrum_drops_no_more_than_asked(drop):
    factor = np.random.default_rng(0).normal(size=(9, 9))
    gram = factor @ factor.T
    cut = cut_spectrum(gram, drop)
    assert np.trace(gram) * (1 - drop) - 1e-9 <= np.trace(cut) <= np.trace(gram) + 1e-9
    assert np.linalg.matrix_rank(cut) == (9 if drop < 1e-3 else np.linalg.matrix_rank(cut))
    assert (np.linalg.matrix_rank(cut) < 9) == (drop == 0.2)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((2, 3)), "square"),
        ([[1.0, 0.5], [0.0, 1.0]], "symmetric"),
        ([[np.nan]], "finite"),
        ([[0.0]], "positive eigenvalue"),
    ],
)
def test_effective_rank_refuses(matrix, message):
    with pytest.raises(ValueError, match=message):
        effective_rank(matrix)
