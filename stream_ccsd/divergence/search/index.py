"""The exact J nearest library windows by final weight.

The weight of a library window is ``exp(-d^2 / 2 sigma_x^2)`` times its prior, times a factor for each mismatch of
category and merchant. Rows are grouped by (category, merchant), so that everything but the distance is one number a
group, its bias. Groups are visited from the highest bias down, in orders that were made before any query (``order``).
The search ends where no later window can be one of the J best. Queries of one pair share their orders, so several of
them use each tile of the library while it is in the cache. The result is that of a full sort, whatever the path: of
equal weights the first rows, in the order of rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stream_ccsd.divergence.search.order import OTHER_MERCHANT, SearchOrder, build_search_order, start_walk, step_walk
from stream_ccsd.divergence.search.simd import TOGETHER, WIDTH, multiply
from stream_ccsd.divergence.search.top_k import count_from, top_k
from stream_ccsd.divergence.search.windows import WindowTable
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, read_only
from stream_ccsd.numerics.compiling import compiled, inner
from stream_ccsd.settings import Settings

QUERIES = 2 * TOGETHER
"""The most queries of one search: their results together still fit into a core's own cache."""
# Rows whose products are taken at once.
_ROWS = 512
NONE = np.int64(0)
"""Where counting begins: of a plain 0 the compiler would make a type of its own, and compile callees once more."""
SOME = 512
"""Rows after which it is asked again whether those to come can matter; always where they have a lower bias."""
# A weight is a difference of large numbers; where their rounding could be more than this, distances are taken directly.
_ROUNDING = 1e-11


class Index(NamedTuple):
    """Library windows sorted by group; plain arrays, as compiled code wants them."""

    z: AnyArray  # (n, K) float32
    y: FloatArray  # (n,), abs(Δz)
    regime: AnyArray  # (n,) int8
    start: AnyArray  # (g + 1,), first row of each group
    category: AnyArray  # (g,) uint32
    merchant: AnyArray  # (g,) uint32
    log_prior: FloatArray  # (g,)
    sigma_x: float
    log_rho_category: float
    log_rho_merchant: float
    neighbours: int
    blocks: SearchOrder  # follows from the others


class Scratch(NamedTuple):
    """Working memory of one search: as long as the library, used again and again."""

    rows: AnyArray  # int64, the result of one query
    log_weights: FloatArray  # the result of one query
    weights: FloatArray  # (QUERIES, n), of all rows that were visited, a row a query
    pieces: AnyArray  # int64, (first row, last row, place among the weights) of each
    products: FloatArray  # (TOGETHER, rows that are taken at once)
    queries: FloatArray  # (QUERIES, K), where several are searched together

    @staticmethod
    def of(index: Index) -> Scratch:
        """Working memory for searches in that library."""
        n, k = index.z.shape
        return Scratch(
            np.empty(n, np.int64),
            np.empty(n),
            np.empty((QUERIES, n)),
            np.empty((n, 3), np.int64),
            np.empty((TOGETHER, _ROWS + (TOGETHER + 1) * WIDTH)),
            np.empty((QUERIES, k)),
        )


def build_index(windows: WindowTable, settings: Settings, sigma_x: float) -> Index:
    """Sort the windows by (category, merchant) and count the pairs."""
    # Within a group by norm: the nearest of most queries are among the shortest, and so lie together in memory.
    order = np.lexsort((np.sum(windows.z**2, axis=1), windows.merchants, windows.categories))
    category, merchant = windows.categories[order], windows.merchants[order]
    z = np.ascontiguousarray(windows.z[order], dtype=np.float32)
    n = len(z)
    new_group = np.ones(n, dtype=bool)
    if n:
        new_group[1:] = (category[1:] != category[:-1]) | (merchant[1:] != merchant[:-1])
    start = np.append(np.flatnonzero(new_group), n)
    frequency = np.diff(start)
    log_prior = -settings.rarity_beta * np.log(frequency + settings.rarity_alpha)
    return complete_index(
        z=z,
        y=np.abs(windows.change[order]),
        regime=windows.regime[order],
        start=start.astype(np.int64),
        category=category[start[:-1]],
        merchant=merchant[start[:-1]],
        log_prior=log_prior if settings.rarity else np.zeros(len(frequency)),
        sigma_x=float(sigma_x),
        log_rho_category=float(np.log(settings.rho_category)) if settings.attenuation else 0.0,
        log_rho_merchant=float(np.log(settings.rho_merchant)) if settings.attenuation else 0.0,
        neighbours=int(min(settings.neighbours, n)),
    )


def complete_index(**stored: Any) -> Index:
    """An index from all that a model's files hold of it: the rest follows."""
    names = ("z", "sigma_x", "start", "category", "merchant", "log_prior", "log_rho_category", "log_rho_merchant")
    return read_only(Index(**stored, blocks=build_search_order(**{name: stored[name] for name in names})))


@compiled()
def nearest(index: Index, query: FloatArray, category: int, merchant: int, scratch: Scratch) -> Any:
    """Put the top J library windows at the front of the scratch's rows and log weights; returns how many."""
    scratch.queries[0] = query
    filled, count = np.empty(1, np.int64), np.empty(1, np.int64)
    weigh(index, scratch.queries[:1], category, merchant, scratch, filled, count)
    return keep_top_k(index, scratch, 0, filled[0], scratch.pieces[: count[0]])


@inner()
def keep_top_k(index: Index, scratch: Scratch, query: int, filled: int, pieces: AnyArray) -> Any:
    """Of all windows weighted for one query, leave the top J in the scratch; returns how many."""
    weights = scratch.weights[query, :filled]
    return top_k(weights, pieces, index.neighbours, scratch.rows, scratch.log_weights)


