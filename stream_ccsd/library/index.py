"""The exact J nearest library windows by final weight.

The weight of a library window is ``exp(-d^2 / 2 sigma_x^2)`` times its prior times a factor for each mismatch of
category and merchant. Rows are grouped by (category, merchant), so everything but the distance is one number a group:
groups are visited from the highest down, and the search ends where no further group can hold one of the J best.
Within a group, products of 16-bit integers give each weight up to a known error; only rows that could be among the J
best within that error are measured in full precision. The result is that of a full sort, whatever the path.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from stream_ccsd.library.windows import WindowTable
from stream_ccsd.numeric import AnyArray, FloatArray, read_only
from stream_ccsd.settings import Settings

# Rows of the quantised table are padded to whole vector registers.
_LANES = 16
# Quantised weights are sums in 32-bit floats: this, times the largest term, covers their rounding.
_ROUNDING = 1e-6
# A larger error than this (in nats) tells nothing apart: then every visited row is measured.
_USELESS = 1e6
_SMALL_GROUP = 64


class Index(NamedTuple):
    """Library windows sorted by group; plain arrays, as compiled code wants them."""

    z: AnyArray  # (n, K) float32
    quantised: AnyArray  # (n, K padded) int16: z in units of quantum
    half_square: AnyArray  # (n,) float32: |z|^2 / 2 of the quantised rows, in units of sigma_x^2
    y: FloatArray  # (n,), abs(Δz)
    regime: AnyArray  # (n,) int8
    start: AnyArray  # (g + 1,), first row of each group
    category: AnyArray  # (g,) uint32
    merchant: AnyArray  # (g,) uint32
    log_prior: FloatArray  # (g,)
    sigma_x: float
    quantum: float
    quantum_limit: int  # largest quantised value: sums of K products of two such numbers fit in 31 bits
    largest_norm: float  # of a quantised row
    largest_error: float  # |z - quantum * quantised| of a row
    log_rho_category: float
    log_rho_merchant: float
    neighbours: int


class Scratch(NamedTuple):
    """Room for one search: as long as the library, used again and again."""

    rows: AnyArray  # int64, the result
    log_weights: FloatArray  # the result
    approximate: AnyArray  # float32
    products: AnyArray  # int32

    @staticmethod
    def of_size(n: int) -> Scratch:
        """Room for a library of ``n`` windows."""
        return Scratch(np.empty(n, np.int64), np.empty(n), np.empty(n, np.float32), np.empty(n, np.int32))


def build_index(windows: WindowTable, settings: Settings, sigma_x: float) -> Index:
    """Sort the windows by (category, merchant), count the pairs, and quantise the rows."""
    # Within a group by norm: the nearest of most queries are among the shortest, and so lie together in memory.
    order = np.lexsort((np.sum(windows.z**2, axis=1), windows.merchants, windows.categories))
    category, merchant = windows.categories[order], windows.merchants[order]
    z = np.ascontiguousarray(windows.z[order], dtype=np.float32)
    n, k = z.shape
    new_group = np.ones(n, dtype=bool)
    if n:
        new_group[1:] = (category[1:] != category[:-1]) | (merchant[1:] != merchant[:-1])
    start = np.append(np.flatnonzero(new_group), n)
    frequency = np.diff(start)
    log_prior = -settings.rarity_beta * np.log(frequency + settings.rarity_alpha)
    limit = int(np.sqrt((2**31 - 1) / k))
    quantum = float(np.abs(z).max() / limit) if n and z.any() else 1.0
    quantised = np.zeros((n, -(-k // _LANES) * _LANES), np.int16)
    quantised[:, :k] = np.rint(z.astype(float) / quantum)
    restored = quantised[:, :k] * quantum
    square = np.sum(restored**2, axis=1)
    error = np.sqrt(np.sum((z - restored) ** 2, axis=1))
    with np.errstate(over="ignore"):  # infinite under an absurdly narrow bandwidth: then rows are measured in full
        half_square = (0.5 * square / sigma_x**2).astype(np.float32)
    index = Index(
        z=z,
        quantised=quantised,
        half_square=half_square,
        y=np.abs(windows.change[order]),
        regime=windows.regime[order],
        start=start.astype(np.int64),
        category=category[start[:-1]],
        merchant=merchant[start[:-1]],
        log_prior=log_prior if settings.rarity else np.zeros(len(frequency)),
        sigma_x=float(sigma_x),
        quantum=quantum,
        quantum_limit=limit,
        largest_norm=float(np.sqrt(square.max())) if n else 0.0,
        largest_error=float(error.max()) if n else 0.0,
        log_rho_category=float(np.log(settings.rho_category)) if settings.attenuation else 0.0,
        log_rho_merchant=float(np.log(settings.rho_merchant)) if settings.attenuation else 0.0,
        neighbours=int(min(settings.neighbours, n)),
    )
    return read_only(index)


@njit(cache=True, nogil=True)
def nearest(index: Index, query: FloatArray, category: int, merchant: int, scratch: Scratch) -> int:
    """Put the J heaviest library windows at the front of the scratch's rows and log weights; returns how many."""
    rows, log_weights = scratch.rows, scratch.log_weights
    wanted = index.neighbours
    if wanted == 0:
        return 0
    bias, order = _group_order(index, category, merchant)
    approximate, visited, margin = _scan(index, query, bias, order, wanted, scratch)
    cut = np.float32(-np.inf)
    if len(approximate) > wanted and margin < _USELESS:
        # At least J rows weigh this much less one margin; a row two margins below cannot be one of the J best.
        cut = np.float32(_cut(approximate, wanted) - 2.0 * margin)
    scale = -0.5 / index.sigma_x**2
    found = 0
    filled = 0
    for group in order[:visited]:
        shift = index.start[group] - filled
        last = index.start[group + 1] - shift
        before = found
        for position in range(filled, last):
            if not approximate[position] < cut:  # NaN, where a 32-bit float overflowed, is a candidate too
                rows[found] = position + shift
                found += 1
        for i in range(before, found):
            log_weights[i] = bias[group] + scale * square_distance(index.z[rows[i]], query)
        filled = last
    return _keep_largest(rows, log_weights, found, wanted)


