"""Many series: how long their clusters take, in how much memory, and what is lost by not comparing all pairs."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import numpy as np

from offline.bench.peers import peak_rss_mb
from offline.clustering.metrics import mutual_information
from stream_ccsd.clustering.outputs import standardised
from stream_ccsd.clustering.selection import select_bandwidths
from stream_ccsd.clustering.series import Measure, cluster_series
from stream_ccsd.numeric import FloatArray, IntArray
from stream_ccsd.progress import Progress

_STARTS = 10


def measure_clusters(
    series: int, compared: int, length: int, clusters: int, seed: int, choosing: Progress, clustering: Progress
) -> dict[str, Any]:
    """Seconds and memory for ``series`` of them; of the first ``compared``, samples beside all pairs."""
    warm, _ = generated(4 * clusters, length, clusters, seed)
    select_bandwidths(warm, clusters)  # compile outside the clock
    table, kinds = generated(series, length, clusters, seed)
    started = time.perf_counter()
    chosen = select_bandwidths(table, clusters, seed=seed, progress=choosing)
    chose = time.perf_counter() - started
    measure = Measure(chosen.bandwidths)
    found, _ = cluster_series(table, clusters, measure, starts=_STARTS, seed=seed, progress=clustering)
    seconds = time.perf_counter() - started
    peak = peak_rss_mb()  # before all pairs of fewer series are compared
    return {
        "threads": os.cpu_count(),
        "series": series,
        "length": length,
        "clusters": clusters,
        "output": chosen.bandwidths.output,
        "choosing_s": chose,
        "seconds": seconds,
        "peak_mb": peak,
        "matrix_mb": 8 * series**2 / 1e6,
        "nmi": mutual_information(kinds, found.labels),
        "compared": _beside_all_pairs(table[:compared], kinds[:compared], clusters, measure, seed),
    }


def _beside_all_pairs(table: FloatArray, kinds: IntArray, clusters: int, measure: Measure, seed: int) -> dict[str, Any]:
    """Fewer series: FasterPAM on all pairs, and on samples of a size that leaves most out.

    The losses are those of straight distances: along a sample's own neighbours every path is longer.
    """
    rows: dict[str, Any] = {"series": len(table)}
    straight = replace(measure, geometry=replace(measure.geometry, neighbours=None))
    for name, most in (("all_pairs", len(table)), ("samples", max(clusters, len(table) // 4))):
        how: dict[str, Any] = {"starts": _STARTS, "seed": seed, "most_at_once": most}
        started = time.perf_counter()
        found, _ = cluster_series(table, clusters, measure, **how)
        rows[f"{name}_s"] = time.perf_counter() - started
        rows[f"{name}_nmi"] = mutual_information(kinds, found.labels)
        rows[f"{name}_loss"] = cluster_series(table, clusters, straight, **how)[0].loss
    rows["loss_ratio"] = rows["samples_loss"] / rows["all_pairs_loss"] if rows["all_pairs_loss"] else 1.0
    return rows


def generated(n: int, length: int, kinds: int, seed: int) -> tuple[FloatArray, IntArray]:
    """Series of some kinds: a smooth shape a kind, its height, time and noise each series' own.

    >>> series, kind = generated(7, 30, 3, 0)
    >>> series.shape, kind.tolist()
    ((7, 30), [0, 1, 2, 0, 1, 2, 0])
    """
    rng = np.random.default_rng(seed)
    time_axis = np.linspace(0.0, 1.0, length)
    waves = np.arange(1, 7)
    strength = rng.normal(size=(kinds, len(waves), 2)) / waves[:, None]
    kind = np.arange(n) % kinds
    late = rng.normal(scale=0.02, size=(n, 1))
    series = 0.5 * rng.normal(size=(n, length))
    for wave, (sine, cosine) in zip(waves, strength[kind].transpose(1, 2, 0), strict=True):
        angle = 2 * np.pi * wave * (time_axis - late)
        series += sine[:, None] * np.sin(angle) + cosine[:, None] * np.cos(angle)
    return standardised(series), kind
