"""Second step of an event: the search for its neighbours in the library, and the divergence from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from stream_ccsd.divergence.search.by_category import find_top_k, has_few, weigh_together
from stream_ccsd.divergence.search.index import QUERIES, keep_top_k, weigh
from stream_ccsd.divergence.search.simd import TOGETHER
from stream_ccsd.divergence.window_score import LocalDensity, compare_densities, standardise, windows_before
from stream_ccsd.evidence.densities import pair_key
from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.numerics.compiling import compiled, inner
from stream_ccsd.numerics.vector import order_of
from stream_ccsd.scores import DIVERGENCE


@compiled()
def search(context: Any, count: int) -> None:
    """Find the neighbours of the first events of a block, after the first step."""
    library, pending = context.library, context.pending
    k, wanted = library.z.shape[1], library.neighbours
    pairs, places = np.empty(count, np.uint64), np.empty(count, np.int64)
    asking = 0
    for place in range(count):
        held = pending.held[place]
        pending.local[place] = windows_before(held, k, context.lags) if wanted > 0 else 0
        if pending.local[place] > 0:
            pairs[asking] = pair_key(pending.categories[place, held - 1], pending.merchants[place, held - 1])
            places[asking] = place
            asking += 1
    order = order_of(pairs[:asking])
    pairs, places = _ordered(pairs, order), _ordered(places, order)
    start = others = 0
    while start < asking:
        end = _run_of(pairs[:asking], start, False)
        merchant = pairs[start] & np.uint64(0xFFFFFFFF)
        if end - start < TOGETHER and has_few(library, merchant):  # later, with others of its category
            for i in range(start, end):
                pairs[others], places[others] = pairs[i], places[i]
                others += 1
        else:
            _search_pair(context, places[start:end])
        start = end
    start = 0
    while start < others:
        end = _run_of(pairs[:others], start, True)
        if end - start >= TOGETHER:
            _search_category(context, places[start:end])
        else:
            end = _run_of(pairs[:others], start, False)
            _search_pair(context, places[start:end])
        start = end


@inner()
def _ordered(values: AnyArray, order: AnyArray) -> AnyArray:
    ordered = np.empty(len(order), values.dtype)
    for i in range(len(order)):
        ordered[i] = values[order[i]]
    return ordered


@inner()
def _run_of(pairs: AnyArray, start: int, category_only: bool) -> int:
    """Where the events end that are searched for together, by their pairs or categories."""
    shift = np.uint64(32 if category_only else 0)
    end = start + 1
    while end < len(pairs) and end - start < QUERIES and pairs[end] >> shift == pairs[start] >> shift:
        end += 1
    return end


@inner()
def _take_queries(context: Any, places: AnyArray) -> FloatArray:
    """The windows of some events."""
    pending, queries = context.pending, context.scratch.queries
    for i in range(len(places)):
        place = places[i]
        history = pending.amounts[place, : pending.held[place]]
        standardise(history, pending.mean[place], pending.deviation[place], queries[i])
    return queries[: len(places)]


@inner()
def _take_found(context: Any, place: int, found: int) -> None:
    pending, scratch = context.pending, context.scratch
    pending.found[place] = found
    for j in range(found):
        pending.rows[place, j], pending.weights[place, j] = scratch.rows[j], scratch.log_weights[j]


@inner()
def _search_pair(context: Any, places: AnyArray) -> None:
    """Neighbours of some events at one place."""
    library, scratch, pending = context.library, context.scratch, context.pending
    filled, pieces = np.empty(QUERIES, np.int64), np.empty(QUERIES, np.int64)
    queries = _take_queries(context, places)
    newest = pending.held[places[0]] - 1
    category, merchant = pending.categories[places[0], newest], pending.merchants[places[0], newest]
    weigh(library, queries, category, merchant, scratch, filled, pieces)
    for i in range(len(places)):
        _take_found(context, places[i], keep_top_k(library, scratch, i, filled[i], scratch.pieces[: pieces[i]]))


@inner()
def _search_category(context: Any, places: AnyArray) -> None:
    """Neighbours of some events of one category, at merchants that have few windows."""
    library, scratch, pending = context.library, context.scratch, context.pending
    pieces, visited = np.empty(QUERIES, np.int64), np.empty(len(library.blocks.top), np.int64)
    queries = _take_queries(context, places)
    category = pending.categories[places[0], pending.held[places[0]] - 1]
    own = weigh_together(library, queries, category, scratch, pieces, visited)
    for i in range(len(places)):
        merchant = pending.merchants[places[i], pending.held[places[i]] - 1]
        found = find_top_k(library, queries, i, category, merchant, own, pieces[i], visited, scratch)
        _take_found(context, places[i], found)


@compiled()
def compare(context: Any, first: int, last: int) -> None:
    """Divergence scores of the events of a block from their neighbours, whose weights become shares."""
    library, density, lags, pending = context.library, context.change_law, context.lags, context.pending
    for i in range(first, last):
        place = i - first
        found, held, local = pending.found[place], pending.held[place], pending.local[place]
        if found > 0:
            context.batch.outputs[i].scores[DIVERGENCE] = compare_densities(
                library,
                density,
                pending.amounts[place, :held],
                pending.categories[place, :held],
                pending.merchants[place, :held],
                pending.deviation[place],
                lags[:local],
                pending.rows[place, :found],
                pending.weights[place, :found],
                LocalDensity(pending.local_y[place], context.local_regime, pending.local_weights[place]),
            )
