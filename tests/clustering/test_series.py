"""Clusters of more series than all pairs fit into memory for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_ccsd import DivergenceKMedoids
from stream_ccsd.clustering.bandwidths import Bandwidths, DivergenceMatrices, standardised
from stream_ccsd.clustering.medoids import PLAIN, Geometry, k_medoids, path_distances
from stream_ccsd.clustering.series import Measure, clara, cluster_series
from tests import naive

KINDS = 3


@pytest.fixture(scope="module")
def waves():
    t, rng = np.linspace(0, 12, 40), np.random.default_rng(0)
    kinds = np.arange(240) % KINDS
    return standardised(np.sin((1 + kinds[:, None]) * t) + 0.25 * rng.normal(size=(240, 40)))


STRAIGHT = Measure(Bandwidths("both", 2.0, 1.0, 0.8), geometry=Geometry(neighbours=None))
MEASURES = [
    Measure(Bandwidths("both", 2.0, 1.0, 0.8)),
    STRAIGHT,
    Measure(Bandwidths("value", 0.1, 1.0), "two-sided", PLAIN),
]


@pytest.mark.parametrize("measure", MEASURES)
def test_a_sample_of_all_is_the_exact_method(waves, measure):
    exact = k_medoids(measure.among(waves), 4, starts=3, seed=5)
    found, _ = clara(waves, 4, measure, size=len(waves), samples=4, starts=3, seed=5)
    np.testing.assert_array_equal(found.medoids, exact.medoids)
    np.testing.assert_array_equal(found.labels, exact.labels)
    assert found.loss == pytest.approx(exact.loss, abs=1e-4)  # a root of rounding, for each series with itself


@pytest.mark.parametrize("measure", MEASURES[1:])
def test_samples_lose_little_and_their_loss_is_that_of_all_series(waves, measure):
    matrix = measure.among(waves)
    found, _ = cluster_series(waves, KINDS, measure, most_at_once=60, seed=1)
    assert found.loss == pytest.approx(naive.k_medoids_loss(matrix.tolist(), found.medoids.tolist()), abs=1e-5)
    assert found.loss < 1.1 * k_medoids(matrix, KINDS, starts=5).loss
    np.testing.assert_array_equal(found.labels, matrix[:, found.medoids].argmin(axis=1))
    again, _ = cluster_series(waves, KINDS, measure, most_at_once=60, seed=1)
    np.testing.assert_array_equal(again.labels, found.labels)


def test_more_samples_are_never_worse(waves):
    # The first sample of five is the one of one.
    few, many = (clara(waves, 5, STRAIGHT, size=30, samples=s, seed=2)[0].loss for s in (1, 5))
    assert many <= few


def test_never_are_more_pairs_compared_than_a_sample_has(waves, monkeypatch):
    sizes, steps = [], []
    original = Measure.among
    monkeypatch.setattr(Measure, "among", lambda self, series: sizes.append(len(series)) or original(self, series))
    cluster_series(waves, KINDS, MEASURES[0], most_at_once=60, progress=lambda *step: steps.append(step))
    assert set(sizes) == {60}
    assert steps[-1][0] == steps[-1][1]
    assert steps == sorted(steps)
    sizes.clear()
    cluster_series(waves, KINDS, MEASURES[0], most_at_once=240)
    assert sizes == [240]


def test_blocks_change_nothing(waves, monkeypatch):
    _, landmarks = cluster_series(waves[:50], 4, MEASURES[0])
    whole = landmarks.to_medoids(waves)
    monkeypatch.setattr("stream_ccsd.clustering.series._BLOCK", 7)
    np.testing.assert_allclose(landmarks.to_medoids(waves), whole, atol=1e-6)


@given(st.integers(2, 12), st.integers(1, 4), st.integers(0, 10**6))
def test_paths_are_the_shortest_over_the_neighbours(n, neighbours, seed):
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 4, (n, 2)) if seed % 3 == 0 else rng.normal(size=(n, 2))  # copies, too
    straight = np.linalg.norm(points[:, None] - points, axis=2)
    found = path_distances(straight, neighbours)
    assert (found == found.T).all()
    assert (np.diag(found) == 0).all()
    if len(np.unique(straight)) == n * (n - 1) / 2 + 1:  # where two are equally near, either may be the neighbour
        expected = naive.path_distances(straight.tolist(), neighbours)
        np.testing.assert_allclose(found, expected, atol=1e-9)


def test_a_series_is_joined_by_way_of_landmarks(waves):
    """What stands in the fit has its own distances, anything else those of its best first step."""
    measure = MEASURES[0]
    clustering, landmarks = cluster_series(waves[:60], KINDS, measure)
    distances = measure.among(waves[:60])[:, clustering.medoids]
    np.testing.assert_allclose(landmarks.to_medoids(waves[:60]), distances, atol=1e-6)
    first = DivergenceMatrices(waves[:60], waves[60:], weighting="one-sided").at(measure.bandwidths).T
    steps = np.sqrt(np.maximum(first, 0))
    expected = [[min(row[j] + distances[j, m] for j in np.argsort(row)[:5]) for m in range(KINDS)] for row in steps]
    np.testing.assert_allclose(landmarks.to_medoids(waves[60:]), expected, atol=1e-6)


def test_the_estimator_does_without_all_pairs(waves):
    options = {"output": "value", "tau": 0.1, "random_state": 0}
    model = DivergenceKMedoids(KINDS, most_at_once=60, **options).fit(waves)
    exact = DivergenceKMedoids(KINDS, **options).fit(waves)
    assert model.bandwidths_ == exact.bandwidths_
    pairs = set(zip(model.labels_.tolist(), exact.labels_.tolist(), strict=True))
    assert len(pairs) == KINDS  # the same clusters, by other names
    np.testing.assert_array_equal(model.predict(waves), model.labels_)
