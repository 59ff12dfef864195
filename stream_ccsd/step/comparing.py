"""Second step: neighbours in the library, those of one (category, merchant) pair together, and the divergence."""

from __future__ import annotations

from typing import Any

import numpy as np

from stream_ccsd.compiling import compiled, inner
from stream_ccsd.library.index import QUERIES, heaviest, weigh
from stream_ccsd.library.laws import pair_key
from stream_ccsd.numeric import AnyArray
from stream_ccsd.score.divergence import LocalLaw, compare_laws, standardise, windows_before
from stream_ccsd.scores import DIVERGENCE
from stream_ccsd.vector import order_of


@compiled()
def search(machine: Any, count: int) -> None:
    """Find the neighbours of the first events of a block, which were entered."""
    pending, k, wanted = machine.pending, machine.library.z.shape[1], machine.library.neighbours
    pairs, places = np.empty(count, np.uint64), np.empty(count, np.int64)
    asking = 0
    for place in range(count):
        held = pending.held[place]
        pending.local[place] = windows_before(held, k, machine.lags) if wanted > 0 else 0
        if pending.local[place] > 0:
            pairs[asking] = pair_key(pending.categories[place, held - 1], pending.merchants[place, held - 1])
            places[asking] = place
            asking += 1
    order = order_of(pairs[:asking])
    start = 0
    while start < asking:
        end = start + 1
        while end < asking and end - start < QUERIES and pairs[order[end]] == pairs[order[start]]:
            end += 1
        _search_pair(machine, places[order[start:end]])
        start = end


@inner()
def _search_pair(machine: Any, places: AnyArray) -> None:
    """The same of some events at one place."""
    library, scratch, pending = machine.library, machine.scratch, machine.pending
    filled, pieces = np.empty(QUERIES, np.int64), np.empty(QUERIES, np.int64)
    for i in range(len(places)):
        place = places[i]
        history = pending.amounts[place, : pending.held[place]]
        standardise(history, pending.mean[place], pending.deviation[place], scratch.queries[i])
    newest = pending.held[places[0]] - 1
    category, merchant = pending.categories[places[0], newest], pending.merchants[places[0], newest]
    weigh(library, scratch.queries[: len(places)], category, merchant, scratch, filled, pieces)
    for i in range(len(places)):
        place = places[i]
        pending.found[place] = found = heaviest(library, scratch, i, filled[i], pieces[i])
        for j in range(found):
            pending.rows[place, j], pending.weights[place, j] = scratch.rows[j], scratch.log_weights[j]


@compiled()
def compare(machine: Any, first: int, last: int) -> None:
    """Divergence scores of the events of a block from their neighbours, whose weights become shares."""
    library, law, lags, pending = machine.library, machine.change_law, machine.lags, machine.pending
    for i in range(first, last):
        place = i - first
        found, held, local = pending.found[place], pending.held[place], pending.local[place]
        if found > 0:
            machine.batch.outputs[i].scores[DIVERGENCE] = compare_laws(
                library,
                law,
                pending.amounts[place, :held],
                pending.categories[place, :held],
                pending.merchants[place, :held],
                pending.deviation[place],
                lags[:local],
                pending.rows[place, :found],
                pending.weights[place, :found],
                LocalLaw(pending.local_y[place], machine.local_regime, pending.local_weights[place]),
            )
