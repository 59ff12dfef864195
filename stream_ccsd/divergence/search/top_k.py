"""The highest of many weights, in the order of their rows: the result of a full sort, without sorting."""

from __future__ import annotations

from typing import Any

import numpy as np

from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.numerics.compiling import inner
from stream_ccsd.numerics.vector import order_of


@inner()
def top_k(weights: FloatArray, pieces: AnyArray, wanted: int, rows: AnyArray, log_weights: FloatArray) -> Any:
    """Put the top J of the windows weighted for one query at the front of rows and log weights; returns how many.

    Pieces are runs of rows that do not overlap: first row, last row, and the place of the first one's weight.
    """
    cut = _cut(weights, wanted) if len(weights) > wanted else -np.inf
    found = np.uintp(0)
    for i in order_of(pieces[:, 0]):
        first, place = pieces[i, 0], pieces[i, 2]
        of_piece = weights[place : place + pieces[i, 1] - first]
        for j in range(len(of_piece)):
            # Written in any case, and counted if it is one: a branch that cannot be predicted costs more.
            rows[found], log_weights[found] = first + j, of_piece[j]
            found += np.uintp(of_piece[j] >= cut)
    return _keep_largest(rows, log_weights, np.intp(found), wanted)


@inner()
def count_from(values: AnyArray, cut: Any) -> int:
    """How many values are at least the cut."""
    count = 0
    for i in range(len(values)):
        count += values[i] >= cut
    return count


@inner(fastmath={"nnan", "nsz"})
def _range_of(values: AnyArray) -> tuple[float, float]:
    low, high = values[0], values[0]
    for i in range(len(values)):
        # min() and max() would care for NaN and hinder vector instructions.
        low = values[i] if values[i] < low else low
        high = values[i] if values[i] > high else high
    return low, high


@inner()
def _cut(values: AnyArray, wanted: int) -> float:
    """A value that at least ``wanted`` of the values reach, and not many more: from a sample of them, then checked."""
    stride = max(1, len(values) // 512)
    sample = values[::stride].copy()
    low, high = _range_of(sample)
    aim, spread = wanted / stride, np.sqrt(wanted / stride)
    while stride > 1 and aim + spread < len(sample):
        cut = _bisect(sample, low, high, int(aim + spread))
        if count_from(values, cut) >= wanted:
            return cut
        spread *= 2.0
    low, high = _range_of(values)
    return _bisect(values, low, high, wanted)


@inner()
def _bisect(values: AnyArray, low: float, high: float, wanted: int) -> float:
    """Between ``low``, which enough values reach, and ``high``, the place where just enough do."""
    if count_from(values, high) >= wanted:
        return high
    while True:
        middle = values.dtype.type(0.5 * (low + high))
        if not low < middle < high:
            return low
        count = count_from(values, middle)
        if count < wanted:
            high = middle
        else:
            low = middle
            if count == wanted:
                return low


@inner()
def _keep_largest(rows: AnyArray, log_weights: FloatArray, found: Any, wanted: int) -> Any:
    """Leave the ``wanted`` highest weights, in their order; of equal ones the earlier stay."""
    if found <= wanted:
        return found
    low, high = _range_of(log_weights[:found])
    cut = _bisect(log_weights[:found], low, high, wanted)
    surplus = count_from(log_weights[:found], cut) - wanted
    if surplus > 0:  # the lightest that reach the cut are equal
        lightest = np.inf
        for i in range(found):
            if log_weights[i] >= cut:
                lightest = min(lightest, log_weights[i])
        for i in range(found - 1, -1, -1):
            if surplus > 0 and log_weights[i] == lightest:
                log_weights[i] = -np.inf
                surplus -= 1
    kept = np.uintp(0)
    for i in range(found):
        rows[kept], log_weights[kept] = rows[i], log_weights[i]
        kept += np.uintp(log_weights[i] >= cut)
    # Where weights are all minus infinity, as many reach the cut as there are.
    return min(np.intp(kept), wanted)
