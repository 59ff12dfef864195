"""How divergences become the distances that k-medoids adds up: their roots, along neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from stream_ccsd.numeric import FloatArray, IntArray

# Nearest others that a series is joined to; fewer leave many series alone, more join kinds with each other.
NEIGHBOURS = 5


@dataclass(frozen=True)
class Geometry:
    """Whether distances are the square roots of divergences, and along how many nearest neighbours they are measured.

    Near 0 a divergence is half the square of an angle between two laws: summed as it is, few far series decide where a
    medoid lies. And two series of one kind may be far apart but joined by others, each close to the next: the same
    shape a little later each time. Without ``neighbours`` distances are straight.
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

        ``divergences`` is ``(rows, landmarks)``. A landmark's own row gives what is known of it.
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

    Rows that no path joins are further apart than any that one joins: by the longest path, and their own distance.

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
    apart = np.isinf(paths)
    if apart.any():
        paths[apart] = paths[~apart].max() + np.maximum(distances, distances.T)[apart]
    np.fill_diagonal(paths, 0.0)
    return np.minimum(paths, paths.T)  # a path's sum from its other end may differ in the last digit


def nearest_columns(distances: FloatArray, count: int) -> IntArray:
    """The nearest so many columns of each row, in no order."""
    count = min(count, distances.shape[1])
    return np.argpartition(distances, count - 1, axis=1)[:, :count]