@njit(cache=True, nogil=True)
def _group_order(index: Index, category: int, merchant: int) -> tuple[FloatArray, AnyArray]:
    """Log weight of each group at distance 0, and the groups from the highest down."""
    groups = len(index.log_prior)
    bias = np.empty(groups)
    for g in range(groups):
        bias[g] = index.log_prior[g]
        if index.category[g] != category:
            bias[g] += index.log_rho_category
        if index.merchant[g] != merchant:
            bias[g] += index.log_rho_merchant
    if groups > 128:
        return bias, np.argsort(-bias, kind="mergesort")
    order = np.empty(groups, np.int64)
    for g in range(groups):  # insertion sort: no allocation, and quickest for a few dozen groups
        place = g
        while place > 0 and bias[order[place - 1]] < bias[g]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = g
    return bias, order


@njit(cache=True, nogil=True)
def _scan(
    index: Index, query: FloatArray, bias: FloatArray, order: AnyArray, wanted: int, scratch: Scratch
) -> tuple[AnyArray, int, float]:
    """Approximate log weights of the rows of all groups that matter, the number of groups, and the largest error."""
    quantised = np.zeros(index.quantised.shape[1], np.int16)
    norm = error = 0.0
    for i in range(len(query)):
        value = min(max(np.rint(query[i] / index.quantum), -index.quantum_limit), index.quantum_limit)
        quantised[i] = np.int16(value)
        norm += query[i] * query[i]
        error += (query[i] - value * index.quantum) ** 2
    variance = index.sigma_x**2
    # |q.z - q'.z'| <= |q| |z - z'| + |z'| |q - q'|; the squared norm of a row is off by its own error, too.
    product_error = np.sqrt(norm) * index.largest_error + index.largest_norm * np.sqrt(error)
    square_error = index.largest_error * (index.largest_norm + 0.5 * index.largest_error)
    own = 0.5 * norm / variance
    size = np.abs(bias).max() + 2.0 * (own + 0.5 * index.largest_norm**2 / variance)
    margin = (product_error + square_error) / variance + _ROUNDING * size
    unit = np.float32(index.quantum**2 / variance)
    weights, products = scratch.approximate, scratch.products
    filled = 0
    visited = 0
    for group in order:
        first, last = index.start[group], index.start[group + 1]
        # Counting costs as much as weighing a few dozen rows: small groups are looked at in passing.
        due = filled >= wanted and (last - first > _SMALL_GROUP or visited % 8 == 0)
        if due and _count_from(weights[:filled], np.float32(bias[group] + margin)) >= wanted:
            break  # J rows are certain to be heavier than any row from here on
        offset = np.float32(bias[group] - own)
        _products(index.quantised[first:last], quantised, products)
        _weigh(products, index.half_square[first:last], unit, offset, weights[filled : filled + last - first])
        filled += last - first
        visited += 1
    return weights[:filled], visited, margin


