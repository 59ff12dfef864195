import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_ccsd.divergence import (
    OutputKernel,
    Sample,
    conditional_divergence,
    embedding,
    pairwise,
    pairwise_divergence,
)
from tests import naive

EXACT = {"rtol": 0, "atol": 1e-10}
WEIGHTINGS = ["two-sided", "one-sided"]


def z_scored(n, length, seed=0):
    walk = np.random.default_rng(seed).normal(size=(n, length)).cumsum(axis=1)
    return (walk - walk.mean(axis=1, keepdims=True)) / walk.std(axis=1, keepdims=True)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("length", [1, 2, 9, 17])
@pytest.mark.parametrize("tau", [0.05, 0.9, 4.0, 100.0])
@pytest.mark.parametrize("sigma", [0.05, 0.5, 1.0, 50.0])
def test_equals_the_formula(weighting, length, tau, sigma):
    series = z_scored(4, length) if length > 1 else np.array([[0.3], [1.0], [-2.0]])
    ref = naive.pairwise(series, None, tau, sigma, weighting, ridge=1e-8)
    comp = pairwise_divergence(series, tau=tau, sigma=sigma, weighting=weighting, ridge=1e-8)
    np.testing.assert_allclose(comp, ref, **EXACT)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_two_sets_of_series(weighting):
    a, b = z_scored(3, 12), z_scored(5, 12, seed=1)
    ref = naive.pairwise(a, b, 1.5, 0.7, weighting, ridge=1e-8)
    comp = pairwise_divergence(a, b, tau=1.5, sigma=0.7, weighting=weighting, ridge=1e-8)
    np.testing.assert_allclose(comp, ref, **EXACT)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("other", [False, True])
def test_missing_values_and_unequal_lengths(weighting, other):
    series = [s[: 12 - 2 * i].copy() for i, s in enumerate(z_scored(4, 12))]
    series[0][3:6] = np.nan
    series[1][0] = np.nan
    second = [s[:7] for s in z_scored(2, 9, seed=2)] if other else None
    ref = naive.pairwise(series, second, 1.5, 0.7, weighting, ridge=1e-8)
    comp = pairwise_divergence(series, second, tau=1.5, sigma=0.7, weighting=weighting, ridge=1e-8)
    np.testing.assert_allclose(comp, ref, **EXACT)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_vector_outputs(weighting):
    values = z_scored(4, 10)
    series = np.stack([values, np.gradient(values, axis=1)], axis=2)
    ref = naive.pairwise(series, None, 1.2, [0.8, 0.4], weighting, ridge=1e-8)
    comp = pairwise_divergence(series, tau=1.2, sigma=[0.8, 0.4], weighting=weighting, ridge=1e-8)
    np.testing.assert_allclose(comp, ref, **EXACT)


def test_constant_and_identical_series():
    series = np.vstack([np.zeros((2, 8)), np.ones((1, 8)), z_scored(1, 8)])
    comp = pairwise_divergence(series, tau=2.0)
    np.testing.assert_allclose(comp, naive_default_ridge(series, 2.0), **EXACT)
    assert comp[0, 1] <= 1e-15
    assert not comp.diagonal().any()