@inner()
def weigh(
    index: Index,
    queries: FloatArray,
    category: int,
    merchant: int,
    scratch: Scratch,
    filled: AnyArray,
    count: AnyArray,
) -> None:
    """Log weights of all rows that matter to some queries of one pair: how many of each query, in how many pieces."""
    blocks, wanted, pieces = index.blocks, index.neighbours, scratch.pieces
    left = len(queries)
    for i in range(left):
        filled[i] = count[i] = 0
    if wanted == 0:
        return
    own, active = half_squares(index, queries), np.arange(left)
    walk = start_walk(blocks, index.merchant, category, merchant)
    placed = noted = looked_at = NONE
    looked_for = -1
    while left > 0:
        kind, item, rank = step_walk(blocks, walk)
        if kind < 0:
            break
        if placed >= wanted and (rank != looked_for or placed - looked_at >= SOME):
            looked_for, looked_at = rank, placed
            left = still_active(scratch.weights, placed, blocks.bias[rank], wanted, active[:left])
        new = noted
        if kind < OTHER_MERCHANT:
            noted = _note(pieces, noted, index.start[item], index.start[item + 1])
        else:
            noted = _note_block(index, item, merchant, pieces, noted)
        for i in active[:left]:
            count[i] = noted
        for i in range(new, noted):
            pieces[i, 2] = placed
            first, last = pieces[i, 0], pieces[i, 1]
            weigh_rows(index, queries, own, active[:left], first, last, blocks.offset[kind], placed, scratch)
            placed += last - first
    for i in range(len(queries)):
        if count[i] > 0:
            filled[i] = pieces[count[i] - 1, 2] + pieces[count[i] - 1, 1] - pieces[count[i] - 1, 0]


@inner()
def half_squares(index: Index, queries: FloatArray) -> FloatArray:
    """The part of half a square distance that comes from the query alone, in units of sigma_x^2."""
    halves = np.empty(len(queries))
    for i in range(len(queries)):
        halves[i] = 0.5 * np.sum(queries[i] * queries[i]) / index.sigma_x**2
    return halves


@inner()
def still_active(weights: FloatArray, placed: int, bias: float, wanted: int, active: AnyArray) -> int:
    """Leave the queries for which J rows are not yet certain to be heavier than any with this bias; how many."""
    left = 0
    for query in active:
        if count_from(weights[query, :placed], bias + _ROUNDING) < wanted:
            active[left] = query
            left += 1
    return left


@inner()
def _note_block(index: Index, block: int, merchant: int, pieces: AnyArray, count: int) -> int:
    """Write down the rows of a block, but for those at the query's merchant, whose turn is in another order."""
    groups = index.blocks.first
    first = index.start[groups[block]]
    for group in range(groups[block], groups[block + 1]):
        if index.merchant[group] == merchant:
            count = _note(pieces, count, first, index.start[group])
            first = index.start[group + 1]
    return _note(pieces, count, first, index.start[groups[block + 1]])


@inner()
def _note(pieces: AnyArray, count: int, first: int, last: int) -> int:
    """Write down a run of rows that are all of one kind, if it is one; returns how many there are then."""
    if first == last:
        return count
    pieces[count, 0], pieces[count, 1] = first, last
    return count + 1


@inner()
def weigh_rows(
    index: Index,
    queries: FloatArray,
    own: FloatArray,
    active: AnyArray,
    first: int,
    last: int,
    offset: float,
    place: int,
    scratch: Scratch,
) -> None:
    """Log weights of rows of one kind, from a place on, of the queries that still need them."""
    unit = 1.0 / index.sigma_x**2
    # Four queries at once are four that follow each other, so some are weighted that no longer need it.
    together = len(active) >= TOGETHER
    step = TOGETHER if together else 1
    at = 0
    while at < len(active):
        query = active[at] // step * step
        while at < len(active) and active[at] < query + step:
            at += 1
        size = min(step, len(queries) - query)
        for start in range(first, last, _ROWS):
            end = min(start + _ROWS, last)
            tile = start // WIDTH
            if size == TOGETHER:
                multiply(index.blocks.tiles, tile, (end - 1) // WIDTH + 1, queries, query, TOGETHER, scratch.products)
            for c in range(size):
                products = scratch.products[c]
                if size < TOGETHER:
                    products = scratch.products[0]
                    multiply(index.blocks.tiles, tile, (end - 1) // WIDTH + 1, queries, query + c, 1, scratch.products)
                out = scratch.weights[query + c, place + start - first : place + end - first]
                shift = start - tile * WIDTH
                if len(queries[query + c]) * 2.0**-52 * (index.blocks.largest + own[query + c]) < _ROUNDING:
                    base = index.blocks.base[start:end]
                    _add_up(products[shift : shift + end - start], base, unit, offset - own[query + c], out)
                else:
                    _measure(index, queries[query + c], start, offset, out)


@inner(fastmath={"contract"})
def _add_up(products: FloatArray, base: FloatArray, unit: float, offset: float, out: FloatArray) -> None:
    for i in range(len(out)):
        out[i] = offset + base[i] + unit * products[i]


@inner()
def _measure(index: Index, query: FloatArray, first: int, offset: float, out: FloatArray) -> None:
    """The same from differences, for bandwidths so narrow that products are all rounding."""
    scale = -0.5 / index.sigma_x**2
    for i in range(len(out)):
        prior = index.log_prior[index.blocks.group[first + i]]
        out[i] = prior + offset + scale * square_distance(index.z[first + i], query)


@inner(fastmath={"reassoc", "contract", "nsz"})
def square_distance(a: FloatArray, b: FloatArray) -> float:
    """Squared Euclidean distance of two vectors."""
    total = 0.0
    for i in range(len(b)):
        difference = a[i] - b[i]
        total += difference * difference
    return total
