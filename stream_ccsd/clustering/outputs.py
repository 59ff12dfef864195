"""What of a series is compared: its value, its slope, or both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from stream_ccsd.divergence.series import padded_rows
from stream_ccsd.numeric import FloatArray

Output = Literal["value", "slope", "both", "vector"]


def series_array(series: ArrayLike | Sequence[ArrayLike]) -> FloatArray:
    """Series of equal or unequal lengths as one array ``(n, T)``, NaN where a series has no value."""
    if isinstance(series, np.ndarray):
        table = np.asarray(series, dtype=np.float64)
    else:
        rows = [np.asarray(row, dtype=np.float64).ravel() for row in series]  # type: ignore[union-attr]
        table = padded_rows(rows) if rows else np.empty((0, 0))
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(f"expected series of one value a time, as an array (series, time), got shape {table.shape}")
    return table


def check_series(table: FloatArray) -> FloatArray:
    """The same, if each series can be compared; NaN is a value that is missing, and some may be.

    Raises
    ------
    ValueError
        If one has an infinite value or none at all; it is named by its place, from 0.
    """
    infinite = np.isinf(table).any(axis=1)
    if infinite.any():
        raise ValueError(f"series {int(np.argmax(infinite))} holds an infinite value: leave it out, or mark it missing")
    empty = np.isnan(table).all(axis=1)
    if empty.any():
        raise ValueError(f"series {int(np.argmax(empty))} has no value, only missing ones: leave it out")
    return table


def standardised(series: FloatArray) -> FloatArray:
    """Each series with mean 0 and deviation 1, missing values left out; a constant one becomes 0.

    >>> standardised(np.array([[1.0, 3.0, np.nan], [2.0, 2.0, 2.0]]))
    array([[-1.,  1., nan],
           [ 0.,  0.,  0.]])
    """
    seen = ~np.isnan(series)
    level = np.abs(np.where(seen, series, 0.0)).max(axis=1, keepdims=True)
    # By a power of two, which changes no digit: squares of tiny or huge values would be 0 or infinite.
    series = np.ldexp(series, -np.frexp(level)[1])
    level = np.abs(np.where(seen, series, 0.0)).max(axis=1, keepdims=True)
    count = np.maximum(seen.sum(axis=1, keepdims=True), 1)
    centred = series - np.where(seen, series, 0.0).sum(axis=1, keepdims=True) / count
    deviation = np.sqrt(np.square(np.where(seen, centred, 0.0)).sum(axis=1, keepdims=True) / count)
    # A constant series has a deviation of rounding only: dividing by it would blow rounding up to shapes.
    flat = deviation <= 1e-12 * np.maximum(level, np.finfo(float).tiny)
    return np.where(flat, centred * 0.0, centred / np.where(flat, 1.0, deviation))


def slope(series: FloatArray) -> FloatArray:
    """The change per time around each value, from its neighbours in time, standardised as values are.

    Across a gap the neighbours are further apart; a series of one value has slope 0.

    >>> slope(np.array([[0.0, 1.0, 2.0, np.nan, 2.0, 1.0]])).round(3)
    array([[ 0.931,  0.931,  0.543,    nan, -1.009, -1.397]])
    """
    if not np.isnan(series).any() and series.shape[1] > 1:
        return standardised(np.gradient(series, axis=1))
    slopes = np.full_like(series, np.nan)
    times = np.arange(series.shape[1], dtype=float)
    for row, seen, out in zip(series, ~np.isnan(series), slopes, strict=True):
        out[seen] = np.gradient(row[seen], times[seen]) if seen.sum() > 1 else 0.0
    return standardised(slopes)
