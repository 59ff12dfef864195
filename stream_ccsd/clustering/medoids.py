"""k-medoids on a distance matrix: FasterPAM, and the alternating method of the paper's Table 1.

:class:`Geometry` turns divergences into the distances that k-medoids adds up: their square roots, or the lengths of
paths over nearest neighbours.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from stream_ccsd.numerics.arrays import FloatArray, IntArray
from stream_ccsd.numerics.compiling import compiled

Method = Literal["fasterpam", "alternating"]
Start = Literal["central", "random"]

# A swap must gain more than rounding, or two equally good medoids would take turns for ever.
_SMALLEST_GAIN = 1e-12

# Below this a start takes less time than handing it to a thread is worth.
_ROWS_WORTH_A_THREAD = 600


@dataclass(frozen=True, eq=False)
class Clustering:
    """``k`` medoids (rows of the matrix), the cluster of every row, and the summed distance to its medoid."""

    medoids: IntArray
    labels: IntArray
    loss: float


def k_medoids(
    distances: ArrayLike,
    k: int,
    *,
    method: Method = "fasterpam",
    start: Start = "random",
    starts: int = 1,
    seed: int = 0,
) -> Clustering:
    """The rows of a distance matrix around ``k`` of them.

    ``fasterpam`` swaps a medoid for any other row whenever that lowers the summed distance, until no swap does
    (Schubert and Rousseeuw, *Fast and eager k-medoids clustering*, 2021). ``alternating`` assigns rows and
    re-centres clusters in turns: cheaper, and it stops at poorer solutions.

    Parameters
    ----------
    distances
        Square and symmetric; entries may be below 0 (one-sided divergences) but must be finite.
    k
        How many clusters.
    method
        Which of the two.
    start
        ``random`` rows, or ``central``: the ``k`` rows of least total distance, the same every time.
    starts
        With random starts: how many; the best result is kept.
    seed
        Of the random starts.

    Raises
    ------
    ValueError
        If the matrix is not square, symmetric and finite, or ``k`` is not between 1 and its size.

    Examples
    --------
    >>> points = np.array([0.0, 0.1, 0.2, 5.0, 5.1, 5.3])
    >>> best = k_medoids(abs(points[:, None] - points), 2, starts=3)
    >>> sorted(points[best.medoids].tolist()), round(best.loss, 6)
    ([0.1, 5.1], 0.5)
    """
    matrix = np.ascontiguousarray(distances, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"expected a square matrix of distances, got shape {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise ValueError("the matrix of distances holds a value that is not finite")
    if not np.array_equal(matrix, matrix.T):
        if not np.allclose(matrix, matrix.T, atol=1e-6 * np.abs(matrix).max()):
            raise ValueError("the matrix of distances is not symmetric")
        matrix = (matrix + matrix.T) / 2  # rounding: the same distance must not have two values
    if method not in ("fasterpam", "alternating") or start not in ("random", "central"):
        raise ValueError(f"no such method or start: {method!r}, {start!r}")
    if not 1 <= k <= len(matrix):
        raise ValueError(f"k must lie between 1 and the {len(matrix)} rows, got {k}")
    if starts < 1:
        raise ValueError(f"starts must be at least 1, got {starts}")
    if start == "central":
        first = [np.argsort(matrix.sum(axis=1), kind="stable")[:k]]
    else:
        rng = np.random.default_rng(seed)
        first = [rng.permutation(len(matrix))[:k] for _ in range(starts)]
    run = _faster_pam if method == "fasterpam" else _alternating

    def from_start(medoids: IntArray) -> Clustering:
        return _assigned(matrix, run(matrix, medoids.astype(np.int64)))

    if len(first) == 1 or len(matrix) < _ROWS_WORTH_A_THREAD:
        clusterings = [from_start(medoids) for medoids in first]
    else:
        with ThreadPoolExecutor(cpu_count()) as pool:
            clusterings = list(pool.map(from_start, first))
    return min(clusterings, key=lambda clustering: clustering.loss)


def _assigned(matrix: FloatArray, medoids: IntArray) -> Clustering:
    to_medoids = matrix[:, medoids]
    labels = np.argmin(to_medoids, axis=1)
    return Clustering(medoids, labels, float(to_medoids[np.arange(len(matrix)), labels].sum()))


@compiled()
def _alternating(distances: FloatArray, start: IntArray) -> IntArray:
    """Assign every row to its nearest medoid, move each medoid to its cluster's middle, until nothing moves."""
    n, k = len(distances), len(start)
    medoids = start.copy()
    labels = np.empty(n, dtype=np.int64)
    members = np.empty(n, dtype=np.int64)
    is_medoid = np.zeros(n, dtype=np.bool_)
    is_medoid[medoids] = True
    # The loss falls in every round that moves a medoid; the bound only guards against rounding.
    for _ in range(1000):
        for o in range(n):
            labels[o] = np.argmin(distances[o][medoids])
        moved = False
        for slot in range(k):
            size = 0
            for o in range(n):
                if labels[o] == slot:
                    members[size] = o
                    size += 1
            best, best_sum = medoids[slot], np.inf
            for a in range(size):
                # A copy of this medoid may be another cluster's: it counts as a member, but no row is a medoid twice.
                if is_medoid[members[a]] and members[a] != medoids[slot]:
                    continue
                total = 0.0
                for b in range(size):
                    total += distances[members[a], members[b]]
                if total < best_sum:
                    best, best_sum = members[a], total
            if best != medoids[slot]:
                is_medoid[medoids[slot]], is_medoid[best] = False, True
                medoids[slot], moved = best, True
        if not moved:
            break
    return medoids


