"""The fast pairwise form against the direct double sum and against DTW, on the same series."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from offline.bench.peers import peak_rss_mb, peer
from offline.ucr import load_ucr
from stream_ccsd.clustering.outputs import standardised
from stream_ccsd.divergence import (
    OutputKernel,
    Sample,
    conditional_divergence,
    iqr_bandwidth,
    pair_weights,
    pairwise_divergence,
    time_bandwidth,
)
from stream_ccsd.numeric import FloatArray
from stream_ccsd.progress import Progress

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
