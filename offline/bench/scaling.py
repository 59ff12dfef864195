"""Cost against the size of the library of windows, the number of accounts, and the number of merchants.

Merchants are measured twice: in the search of a made-up library, and in the engine on a stream with many.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from offline.peers import peak_rss_mb, peer
from replay.sources.files import read_transactions
from replay.sources.simulator.population import simulate
from stream_ccsd.account import AccountCodec
from stream_ccsd.divergence.search.index import Index, Scratch, build_index, nearest
from stream_ccsd.divergence.search.windows import WindowTable
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.model.model import Model
from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.transaction import Status, Transaction, text_hash

_QUERIES = 200
_FAISS_FACTOR = 4
_ACCOUNT_EVENTS = 20_000
_BATCH = 1000


def measure_library(model: Model, size: int) -> dict[str, Any]:
    """The exact search, and an approximate one by faiss (IVF) with its recall, in a library of that many windows."""
    rng = np.random.default_rng(size)
    windows = enlarged(model.index, size, rng)
    index = build_index(windows, model.settings, model.index.sigma_x)
    queries, categories, merchants = _queries(model.index, rng)
    scratch = Scratch.of(index)
    nearest(index, queries[0], categories[0], merchants[0], scratch)
    exact = []
    start = time.perf_counter()
    for query, category, merchant in zip(queries, categories, merchants, strict=True):
        count = nearest(index, query, category, merchant, scratch)
        exact.append(scratch.rows[:count].copy())
    seconds = time.perf_counter() - start
    result = {"windows": size, "us_per_query": seconds / len(queries) * 1e6, "recall": 1.0}
    return result | _faiss(index, queries, categories, merchants, exact)


def enlarged(index: Index, size: int, rng: np.random.Generator) -> WindowTable:
    """Library windows drawn again and disturbed a little, so that none is another's copy."""
    rows = rng.integers(0, len(index.z), size)
    group = np.repeat(np.arange(len(index.log_prior)), np.diff(index.start))[rows]
    z = index.z[rows] + rng.normal(0, 0.2, (size, index.z.shape[1])).astype(np.float32)
    return WindowTable(z, index.y[rows], index.regime[rows], index.category[group], index.merchant[group])


def _queries(index: Index, rng: np.random.Generator) -> tuple[FloatArray, AnyArray, AnyArray]:
    rows = rng.integers(0, len(index.z), _QUERIES)
    group = np.repeat(np.arange(len(index.log_prior)), np.diff(index.start))[rows]
    queries = index.z[rows].astype(float) + rng.normal(0, 0.3, (_QUERIES, index.z.shape[1]))
    return queries, index.category[group], index.merchant[group]


def _faiss(
    index: Index, queries: FloatArray, categories: AnyArray, merchants: AnyArray, exact: list[AnyArray]
) -> dict[str, Any]:
    """IVF by distance, several times J candidates, weighed in full and cut to J: what share of the true J it finds."""
    faiss = peer("faiss")
    faiss.omp_set_num_threads(1)
    n, k = index.z.shape
    lists = int(np.clip(np.sqrt(n), 16, 2048))
    search = faiss.IndexIVFFlat(faiss.IndexFlatL2(k), k, lists)
    search.train(index.z[np.random.default_rng(0).integers(0, n, min(n, 64 * lists))])
    search.add(np.ascontiguousarray(index.z))
    search.nprobe = max(1, lists // 8)
    group = np.repeat(np.arange(len(index.log_prior)), np.diff(index.start))
    wanted = min(index.neighbours * _FAISS_FACTOR, n)
    recall = 0.0
    start = time.perf_counter()
    for query, category, merchant, truth in zip(queries, categories, merchants, exact, strict=True):
        distance, rows = search.search(query[None].astype(np.float32), wanted)
        rows, distance = rows[0][rows[0] >= 0], distance[0][rows[0] >= 0]
        g = group[rows]
        weights = index.log_prior[g] - 0.5 * distance / index.sigma_x**2
        weights += np.where(index.category[g] != category, index.log_rho_category, 0.0)
        weights += np.where(index.merchant[g] != merchant, index.log_rho_merchant, 0.0)
        kept = rows[np.argsort(-weights)[: index.neighbours]]
        recall += len(np.intersect1d(kept, truth)) / len(truth)
    seconds = time.perf_counter() - start
    return {"faiss_us_per_query": seconds / len(queries) * 1e6, "faiss_recall": recall / len(queries)}


def measure_accounts(model: Model, number: int) -> dict[str, Any]:
    """Memory and speed with that many accounts, all of them with full histories; in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        place = model.save(f"{folder}/model")
        command = [sys.executable, "-m", "offline.bench.scaling", str(place), str(number)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    if done.returncode:
        raise StreamCcsdError(f"the run with {number} accounts failed: {done.stderr.strip()[-500:]}")
    rss, rate = map(float, done.stdout.split())
    return {"accounts": number, "rss_mb": rss, "events_per_s": rate}


def _run_accounts(place: str, number: int) -> None:
    model = Model.load(place)
    codec = AccountCodec(*model.state_sizes)
    rng = np.random.default_rng(0)
    merchants = list(model.names.values())[:50]
    sample = [
        Transaction("sample", float(i), float(rng.exponential(40)), merchants[0], str(rng.choice(merchants)), str(i))
        for i in range(codec.longest_history + 1)
    ]
    states: dict[str, bytes] = {}
    Engine(model, states).process_many(sample)
    full = states["sample"]
    # Each account has bytes of its own, as it would have.
    states = {f"account-{i:08d}": full[:-1] + full[-1:] for i in range(number)}
    engine, last = Engine(model, states), sample[-1]
    events = [
        replace(
            last, account=f"account-{a:08d}", time=last.time + i / 1e6, id=f"e{i}", amount=float(rng.exponential(40))
        )
        for i, a in enumerate(rng.integers(0, number, _ACCOUNT_EVENTS))
    ]
    scored = 0
    start = time.perf_counter()
    for i in range(0, len(events), _BATCH):
        scored += sum(r.status is Status.SCORED for r in engine.process_many(events[i : i + _BATCH]))
    rate = len(events) / (time.perf_counter() - start)
    if scored < len(events):
        raise StreamCcsdError(f"{len(events) - scored:,} of {len(events):,} events were refused")
    print(peak_rss_mb(), rate)


if __name__ == "__main__":
    _run_accounts(sys.argv[1], int(sys.argv[2]))


# Of each of the 250 simulated merchants; a payment goes to any of them.
_BRANCHES = 40
_SEARCHES = 400
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
    rows = rng.integers(0, number, _SEARCHES)
    queries = windows.z[rows].astype(float) + rng.normal(0, 0.3, (_SEARCHES, windows.z.shape[1]))
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
    return {"merchants": number, "us_per_query": min(seconds) / _SEARCHES * 1e6}
