"""Bandwidths chosen without labels, by the clusters that they give.

The criteria are how far the clusters are separated (silhouette), and how well a partition agrees with those at all
other bandwidths (adjusted Rand index).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from stream_ccsd.clustering.bandwidths import Bandwidths, DivergenceMatrices, Output, bandwidth_grid
from stream_ccsd.clustering.medoids import Geometry, k_medoids
from stream_ccsd.divergence.kernels import Weighting
from stream_ccsd.files import Progress
from stream_ccsd.numerics.arrays import FloatArray, IntArray, some_rows
from stream_ccsd.numerics.compiling import compiled


def adjusted_rand(partitions: ArrayLike) -> FloatArray:
    """The adjusted Rand index (Hubert and Arabie) between all pairs of partitions, one a row of cluster numbers.

    1 is the same partition, 0 what chance gives; two partitions that separate no rows at all agree.

    >>> adjusted_rand([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]])
    array([[ 1. ,  1. , -0.5],
           [ 1. ,  1. , -0.5],
           [-0.5, -0.5,  1. ]])
    """
    table = np.asarray(partitions)
    count, n = table.shape
    k = int(table.max()) + 1
    # Sums of ones: exact in single precision for any number of rows that a partition is compared on.
    members = (table[:, None, :] == np.arange(k)[:, None]).reshape(count * k, n).astype(np.float32)
    together = np.empty((count, count))
    for row in range(count):  # all tables of one partition against the others at once; all of all would be too large
        counts = (members[row * k : (row + 1) * k] @ members.T).astype(np.float64)
        together[row] = (np.square(counts).reshape(k, count, k).sum(axis=(0, 2)) - n) / 2
    own = together.diagonal()
    chance = own[:, None] * own / max(n * (n - 1) / 2, 1.0)
    most = (own[:, None] + own) / 2
    same = most == chance
    index: FloatArray = np.where(same, 1.0, (together - chance) / np.where(same, 1.0, most - chance))
    return index


# Outputs to choose among by default: values alone cluster worse than slopes, or both, on most data sets.
DEFAULT_OUTPUTS: tuple[Output, ...] = ("slope", "both")

DEFAULT_GEOMETRY = Geometry()

# Agreement: what is in the series shows at many bandwidths, what is in a bandwidth at few. Silhouette: clusters are
# separated; alone it often prefers a bandwidth that sees nothing but one odd group. Both: the sum of the two ranks.
Criterion = Literal["both", "agreement", "silhouette"]
CRITERIA: tuple[Criterion, ...] = ("both", "agreement", "silhouette")

# Scores equal to so many digits are equal, because rounding must not rank them.
_DIGITS = 9


@dataclass(frozen=True)
class Selected:
    """The chosen bandwidths, their partition's mean agreement with those at all others, and its silhouette."""

    bandwidths: Bandwidths
    agreement: float
    silhouette: float


def select_bandwidths(
    series: FloatArray,
    k: int,
    *,
    outputs: Sequence[Output] = DEFAULT_OUTPUTS,
    weighting: Weighting = "one-sided",
    grid: Sequence[Bandwidths] | None = None,
    criterion: Criterion = "agreement",
    geometry: Geometry = DEFAULT_GEOMETRY,
    starts: int = 3,
    sample: int = 500,
    seed: int = 0,
    progress: Progress | None = None,
) -> Selected:
    """Try the grid on the series, or on a random ``sample`` of them; the first of equals is kept.

    Every point of the grid gives a partition into ``k`` clusters. ``agreement`` chooses the one whose adjusted Rand
    index with all others is highest in the mean, ``silhouette`` the one whose clusters are separated the most, and
    ``both`` the one with the highest sum of its ranks by the two.

    >>> t = np.linspace(0, 6, 50)
    >>> series = np.vstack([np.sin(t + 0.1 * i) for i in range(5)] + [np.sin(2 * t + 0.1 * i) for i in range(5)])
    >>> select_bandwidths(series, 2).agreement > 0.8
    True
    """
    if criterion not in CRITERIA:
        raise ValueError(f"criterion must be one of {', '.join(CRITERIA)}, got {criterion!r}")
    sample = max(sample, 3 * k)
    if len(series) > sample:
        series = series[some_rows(len(series), sample, seed)]
    points = bandwidth_grid(series, outputs) if grid is None else grid
    if not points:
        raise ValueError("there are no bandwidths to choose among")
    matrices = DivergenceMatrices(series, weighting=weighting)
    partitions, silhouettes = [], []
    for done, point in enumerate(points, start=1):
        distances = geometry.of(matrices.at(point))
        partitions.append(k_medoids(distances, k, starts=starts, seed=seed).labels)
        silhouettes.append(silhouette(distances, partitions[-1]))
        if progress:
            progress(done, len(points))
    agreement = mean_agreement(np.array(partitions))
    scores = {
        "agreement": agreement,
        "silhouette": np.array(silhouettes),
        "both": rankdata(agreement.round(_DIGITS)) + rankdata(np.round(silhouettes, _DIGITS)),
    }[criterion]
    best = int(np.argmax(scores))
    return Selected(points[best], float(agreement[best]), silhouettes[best])


def mean_agreement(partitions: IntArray) -> FloatArray:
    """Of each partition, a row, the mean adjusted Rand index with the others; 1 where there is no other.

    >>> mean_agreement(np.array([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]]))
    array([ 0.25,  0.25, -0.5 ])
    """
    others = len(partitions) - 1
    if not others:
        return np.ones(1)
    return (adjusted_rand(partitions).sum(axis=1) - 1.0) / others


def silhouette(distances: FloatArray, labels: IntArray) -> float:
    """Mean over rows of ``(b - a) / max(a, b)``: own cluster's mean distance ``a`` against the next one's ``b``.

    Rows alone in their cluster count 0, and so does everything when there is but one cluster. Distances below 0 count
    as 0.

    >>> points = np.array([0.0, 1.0, 10.0, 11.0])
    >>> round(silhouette(abs(points[:, None] - points), np.array([0, 0, 1, 1])), 4)
    0.8997
    """
    return float(_silhouette(np.ascontiguousarray(distances), labels, int(labels.max()) + 1))


@compiled()
def _silhouette(distances: FloatArray, labels: IntArray, k: int) -> float:
    n = len(labels)
    size = np.zeros(k)
    for o in range(n):
        size[labels[o]] += 1
    sums, total = np.empty(k), 0.0
    for o in range(n):
        own = labels[o]
        if size[own] < 2:
            continue
        sums[:] = 0.0
        for p in range(n):
            if p != o:
                sums[labels[p]] += max(distances[o, p], 0.0)
        a, b = sums[own] / (size[own] - 1), np.inf
        for c in range(k):
            if c != own and size[c] > 0:
                b = min(b, sums[c] / size[c])
        if np.isfinite(b) and max(a, b) > 0:
            total += (b - a) / max(a, b)
    return total / n
