"""Bandwidths from data: medians and interquartile ranges over pairs, sampled where there are too many."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from stream_ccsd.numeric import BANDWIDTH_PAIRS, FloatArray, IntArray


def median_bandwidth(points: ArrayLike, *, pairs: int = BANDWIDTH_PAIRS, seed: int = 0) -> float:
    """Median Euclidean distance between two different points (the paper's rule for window vectors).

    Parameters
    ----------
    points
        A vector of numbers or a table of vectors; rows with a missing value are left out.
    pairs
        With more pairs than this, the median of a random sample of as many.
    seed
        Of that sample.

    Raises
    ------
    ValueError
        If fewer than two points are complete, or the median is 0 (more than half of all pairs are equal).

    >>> median_bandwidth([0.0, 1.0, 3.0])
    2.0
    """
    table = _complete_rows(points)
    i, j = _pairs(len(table), pairs, seed)
    return _positive(float(np.median(np.sqrt(np.sum((table[i] - table[j]) ** 2, axis=1)))), "median distance")


def iqr_bandwidth(values: ArrayLike, *, pairs: int = BANDWIDTH_PAIRS, seed: int = 0) -> float:
    """``IQR / 1.349`` of the signed differences of two values: a standard deviation that outliers cannot move.

    Arguments and errors as in :func:`median_bandwidth`.

    >>> rng = np.random.default_rng(0)
    >>> round(iqr_bandwidth(rng.normal(size=5000)), 1)  # differences of unit normals: sqrt(2)
    1.4
    """
    flat = _complete_rows(np.asarray(values, dtype=np.float64).ravel())[:, 0]
    i, j = _pairs(len(flat), pairs, seed)
    difference = flat[i] - flat[j]
    # Each unordered pair stands for both its signs, so the quartiles lie symmetrically around 0.
    low, high = np.percentile(np.concatenate([difference, -difference]), [25, 75])
    return _positive(float(high - low) / 1.349, "interquartile range")


def time_bandwidth(tau: float, length: int) -> float:
    """The paper's convention for the time kernel: ``tau <= 1`` is a share of the series' length.

    >>> time_bandwidth(0.05, 140), time_bandwidth(5, 140)
    (7.0, 5.0)
    """
    return float(tau * length if tau <= 1 else tau)


def _complete_rows(points: ArrayLike) -> FloatArray:
    table = np.asarray(points, dtype=np.float64)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2:
        raise ValueError(f"expected a vector or a table, got {table.ndim} dimensions")
    table = table[~np.isnan(table).any(axis=1)]
    if len(table) < 2:
        raise ValueError("a bandwidth needs at least two points without a missing value")
    if np.isinf(table).any():
        raise ValueError("a bandwidth needs finite values")
    return table


def _pairs(n: int, limit: int, seed: int) -> tuple[IntArray, IntArray]:
    if n * (n - 1) // 2 <= limit:
        i, j = np.triu_indices(n, k=1)
        return i.astype(np.int64), j.astype(np.int64)
    rng = np.random.default_rng(seed)
    i = rng.integers(0, n, size=limit)
    j = (i + rng.integers(1, n, size=limit)) % n
    return i, j


def _positive(value: float, what: str) -> float:
    if not value > 0:
        raise ValueError(f"the {what} is 0: more than half of the points are equal, so name a bandwidth yourself")
    return value
