"""Exponentials of many numbers at once, sorting and searching, for compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np

from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.numerics.compiling import compiled, inner

_LOG2_E = 1.4426950408889634
# log(2) in two parts, the first exact in its product with any exponent.
_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
# Below this the result would be subnormal; it becomes exp(-708) = 3e-308 instead.
_LOWEST = -708.0


@compiled()
def exp_of_nonpositive(x: FloatArray) -> None:
    """``exp`` in place, for numbers that are 0 or below, to one unit in the last place.

    The C library's goes one by one and took half the time of a score.

    ``x = k log 2 + r`` with ``|r| <= log(2) / 2``: a polynomial for ``exp(r)``, and ``2^k`` put together from its bits.

    >>> x = np.array([0.0, -1.0, -700.0])
    >>> exp_of_nonpositive(x)
    >>> bool(np.allclose(x, np.exp([0.0, -1.0, -700.0]), rtol=4e-16, atol=0.0))
    True
    """
    bits = np.empty(len(x), np.int64)
    power = bits.view(np.float64)
    for i in range(len(x)):
        value = x[i] if x[i] > _LOWEST else _LOWEST
        k = np.rint(value * _LOG2_E)
        r = (value - k * _LN2_HIGH) - k * _LN2_LOW
        high = 1 / 40320 + r * (1 / 362880 + r * (1 / 3628800 + r * (1 / 39916800 + r / 479001600)))
        low = 1 / 24 + r * (1 / 120 + r * (1 / 720 + r * (1 / 5040 + r * high)))
        x[i] = 1.0 + r * (1.0 + r * (0.5 + r * (1 / 6 + r * low)))
        bits[i] = (np.int64(k) + 1023) << 52
    for i in range(len(x)):
        x[i] *= power[i]


@inner()
def order_of(keys: AnyArray) -> AnyArray:
    """Places of the keys from the lowest up; equal ones in any order, always the same.

    Shell's sort: some hundred keys at the most, and numpy's sorts take the compiler seconds for each type of key.
    """
    order = np.arange(len(keys))
    gap = len(keys) // 2
    while gap > 0:
        for i in range(gap, len(keys)):
            chosen, j = order[i], i
            while j >= gap and keys[order[j - gap]] > keys[chosen]:
                order[j] = order[j - gap]
                j -= gap
            order[j] = chosen
        gap //= 2
    return order


@inner()
def first_from(values: AnyArray, low: int, high: int, wanted: Any) -> int:
    """Place of the first value that is not below the wanted one: numpy's search, without its care for NaN."""
    while low < high:
        middle = (low + high) // 2
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@compiled()
def find(keys: AnyArray, low: int, high: int, wanted: Any) -> int:
    """Place of a key among rising ones; -1 if it is not there."""
    place = first_from(keys, low, high, wanted)
    return place if place < high and keys[place] == wanted else -1
