import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_ccsd.clustering.medoids import k_medoids
from tests import naive


def distances(n, seed, negative=False):
    points = np.random.default_rng(seed).normal(size=(n, 2))
    found = np.linalg.norm(points[:, None] - points, axis=2)
    return found - 0.05 * (1 - np.eye(n)) if negative else found


@given(st.integers(2, 14), st.integers(1, 5), st.integers(0, 10**6), st.booleans())
def test_fasterpam_stops_where_no_swap_gains(n, k, seed, negative):
    matrix, k = distances(n, seed, negative), min(k, n)
    found = k_medoids(matrix, k, seed=seed)
    assert len(set(found.medoids.tolist())) == k
    assert found.loss == pytest.approx(naive.k_medoids_loss(matrix.tolist(), found.medoids.tolist()))
    assert naive.best_swap_gain(matrix.tolist(), found.medoids.tolist()) < 1e-9


@given(st.integers(2, 14), st.integers(1, 4), st.integers(0, 10**6))
def test_alternating_stops_where_no_medoid_moves(n, k, seed):
    matrix, k = distances(n, seed), min(k, n)
    found = k_medoids(matrix, k, method="alternating", start="central")
    for slot, medoid in enumerate(found.medoids):
        members = np.flatnonzero(found.labels == slot)
        sums = matrix[np.ix_(members, members)].sum(axis=1)
        assert sums.min() == pytest.approx(sums[members.tolist().index(medoid)])


@given(st.lists(st.integers(0, 3), min_size=2, max_size=14), st.integers(1, 6), st.integers(0, 10**6), st.booleans())
def test_no_row_is_a_medoid_twice_though_rows_repeat(points, k, seed, central):
    place = np.array(points, float)
    start = "central" if central else "random"
    k = min(k, len(place))
    found = k_medoids(abs(place[:, None] - place), k, method="alternating", start=start, seed=seed)
    assert len(set(found.medoids.tolist())) == k


def test_more_starts_are_never_worse_and_seeds_repeat():
    matrix = distances(60, 1)
    few, many = k_medoids(matrix, 7, starts=1, seed=3), k_medoids(matrix, 7, starts=30, seed=3)
    assert many.loss <= few.loss
    again = k_medoids(matrix, 7, starts=30, seed=3)
    assert (again.labels == many.labels).all()


def test_threads_change_nothing():
    matrix = distances(700, 2)
    one_by_one = [k_medoids(matrix, 5, starts=s, seed=4).loss for s in (1, 2, 3)]
    assert one_by_one == sorted(one_by_one, reverse=True)
    assert k_medoids(matrix, 5, starts=3, seed=4).loss == one_by_one[-1]


def test_the_whole_matrix_as_medoids_and_copies_of_a_row():
    assert k_medoids(distances(5, 0), 5).loss == 0
    assert k_medoids(np.zeros((6, 6)), 3).loss == 0
    assert len(set(k_medoids(np.zeros((6, 6)), 3, start="central").medoids)) == 3


@pytest.mark.parametrize(
    ("matrix", "k", "options", "message"),
    [
        (np.zeros((3, 2)), 1, {}, "square"),
        (np.full((3, 3), np.nan), 1, {}, "finite"),
        (np.zeros((3, 3)), 4, {}, "between 1 and the 3 rows"),
        (np.zeros((3, 3)), 0, {}, "between 1"),
        (np.zeros((3, 3)), 1, {"starts": 0}, "starts"),
        (np.triu(np.ones((3, 3))), 1, {}, "symmetric"),
        (np.zeros((3, 3)), 1, {"method": "pam"}, "no such method"),
    ],
)
def test_refuses(matrix, k, options, message):
    with pytest.raises(ValueError, match=message):
        k_medoids(matrix, k, **options)


def test_rounding_on_one_side_only_ends_all_the_same():
    rng = np.random.default_rng(0)
    matrix = distances(40, 5)[np.ix_(np.arange(40) // 2, np.arange(40) // 2)]
    found = k_medoids(matrix * (1 + 1e-9 * rng.normal(size=matrix.shape)), 4)
    assert found.loss == pytest.approx(k_medoids(matrix, 4).loss, rel=0.2)
