"""The pairwise form, timed: against the direct double sum and DTW on the same series, and in clusters of many series.

For many series it measures how long their clusters take, in how much memory, and what is lost by not comparing all
pairs.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from offline.clustering.data import load_ucr
from offline.clustering.metrics import mutual_information
from offline.peers import peak_rss_mb, peer
from stream_ccsd.clustering.bandwidths import standardised
from stream_ccsd.clustering.selection import select_bandwidths
from stream_ccsd.clustering.series import Measure, cluster_series
from stream_ccsd.divergence import (
    OutputKernel,
    Sample,
    conditional_divergence,
    iqr_bandwidth,
    pair_weights,
    pairwise_divergence,
    time_bandwidth,
)
from stream_ccsd.files import Progress
from stream_ccsd.numerics.arrays import FloatArray, IntArray

# The slow forms are timed on this many pairs (at most all of them) and scaled.
_DIRECT_PAIRS = 4000
_DTW_SERIES = 300
_CHECKED_PAIRS = 50
_RIDGE = 1e-10
_TAU = 0.05


def measure_pairwise(sizes: list[int], length: int, seed: int, data: Path | None, progress: Progress) -> dict[str, Any]:
    """Seconds, memory and error for each size; sorted, so that the memory peak is that of the fast form."""
    dtw = peer("dtaidistance.dtw")
    problems = [("generated", _generated(n, length, seed)) for n in sorted(sizes)]
    if data is not None and (data / "ucr" / "ECG5000").is_dir():
        problems.append(("ECG5000", standardised(load_ucr(data / "ucr", "ECG5000", "TEST").series)))
    steps, done = 3 * len(problems), 0

    def step() -> None:
        nonlocal done
        done += 1
        progress(done, steps)

    pairwise_divergence(problems[0][1][:3], tau=2.0)  # compile outside the clock
    rows = []
    for source, series in problems:
        rows.append({"series": len(series), "length": series.shape[1], "source": source, **_fast(series, seed)})
        step()
    for row, (_, series) in zip(rows, problems, strict=True):
        row.update(_direct(series, row["sigma"], seed))
        step()
        row.update(_dtw(dtw, series))
        step()
    return {"threads": os.cpu_count(), "tau": _TAU, "sizes": rows}


def _generated(n: int, length: int, seed: int) -> FloatArray:
    return standardised(np.random.default_rng(seed).normal(size=(n, length)).cumsum(axis=1))


def _fast(series: FloatArray, seed: int) -> dict[str, Any]:
    tau, sigma = time_bandwidth(_TAU, series.shape[1]), iqr_bandwidth(series)
    start = time.perf_counter()
    matrix = pairwise_divergence(series, tau=tau, sigma=sigma, ridge=_RIDGE)
    seconds = time.perf_counter() - start
    memory = peak_rss_mb()
    times, rng = np.arange(series.shape[1], dtype=float), np.random.default_rng(seed)
    error = 0.0
    for i, j in rng.integers(0, len(series), (_CHECKED_PAIRS, 2)):
        p, q = Sample.of(times, series[i]), Sample.of(times, series[j])
        exact = conditional_divergence(p, q, tau=tau, kernel=OutputKernel(sigma), ridge=_RIDGE)
        error = max(error, abs(exact - float(matrix[i, j])))
    return {"sigma": sigma, "fast_s": seconds, "peak_mb": memory, "max_abs_error": error}


def _direct(series: FloatArray, sigma: float, seed: int) -> dict[str, Any]:
    """One Gram term a pair by plain numpy, on all cores, with the weights prepared beforehand."""
    n, length = series.shape
    times = np.arange(length, dtype=float)[:, None]
    weights = pair_weights(times, times, time_bandwidth(_TAU, length), "two-sided", times)
    pairs = n * (n + 1) // 2
    sample = np.random.default_rng(seed).integers(0, n, (min(pairs, _DIRECT_PAIRS), 2))

    def term(pair: FloatArray) -> float:
        difference = series[pair[0]][:, None] - series[pair[1]][None, :]
        return float(np.sum(weights * np.exp(-0.5 * (difference / sigma) ** 2)))

    start = time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(term, sample, chunksize=64))
    seconds = time.perf_counter() - start
    return {"direct_s": seconds * pairs / len(sample), "direct_pairs": len(sample)}


def _dtw(dtw: Any, series: FloatArray) -> dict[str, Any]:
    """Full-window DTW by dtaidistance's C code on all cores, on the first series only, scaled by pairs."""
    n = len(series)
    part = np.ascontiguousarray(series[:_DTW_SERIES])
    start = time.perf_counter()
    dtw.distance_matrix_fast(part, compact=True, parallel=True)
    seconds = time.perf_counter() - start
    measured = len(part) * (len(part) - 1) // 2
    return {"dtw_s": seconds * (n * (n - 1) // 2) / measured, "dtw_pairs": measured}


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
