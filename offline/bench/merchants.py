"""Cost against the number of merchants: of a search in a made-up library, and of the engine on a stream with many."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from offline.bench.scaling import enlarged
from replay.files import read_transactions
from replay.simulator import simulate
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.library.index import Scratch, build_index, nearest
from stream_ccsd.library.model import Model
from stream_ccsd.transaction import Transaction, text_hash

# Of each of the 250 simulated merchants; a payment goes to any of them.
_BRANCHES = 40
_QUERIES = 400
# The quickest counts: whatever else runs on the machine can only add to it.
_ROUNDS = 15
# Each with one window, so that as many windows share a query's category, however many share nothing with it.
_IN_CATEGORY = 1000
# One account of so many of the Handbook's 5,000: they still go to nearly all of its terminals.
_HANDBOOK_SHARE = 6


def simulated_accounts(events: int) -> int:
    """Accounts of a simulated stream that leaves so many events, of 150 days, to those that no model is fitted on."""
    return max(100, events // 50)


def many_merchants(events: int) -> tuple[str, Iterable[Transaction]]:
    """A stream with about 10,000 merchants and its name: the Handbook's, where the data folder has it."""
    file = Path(os.environ.get("STREAM_CCSD_DATA", "")) / "handbook" / "transactions.csv.xz"
    if not file.is_file():
        simulated = simulate(accounts=simulated_accounts(events), days=150, seed=0).transactions
        return "simulated", (replace(t, merchant=f"{t.merchant}/{text_hash(t.id, 4) % _BRANCHES}") for t in simulated)
    rows = (row for row in read_transactions(file) if isinstance(row, Transaction))
    return "handbook", (row for row in rows if text_hash(row.account, 4) % _HANDBOOK_SHARE == 0)


def measure_merchants(model: Model, number: int) -> dict[str, Any]:
    """The exact search in a library with that many merchants, each in one of many categories."""
    rng = np.random.default_rng(number)
    windows = enlarged(model.index, number, rng)
    merchants = np.arange(number, dtype=np.uint32)
    windows.merchants[:], windows.categories[:] = merchants, merchants // _IN_CATEGORY
    index = build_index(windows, model.settings, model.index.sigma_x)
    rows = rng.integers(0, number, _QUERIES)
    queries = windows.z[rows].astype(float) + rng.normal(0, 0.3, (_QUERIES, windows.z.shape[1]))
    codes = list(zip(windows.categories[rows], windows.merchants[rows], strict=True))
    scratch = Scratch.of(index)
    if nearest(index, queries[0], *codes[0], scratch) == 0:
        raise StreamCcsdError("the benchmark needs a library with windows")
    seconds = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        for query, (category, merchant) in zip(queries, codes, strict=True):
            nearest(index, query, category, merchant, scratch)
        seconds.append(time.perf_counter() - start)
    return {"merchants": number, "us_per_query": min(seconds) / _QUERIES * 1e6}
