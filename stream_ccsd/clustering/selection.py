"""Bandwidths without labels: those whose clusters lie apart the most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream_ccsd.clustering.bandwidths import Bandwidths, DivergenceMatrices, bandwidth_grid
from stream_ccsd.clustering.medoids import k_medoids
from stream_ccsd.clustering.outputs import Output
from stream_ccsd.compiling import compiled
from stream_ccsd.divergence.weights import Weighting
from stream_ccsd.numeric import FloatArray, IntArray
from stream_ccsd.progress import Progress
from stream_ccsd.sampling import some_rows

# Outputs to choose among when nobody says: values alone cluster worse than slopes, or both, on most data sets.
DEFAULT_OUTPUTS: tuple[Output, ...] = ("slope", "both")


@dataclass(frozen=True)
class Selected:
    """The bandwidths of the highest mean silhouette, and that silhouette."""

    bandwidths: Bandwidths
    silhouette: float


def select_bandwidths(
    series: FloatArray,
    k: int,
    *,
    outputs: Sequence[Output] = DEFAULT_OUTPUTS,
    weighting: Weighting = "one-sided",
    grid: Sequence[Bandwidths] | None = None,
    starts: int = 3,
    sample: int = 500,
    seed: int = 0,
    progress: Progress | None = None,
) -> Selected:
    """Try the grid on the series, or on a random ``sample`` of them; the first of equals is kept.

    >>> t = np.linspace(0, 6, 50)
    >>> series = np.vstack([np.sin(t + 0.1 * i) for i in range(5)] + [np.sin(2 * t + 0.1 * i) for i in range(5)])
    >>> select_bandwidths(series, 2).silhouette > 0.8
    True
    """
    sample = max(sample, 3 * k)
    if len(series) > sample:
        series = series[some_rows(len(series), sample, seed)]
    points = bandwidth_grid(series, outputs) if grid is None else grid
    if not points:
        raise ValueError("there are no bandwidths to choose among")
    matrices = DivergenceMatrices(series, weighting=weighting)
    best: Selected | None = None
    for done, point in enumerate(points, start=1):
        distances = matrices.at(point)
        clusters = k_medoids(distances, k, starts=starts, seed=seed)
        score = silhouette(distances, clusters.labels)
        if best is None or score > best.silhouette:
            best = Selected(point, score)
        if progress:
            progress(done, len(points))
    assert best is not None
    return best


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