@compiled()
def _faster_pam(distances: FloatArray, start: IntArray) -> IntArray:
    """Eager swaps: every row in turn is tried against all medoids at once, in time linear in the rows."""
    n, k = len(distances), len(start)
    medoids = start.copy()
    near = np.zeros(n, dtype=np.int64)  # slot of the nearest medoid
    to_near, to_second = np.empty(n), np.empty(n)
    is_medoid = np.zeros(n, dtype=np.bool_)
    is_medoid[medoids] = True
    for o in range(n):
        _nearest_two(distances[o], medoids, o, near, to_near, to_second)
    removal = _removal_losses(k, near, to_near, to_second)
    change = np.empty(k)  # of the loss, if this slot's medoid made way for the candidate
    scale = np.abs(to_near).sum() + 1.0
    since_swap, candidate = 0, 0
    # Every swap lowers the loss, so it ends; the bound only guards against rounding.
    for _ in range(n * (100 + 10 * k)):
        if since_swap >= n:
            break
        if not is_medoid[candidate]:
            gain = 0.0  # what the candidate wins whichever medoid goes
            change[:] = removal
            column = distances[candidate]
            for o in range(n):
                d = column[o]
                if d < to_near[o]:
                    gain += d - to_near[o]
                    change[near[o]] += to_near[o] - to_second[o]
                elif d < to_second[o]:
                    change[near[o]] += d - to_second[o]
            slot = np.argmin(change) if k > 1 else 0
            # With one medoid there is no second: the losses are compared whole.
            total = change[slot] + gain if k > 1 else column.sum() - to_near.sum()
            if total < -_SMALLEST_GAIN * scale:
                is_medoid[medoids[slot]] = False
                is_medoid[candidate] = True
                medoids[slot] = candidate
                for o in range(n):
                    _nearest_two(distances[o], medoids, o, near, to_near, to_second)
                removal = _removal_losses(k, near, to_near, to_second)
                since_swap = 0
        since_swap += 1
        candidate = (candidate + 1) % n
    return medoids


