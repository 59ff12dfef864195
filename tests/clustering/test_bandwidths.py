import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import silhouette_score

from stream_ccsd.clustering.bandwidths import (
    TAUS,
    Bandwidths,
    DivergenceMatrices,
    bandwidth_grid,
    series_array,
    slope,
    standardised,
)
from stream_ccsd.clustering.medoids import PLAIN, Geometry, k_medoids
from stream_ccsd.clustering.selection import adjusted_rand, select_bandwidths, silhouette
from stream_ccsd.divergence import pairwise_divergence
from tests import naive


@pytest.fixture(scope="module")
def walks():
    return standardised(np.random.default_rng(0).normal(size=(9, 40)).cumsum(axis=1))


def direct(series, bandwidths, weighting):
    """Every matrix by itself, without what the grid keeps."""
    both = np.stack([series, slope(series)], axis=2)
    tau = bandwidths.tau * series.shape[1] if bandwidths.tau <= 1 else bandwidths.tau
    parts = {
        "value": [(series, bandwidths.sigma)],
        "slope": [(slope(series), bandwidths.slope_sigma)],
        "both": [(series, bandwidths.sigma), (slope(series), bandwidths.slope_sigma)],
        "vector": [(both, (bandwidths.sigma, bandwidths.slope_sigma))],
    }[bandwidths.output]
    return sum(pairwise_divergence(s, tau=tau, sigma=sigma, weighting=weighting) for s, sigma in parts)


@pytest.mark.parametrize("weighting", ["one-sided", "two-sided"])
def test_a_reused_grid_gives_what_single_matrices_give(walks, weighting):
    grid = bandwidth_grid(walks, ("value", "slope", "both", "vector"), taus=(0.1, 5.0), multiples=(0.5, 1.0))
    assert {p.output for p in grid} == {"value", "slope", "both", "vector"}
    matrices = DivergenceMatrices(walks, weighting=weighting)
    for point in grid:
        np.testing.assert_allclose(matrices.at(point), direct(walks, point, weighting), atol=1e-12)


def test_the_filter_drops_degenerate_kernels_but_never_everything(walks):
    sigmas = {p.sigma for p in bandwidth_grid(walks, ("value",), multiples=(0.5, 50.0))}
    assert len(sigmas) == 1
    assert {p.tau for p in bandwidth_grid(walks, ("value",), taus=(2.0, 1000.0))} == {2.0}
    assert len(bandwidth_grid(walks[:, :2], ("value",), multiples=(1.0,))) == len(TAUS)


def test_a_share_of_the_length_is_the_first_series_length(walks):
    point = Bandwidths("value", 0.1, 1.0)
    found = DivergenceMatrices(walks[:3], walks[:, :30]).at(point)
    np.testing.assert_allclose(found, pairwise_divergence(walks[:3], walks[:, :30], tau=4.0, sigma=1.0), atol=1e-12)


def test_slopes_of_gaps_and_of_unequal_series():
    series = series_array([[1.0, 2.0, 4.0], [3.0], [1.0, np.nan, 5.0, 6.0]])
    found = slope(series)
    assert (np.isnan(found) == np.isnan(series)).all()
    assert found[1, 0] == 0
    expected = np.gradient([1.0, 5.0, 6.0], [0.0, 2.0, 3.0])
    np.testing.assert_allclose(found[2, [0, 2, 3]], (expected - expected.mean()) / expected.std())


def test_a_constant_series_stays_constant():
    assert (standardised(np.full((1, 7), 0.1) * 3) == 0).all()


@pytest.mark.parametrize("k", [2, 5])
def test_silhouette_is_scikit_learns(walks, k):
    matrix = pairwise_divergence(walks, tau=3.0)
    labels = np.arange(len(walks)) % k
    labels[labels == 1] = 0  # a name no cluster bears
    if len(set(labels)) > 1:
        assert silhouette(matrix, labels) == pytest.approx(silhouette_score(matrix, labels, metric="precomputed"))
    assert silhouette(matrix, np.zeros(len(walks), dtype=int)) == 0


def test_selection_finds_the_scale_that_separates():
    t = np.linspace(0, 20, 80)
    rng = np.random.default_rng(1)
    series = np.vstack([np.sin((1 + k) * t) + 0.3 * rng.normal(size=80) for k in (0, 1) for _ in range(12)])
    for criterion in ("both", "silhouette", "agreement"):
        chosen = select_bandwidths(standardised(series), 2, criterion=criterion)
        matrix = DivergenceMatrices(standardised(series), weighting="one-sided").at(chosen.bandwidths)
        assert len(set(matrix[:, [0, 12]].argmin(axis=1)[:12])) == 1
        assert matrix[:12, :12].mean() < matrix[:12, 12:].mean() / (1 if criterion == "agreement" else 2)
    assert select_bandwidths(standardised(series), 2, sample=16).agreement > 0.5
    plain = select_bandwidths(standardised(series), 2, sample=16, criterion="silhouette", geometry=PLAIN)
    assert plain.silhouette > 0.3
    with pytest.raises(ValueError, match="both, agreement, silhouette"):
        select_bandwidths(series, 2, criterion="gap")
    with pytest.raises(ValueError, match="no bandwidths"):
        select_bandwidths(series, 2, grid=[])


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 5), st.integers(0, 10**6))
def test_agreement_counts_pairs(n, k, count, seed):
    partitions = np.random.default_rng(seed).integers(0, k, (count, n))
    expected = [[naive.adjusted_rand(a, b) for b in partitions.tolist()] for a in partitions.tolist()]
    np.testing.assert_allclose(adjusted_rand(partitions), expected, atol=1e-12)


def test_what_is_chosen_agrees_with_most_bandwidths_and_lies_apart(walks):
    grid = bandwidth_grid(walks, ("slope", "both"))
    matrices = DivergenceMatrices(walks, weighting="one-sided")
    distances = [Geometry().of(matrices.at(point)) for point in grid]
    partitions = [k_medoids(d, 3, starts=3).labels for d in distances]
    agreement = [
        np.mean([naive.adjusted_rand(own.tolist(), other.tolist()) for j, other in enumerate(partitions) if j != i])
        for i, own in enumerate(partitions)
    ]
    silhouettes = [silhouette(d, labels) for d, labels in zip(distances, partitions, strict=True)]

    def ranks(scores):  # a tie has the mean of its ranks
        rounded = np.round(scores, 9)
        return [(np.sum(rounded < score) + np.sum(rounded <= score)) / 2 for score in rounded]

    for criterion, scores in (
        ("agreement", np.round(agreement, 12)),
        ("silhouette", silhouettes),
        ("both", np.add(ranks(agreement), ranks(silhouettes))),
    ):
        chosen, best = select_bandwidths(walks, 3, criterion=criterion), int(np.argmax(scores))
        assert chosen.bandwidths == grid[best]
        assert (chosen.agreement, chosen.silhouette) == pytest.approx((agreement[best], silhouettes[best]))
    alone = select_bandwidths(walks, 3, grid=grid[:1])
    assert (alone.bandwidths, alone.agreement) == (grid[0], 1.0)