@njit(cache=True, nogil=True)
def _products(table: AnyArray, query: AnyArray, out: AnyArray) -> None:
    """Integer dot products; a loop of nothing else, or the compiler does not see the one instruction for it."""
    for i in range(table.shape[0]):
        total = np.int32(0)
        for j in range(table.shape[1]):
            total += np.int32(table[i, j]) * np.int32(query[j])
        out[i] = total


@njit(cache=True, nogil=True)
def _weigh(products: AnyArray, half_square: AnyArray, unit: Any, offset: Any, out: AnyArray) -> None:
    for i in range(len(out)):
        out[i] = offset - half_square[i] + unit * np.float32(products[i])


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def square_distance(a: FloatArray, b: FloatArray) -> float:
    """Squared Euclidean distance of two vectors."""
    total = 0.0
    for i in range(len(b)):
        difference = a[i] - b[i]
        total += difference * difference
    return total


@njit(cache=True, nogil=True)
def _count_from(values: AnyArray, cut: Any) -> int:
    """How many values are at least the cut."""
    count = 0
    for i in range(len(values)):
        count += values[i] >= cut
    return count


@njit(cache=True, nogil=True, fastmath={"nnan", "nsz"})
def _range_of(values: AnyArray) -> tuple[float, float]:
    low, high = values[0], values[0]
    for i in range(len(values)):
        # min() and max() would care for NaN and hinder vector instructions.
        low = values[i] if values[i] < low else low
        high = values[i] if values[i] > high else high
    return low, high


@njit(cache=True, nogil=True)
def _cut(values: AnyArray, wanted: int) -> float:
    """A value that at least ``wanted`` of the values reach, and not many more: from a sample of them, then checked."""
    stride = max(1, len(values) // 512)
    sample = values[::stride].copy()
    low, high = _range_of(sample)
    aim, spread = wanted / stride, np.sqrt(wanted / stride)
    while stride > 1 and aim + spread < len(sample):
        cut = _bisect(sample, low, high, int(aim + spread))
        if _count_from(values, cut) >= wanted:
            return cut
        spread *= 2.0
    low, high = _range_of(values)
    return _bisect(values, low, high, wanted)


@njit(cache=True, nogil=True)
def _bisect(values: AnyArray, low: float, high: float, wanted: int) -> float:
    """Between ``low``, which enough values reach, and ``high``, the place where just enough do."""
    if _count_from(values, high) >= wanted:
        return high
    while True:
        middle = values.dtype.type(0.5 * (low + high))
        if not low < middle < high:
            return low
        count = _count_from(values, middle)
        if count < wanted:
            high = middle
        else:
            low = middle
            if count == wanted:
                return low


@njit(cache=True, nogil=True)
def _keep_largest(rows: AnyArray, log_weights: FloatArray, found: int, wanted: int) -> int:
    """Leave the ``wanted`` heaviest, in their order; of equal ones the earlier stay."""
    if found <= wanted:
        return found
    low, high = _range_of(log_weights[:found])
    cut = _bisect(log_weights[:found], low, high, wanted)
    surplus = _count_from(log_weights[:found], cut) - wanted
    if surplus > 0:  # the lightest that reach the cut are equal
        lightest = np.inf
        for i in range(found):
            if log_weights[i] >= cut:
                lightest = min(lightest, log_weights[i])
        for i in range(found - 1, -1, -1):
            if surplus > 0 and log_weights[i] == lightest:
                log_weights[i] = -np.inf
                surplus -= 1
    kept = 0
    for i in range(found):
        if log_weights[i] >= cut:
            rows[kept], log_weights[kept] = rows[i], log_weights[i]
            kept += 1
    return kept