@compiled()
def _nearest_two(
    row: FloatArray, medoids: IntArray, o: int, near: IntArray, to_near: FloatArray, to_second: FloatArray
) -> None:
    slot, first, second = 0, np.inf, np.inf
    for i in range(len(medoids)):
        d = row[medoids[i]]
        if d < first:
            slot, first, second = i, d, first
        elif d < second:
            second = d
    near[o], to_near[o], to_second[o] = slot, first, second


@compiled()
def _removal_losses(k: int, near: IntArray, to_near: FloatArray, to_second: FloatArray) -> FloatArray:
    losses = np.zeros(k)
    if k > 1:
        for o in range(len(near)):
            losses[near[o]] += to_second[o] - to_near[o]
    return losses


# Nearest others that a series is joined to; fewer leave many series alone, more join kinds with each other.
NEIGHBOURS = 5


@dataclass(frozen=True)
class Geometry:
    """Whether distances are the square roots of divergences, and along how many nearest neighbours they are measured.

    Near 0 a divergence is half the square of an angle between two distributions. Summed as it is, a few distant series
    decide where a medoid lies. Two series of one kind may be distant but joined by others, each close to the next: the
    same shape a little later each time. Without ``neighbours`` distances are straight.
    """

    root: bool = True
    neighbours: int | None = NEIGHBOURS

    def straight(self, divergences: FloatArray) -> FloatArray:
        """Divergences or, of what is above 0, their square roots."""
        return np.sqrt(np.maximum(divergences, 0.0)) if self.root else divergences

    def of(self, divergences: FloatArray) -> FloatArray:
        """Distances between all pairs, from their divergences."""
        straight = self.straight(divergences)
        return straight if self.neighbours is None else path_distances(straight, self.neighbours)

    def through(self, divergences: FloatArray, known: FloatArray) -> FloatArray:
        """Distances ``(rows, medoids)`` of new rows by way of landmarks, whose own are ``known``.

        ``divergences`` is ``(rows, landmarks)``. A landmark's own row gives its known distances.
        """
        straight = self.straight(divergences)
        nearest = nearest_columns(straight, self.neighbours or 1)
        steps = np.take_along_axis(straight, nearest, axis=1)
        ways: FloatArray = (steps[:, :, None] + known[nearest]).min(axis=1)
        return ways


# What Table 1 and the choice by labels add up: divergences as they are.
PLAIN = Geometry(root=False, neighbours=None)


def path_distances(distances: FloatArray, neighbours: int) -> FloatArray:
    """Lengths of the shortest paths over the graph that joins every row to its nearest others.

    Rows that no path joins are more distant than any that one joins: by the longest path, and their own distance.

    >>> line = np.array([0.0, 1.0, 2.0, 3.0, 7.0, 8.0])
    >>> path_distances(abs(line[:, None] - line), 1)[0]
    array([ 0.,  1.,  2.,  3., 10., 11.])
    """
    n = len(distances)
    nearest = nearest_columns(distances, min(neighbours, n - 1) + 1)  # a row itself is one of them
    rows = np.repeat(np.arange(n), nearest.shape[1])
    # An edge of length 0, between copies of a series, would be none: scipy takes zeros for what is not there.
    lengths = np.maximum(distances[rows, nearest.ravel()], np.finfo(float).tiny)
    graph = csr_matrix((lengths, (rows, nearest.ravel())), shape=(n, n))
    paths: FloatArray = dijkstra(graph.maximum(graph.T), directed=False)
    unreachable = np.isinf(paths)
    if unreachable.any():
        paths[unreachable] = paths[~unreachable].max() + np.maximum(distances, distances.T)[unreachable]
    np.fill_diagonal(paths, 0.0)
    return np.minimum(paths, paths.T)  # a path's sum from its other end may differ in the last digit


def nearest_columns(distances: FloatArray, count: int) -> IntArray:
    """The nearest so many columns of each row, in no order."""
    count = min(count, distances.shape[1])
    return np.argpartition(distances, count - 1, axis=1)[:, :count]
