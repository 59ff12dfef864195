"""Bandwidths without labels: those whose clusters lie apart, and which most other bandwidths find, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import rankdata

from stream_ccsd.clustering.agreement import adjusted_rand
from stream_ccsd.clustering.bandwidths import Bandwidths, DivergenceMatrices, bandwidth_grid
from stream_ccsd.clustering.geometry import Geometry
from stream_ccsd.clustering.medoids import k_medoids
from stream_ccsd.clustering.outputs import Output
from stream_ccsd.compiling import compiled
from stream_ccsd.divergence.weights import Weighting
from stream_ccsd.numeric import FloatArray, IntArray
from stream_ccsd.progress import Progress
from stream_ccsd.sampling import some_rows

# Outputs to choose among when nobody says: values alone cluster worse than slopes, or both, on most data sets.
DEFAULT_OUTPUTS: tuple[Output, ...] = ("slope", "both")

DEFAULT_GEOMETRY = Geometry()

# Agreement: what is in the series shows at many bandwidths, what is in a bandwidth at few. Silhouette: clusters lie
# apart; alone it often prefers a bandwidth that sees nothing but one odd group. Both: the sum of the two ranks.
Criterion = Literal["both", "agreement", "silhouette"]
CRITERIA: tuple[Criterion, ...] = ("both", "agreement", "silhouette")

# Scores equal to so many digits are equal: rounding is not to rank them.
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
    index with all others is highest in the mean, ``silhouette`` the one whose clusters lie apart the most, and ``both``
    the one with the highest sum of its ranks by the two.

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
    partitions, apart = [], []
    for done, point in enumerate(points, start=1):
        distances = geometry.of(matrices.at(point))
        partitions.append(k_medoids(distances, k, starts=starts, seed=seed).labels)
        apart.append(silhouette(distances, partitions[-1]))
        if progress:
            progress(done, len(points))
    agreement = mean_agreement(np.array(partitions))
    scores = {
        "agreement": agreement,
        "silhouette": np.array(apart),
        "both": rankdata(agreement.round(_DIGITS)) + rankdata(np.round(apart, _DIGITS)),
    }[criterion]
    best = int(np.argmax(scores))
    return Selected(points[best], float(agreement[best]), apart[best])


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
