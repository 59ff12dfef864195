"""One search for queries that share a category but no merchant.

Where there are many merchants, few queries of a batch share one, and each alone would read the whole library from
memory. For all of them the same windows match in category or in nothing, except for the few at each query's own
merchant. So they go through each tile of the library together, as if none had a merchant there. Each query then
weights the windows at its own merchant again. The result is the same, to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stream_ccsd.divergence.search.index import (
    NONE,
    SOME,
    Index,
    Scratch,
    half_squares,
    keep_top_k,
    still_active,
    weigh_rows,
)
from stream_ccsd.divergence.search.order import OTHER_CATEGORY, start_walk, step_walk
from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.numerics.compiling import inner
from stream_ccsd.numerics.vector import first_from

# Windows at a merchant up to which it pays to weight them twice.
_FEW = 256


@inner()
def has_few(index: Index, merchant: int) -> bool:
    """Whether a merchant has so few windows that a query there may be searched for with those of others."""
    merchants = index.blocks.merchants
    at, rows = first_from(merchants, 0, len(merchants), merchant), 0
    while at < len(merchants) and merchants[at] == merchant and rows <= _FEW:
        group = index.blocks.at_merchant[at]
        rows += index.start[group + 1] - index.start[group]
        at += 1
    return rows <= _FEW


@inner()
def weigh_together(
    index: Index, queries: FloatArray, category: int, scratch: Scratch, count: AnyArray, visited: AnyArray
) -> FloatArray:
    """Log weights of all rows that matter to queries of one category, as if none were at a query's merchant.

    ``count`` says how many pieces there are of each, ``visited`` which is that of a block, -1 for none. Returns the
    half squares of the queries.
    """
    blocks, wanted, pieces = index.blocks, index.neighbours, scratch.pieces
    left = len(queries)
    own, active = half_squares(index, queries), np.arange(left)
    for i in range(left):
        count[i] = 0
    for block in range(len(visited)):
        visited[block] = -1
    walk = start_walk(blocks, index.merchant, category, np.uint32(0))
    for kind in (0, OTHER_CATEGORY):
        walk.end[kind] = walk.next[kind]
    placed = noted = looked_at = NONE
    looked_for = -1
    while left > 0 and wanted > 0:
        kind, block, rank = step_walk(blocks, walk)
        if kind < 0:
            break
        if placed >= wanted and (rank != looked_for or placed - looked_at >= SOME):
            looked_for, looked_at = rank, placed
            left = still_active(scratch.weights, placed, blocks.bias[rank], wanted, active[:left])
        first, last = index.start[blocks.first[block]], index.start[blocks.first[block + 1]]
        weigh_rows(index, queries, own, active[:left], first, last, blocks.offset[kind], placed, scratch)
        pieces[noted, 0], pieces[noted, 1], pieces[noted, 2] = first, last, placed
        visited[block] = noted
        noted, placed = noted + 1, placed + last - first
        for i in active[:left]:
            count[i] = noted
    return own


@inner()
def find_top_k(
    index: Index,
    queries: FloatArray,
    query: int,
    category: int,
    merchant: int,
    own: FloatArray,
    count: int,
    visited: AnyArray,
    scratch: Scratch,
) -> Any:
    """Weight what is at the query's own merchant, and leave the top J of all in the scratch; returns how many."""
    blocks, merchants, only = index.blocks, index.blocks.merchants, np.empty(1, np.int64)
    only[0] = query
    begin = first_from(merchants, 0, len(merchants), merchant)
    end = first_from(merchants, begin, len(merchants), merchant + 1)
    pieces = np.empty((count + end - begin, 3), np.int64)
    for piece in range(count):
        for i in range(3):
            pieces[piece, i] = scratch.pieces[piece, i]
    filled = pieces[count - 1, 2] + pieces[count - 1, 1] - pieces[count - 1, 0] if count > 0 else 0
    for at in range(begin, end):
        group = blocks.at_merchant[at]
        first, last = index.start[group], index.start[group + 1]
        piece = visited[first_from(blocks.first, 0, len(blocks.first), group + 1) - 1]
        if 0 <= piece < count:
            place = pieces[piece, 2] + first - pieces[piece, 0]
        else:
            place, filled = filled, filled + last - first
            pieces[count, 0], pieces[count, 1], pieces[count, 2] = first, last, place
            count += 1
        kind = 0 if index.category[group] == category else OTHER_CATEGORY
        weigh_rows(index, queries, own, only, first, last, blocks.offset[kind], place, scratch)
    return keep_top_k(index, scratch, query, filled, pieces[:count])