def naive_default_ridge(series, tau):
    grid = np.arange(series.shape[1], dtype=float)
    own = [naive.gram_term(grid, s, grid, s, grid, tau, 1.0) for s in series]
    return naive.pairwise(series, None, tau, 1.0, "two-sided", ridge=1e-10 * float(np.median(own)))


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_gram_terms_too_small_for_the_product_are_redone(weighting):
    """At large distances in units of sigma, the product holds only rounding: the direct form must step in."""
    series = np.array([[0.0, 0.1, 0.0], [6.0, 6.1, 6.2], [0.2, 6.0, 3.0]])
    ref = naive.pairwise(series, None, 0.8, 0.5, weighting, ridge=0.0)
    comp = pairwise_divergence(series, tau=0.8, sigma=0.5, weighting=weighting, ridge=0.0)
    assert ref.max() > 50
    np.testing.assert_allclose(comp, ref, **EXACT)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_absurd_bandwidths_fall_back_to_the_direct_form(monkeypatch, missing, other):
    series = z_scored(4, 9)
    second = z_scored(3, 9, seed=5) if other else None
    if missing:
        series[1, 2] = np.nan
    steps = []
    monkeypatch.setattr(pairwise, "_gram_matrix", lambda *_: pytest.fail("the product was used"))
    comp = pairwise_divergence(
        series, second, tau=1.0, sigma=2e-4, ridge=1e-8, progress=lambda *step: steps.append(step)
    )
    np.testing.assert_allclose(comp, naive.pairwise(series, second, 1.0, 2e-4, "two-sided", 1e-8), **EXACT)
    assert steps[-1][0] == steps[-1][1]


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_small_blocks_change_nothing(monkeypatch, missing, weighting):
    series = z_scored(20, 15)
    if missing:
        series[::3, 4:6] = np.nan
    whole = pairwise_divergence(series, tau=1.5, sigma=0.6, weighting=weighting)
    monkeypatch.setattr(embedding, "PAIRWISE_BLOCK_BYTES", 4096)
    monkeypatch.setattr(pairwise, "_ROWS", 3)
    steps = []
    parts = pairwise_divergence(
        series,
        tau=1.5,
        sigma=0.6,
        weighting=weighting,
        progress=lambda done, total: steps.append((done, total)),
    )
    np.testing.assert_allclose(parts, whole, **EXACT)
    assert len(steps) > 3
    assert steps[-1][0] == steps[-1][1]


def test_more_rows_than_a_mirrored_square():
    series = z_scored(1100, 6)
    D = pairwise_divergence(series, tau=1.0)
    np.testing.assert_array_equal(D, D.T)
    np.testing.assert_allclose(D[1050:, :20], pairwise_divergence(series, tau=1.0)[:20, 1050:].T, **EXACT)
    part = pairwise_divergence(series[1050:], series[:20], tau=1.0, ridge=1e-12)
    np.testing.assert_allclose(D[1050:, :20], part, rtol=0, atol=1e-8)


def test_agrees_with_the_estimator():
    """One divergence, two ways: two series through the matrix, and as two samples."""
    series, grid = z_scored(2, 14), np.arange(14.0)
    two = conditional_divergence(
        Sample.of(grid, series[0]), Sample.of(grid, series[1]), tau=2.0, kernel=OutputKernel(0.7)
    )
    np.testing.assert_allclose(pairwise_divergence(series, tau=2.0, sigma=0.7)[0, 1], two, **EXACT)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_series(data):
    length = data.draw(st.integers(1, 7))
    value = st.one_of(st.just(float("nan")), st.floats(-1e6, 1e6), st.integers(-2, 2).map(float))
    row = st.lists(value, min_size=length, max_size=length).filter(lambda r: not np.isnan(r).all())
    series = np.array(data.draw(st.lists(row, min_size=1, max_size=4)))
    tau = data.draw(st.sampled_from([1e-200, 0.4, 2.0, 1e200]))
    sigma = data.draw(st.sampled_from([1e-200, 0.01, 1.0, 1e200]))
    weighting = data.draw(st.sampled_from(WEIGHTINGS))
    comp = pairwise_divergence(series, tau=tau, sigma=sigma, weighting=weighting)
    assert np.isfinite(comp).all()
    np.testing.assert_array_equal(comp, comp.T)
    if weighting == "two-sided":
        assert comp.min() >= 0


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ([], "no series"),
        (np.empty((0, 5)), "got shape"),
        ([[1.0, 2.0], [np.nan, np.nan]], "series 1 has no complete point"),
        ([[1.0, np.inf]], "series 0 holds an infinite value"),
        ([np.zeros((3, 2)), np.zeros((3, 1))], "same number of values"),
        ([1.0, 2.0], "same number of values"),
    ],
)
def test_refuses_series(series, message):
    with pytest.raises(ValueError, match=message):
        pairwise_divergence(series, tau=1.0)


@pytest.mark.parametrize(
    "options",
    [{"tau": -1.0}, {"tau": 1.0, "sigma": 0.0}, {"tau": 1.0, "tolerance": 0.0}, {"tau": 1.0, "ridge": -1.0}],
)
def test_refuses_settings(options):
    with pytest.raises(ValueError, match="must be"):
        pairwise_divergence(z_scored(2, 5), **options)
