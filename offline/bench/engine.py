"""The engine, timed: against a plain numpy transcription of the paper and river's HalfSpaceTrees on the same events.

The transcription is the paper's score in plain numpy: what one would have without any of the fast forms.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from offline.bench.scaling import (
    many_merchants,
    measure_accounts,
    measure_library,
    measure_merchants,
    simulated_accounts,
)
from offline.peers import peer
from replay.sources.files import read_transactions
from replay.sources.simulator.population import simulate
from stream_ccsd.divergence.search.index import Index
from stream_ccsd.divergence.search.windows import CATEGORY_CHANGED, MERCHANT_CHANGED
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import Progress
from stream_ccsd.fitting import fit
from stream_ccsd.model.model import Model
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, shuffled
from stream_ccsd.numerics.compiling import ship_kernels
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import Transaction, text_hash


def numpy_window_score(
    index: Index, sigma_y: float, s: Settings, amounts: FloatArray, categories: AnyArray, merchants: AnyArray
) -> float:
    """Score of the last window of a history: all distances, a partial sort, and three full kernel matrices."""
    k, t = s.window, len(amounts) - 1
    ends = np.arange(t - 1, max(t - 1 - s.local_history, k - 2), -1)
    if t < k - 1 or not len(ends):
        return float("nan")
    z = (amounts - amounts.mean()) / (amounts.std() or 1.0)
    change = np.abs(np.diff(z, prepend=z[0]))
    flags = np.stack([np.diff(categories, prepend=categories[0]) != 0, np.diff(merchants, prepend=merchants[0]) != 0])
    x = z[t - k + 1 :]

    group = np.repeat(np.arange(len(index.log_prior)), np.diff(index.start))
    log_q = -((index.z - x) ** 2).sum(axis=1) / (2 * index.sigma_x**2) + index.log_prior[group]
    log_q += np.where(index.category[group] != categories[t], np.log(s.rho_category), 0.0)
    log_q += np.where(index.merchant[group] != merchants[t], np.log(s.rho_merchant), 0.0)
    top = np.argpartition(-log_q, s.neighbours)[: s.neighbours] if len(log_q) > s.neighbours else np.arange(len(log_q))
    q = np.exp(log_q[top] - log_q[top].max())
    q /= q.sum()

    windows = np.stack([z[e - k + 1 : e + 1] for e in ends])
    p = np.exp(-((windows - x) ** 2).sum(axis=1) / (2 * index.sigma_x**2)) * 0.5 ** ((t - ends) / s.half_life)
    p *= np.where(categories[ends] != categories[t], s.rho_category, 1.0)
    p *= np.where(merchants[ends] != merchants[t], s.rho_merchant, 1.0)
    p *= np.where(flags[0, ends] == flags[0, t], s.eta_category, 1.0)
    p *= np.where(flags[1, ends] == flags[1, t], s.eta_merchant, 1.0)
    p /= p.sum()

    def term(w: FloatArray, y: FloatArray, f: AnyArray, w2: FloatArray, y2: FloatArray, f2: AnyArray) -> float:
        likeness = np.exp(-((y[:, None] - y2) ** 2) / (2 * sigma_y**2))
        likeness *= np.where(f[0][:, None] != f2[0], s.gate_category, 1.0)
        likeness *= np.where(f[1][:, None] != f2[1], s.gate_merchant, 1.0)
        return float(w @ likeness @ w2)

    regime = index.regime[top]
    local = (p, change[ends], flags[:, ends])
    library = (q, index.y[top], np.stack([regime & CATEGORY_CHANGED, regime & MERCHANT_CHANGED]) != 0)
    return -np.log(term(*local, *library) / np.sqrt(term(*local, *local) * term(*library, *library)))


_BATCH = 1000
_NAIVE_EVENTS = 400
# Share of the accounts that the library is fitted on; labels are not read, speed does not depend on them.
_FITTED = 0.55


def measure_engine(
    data: Path | None,
    events: int,
    library_sizes: list[int],
    account_numbers: list[int],
    merchant_numbers: list[int],
    progress: Progress,
) -> dict[str, Any]:
    """All figures of ``bench engine``, measured one after the other on one core."""
    steps = 7 + len(library_sizes) + len(account_numbers) + len(merchant_numbers)
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        progress(done, steps)

    peer("river.anomaly"), peer("faiss"), peer("threadpoolctl")  # say so now if they are missing
    _one_core()
    with peer("threadpoolctl").threadpool_limits(1):
        fitted, streamed = _parted(_transactions(data, events), events)
        model = fit(fitted)
        if not streamed or not len(model.index.z):
            raise StreamCcsdError(
                f"{data} has too few transactions for the benchmark: the library of {len(fitted):,} holds "
                f"{len(model.index.z)} windows, and {len(streamed):,} are left to stream. Take a larger file"
            )
        step()
        result: dict[str, Any] = {
            "data": data.name if data else "simulated",
            "events": len(streamed),
            "library_windows": len(model.index.z),
        }
        result |= _engine_rates(model, streamed)
        step()
        result["naive_events_per_s"] = _naive_rate(model, streamed)
        step()
        result["hst_events_per_s"] = _half_space_trees_rate(streamed)
        step()
        with tempfile.TemporaryDirectory() as folder:
            place = model.save(Path(folder) / "model")
            result |= _first_score(place, streamed[0])
            step()
        result["library"] = []
        for size in library_sizes:
            result["library"].append(measure_library(model, size))
            step()
        result["accounts"] = []
        for number in account_numbers:
            result["accounts"].append(measure_accounts(model, number))
            step()
        result["merchants"] = []
        for number in merchant_numbers:
            result["merchants"].append(measure_merchants(model, number))
            step()
        result["many_merchants"] = _many_merchants(events)
        step()
    step()
    return result


def _one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _transactions(data: Path | None, events: int) -> list[Transaction]:
    if data is None:
        return simulate(accounts=simulated_accounts(events), days=150, seed=0).transactions
    read = list(read_transactions(data))
    rows = [row for row in read if isinstance(row, Transaction)]
    if not rows:
        reason = f": {read[0]}" if read else ""
        raise StreamCcsdError(f"{data} holds no usable transaction, {len(read)} rows were refused{reason}")
    return rows


def _parted(transactions: Iterable[Transaction], events: int) -> tuple[list[Transaction], list[Transaction]]:
    """Accounts to fit on, and the events of other accounts in time order."""
    rows = sorted(transactions, key=lambda t: t.time)
    counts = Counter(t.account for t in rows)
    if len(counts) < 4:
        raise StreamCcsdError("the benchmark needs at least 4 accounts")
    cut = int(_FITTED * len(counts))
    order = shuffled(counts, 0)
    chosen = set(order[:cut])
    # Whole accounts until there are enough events, so that young and old accounts are mixed as in the whole stream.
    rest, total = set(), 0
    for account in order[cut:]:
        if total >= events:
            break
        rest.add(account)
        total += counts[account]
    return [t for t in rows if t.account in chosen], [t for t in rows if t.account in rest]


def _engine_rates(model: Model, events: list[Transaction]) -> dict[str, Any]:
    Engine(model).process(events[0])  # compile outside the clock
    states: dict[str, bytes] = {}
    engine = Engine(model, states)
    latencies = np.empty(len(events))
    for i, event in enumerate(events):
        start = time.perf_counter()
        engine.process(event)
        latencies[i] = time.perf_counter() - start
    sizes = [len(state) for state in states.values()]
    batch_seconds, scored = _in_batches(model, events)
    quick = Engine(_without_divergence(model))
    start = time.perf_counter()
    for event in events:
        quick.process(event)
    quick_seconds = time.perf_counter() - start
    return {
        "events_per_s": len(events) / latencies.sum(),
        "batch_events_per_s": len(events) / batch_seconds,
        "without_divergence_events_per_s": len(events) / quick_seconds,
        "with_divergence_share": scored / len(events),
        "p50_us": float(np.quantile(latencies, 0.5) * 1e6),
        "p99_us": float(np.quantile(latencies, 0.99) * 1e6),
        "bytes_per_account": float(np.mean(sizes)),
        "largest_account_bytes": max(sizes),
    }


def _in_batches(model: Model, events: list[Transaction]) -> tuple[float, int]:
    """Seconds, and how many events had a divergence."""
    batched = Engine(model)
    start = time.perf_counter()
    scored = 0
    for i in range(0, len(events), _BATCH):
        scored += sum(r.divergence is not None for r in batched.process_many(events[i : i + _BATCH]))
    return time.perf_counter() - start, scored


def _many_merchants(events: int) -> dict[str, Any]:
    """The same engine on another stream; it is compiled by now."""
    name, transactions = many_merchants(events)
    fitted, streamed = _parted(transactions, events)
    model = fit(fitted)
    seconds, scored = _in_batches(model, streamed)
    return {
        "data": name,
        "merchants": len({t.merchant for t in fitted} | {t.merchant for t in streamed}),
        "library_windows": len(model.index.z),
        "library_pairs": len(model.index.log_prior),
        "with_divergence_share": scored / len(streamed),
        "batch_events_per_s": len(streamed) / seconds,
    }


def _without_divergence(model: Model) -> Model:
    return replace(model, settings=replace(model.settings, divergence=False))


def _naive_rate(model: Model, events: list[Transaction]) -> float:
    """Events drawn evenly from the stream, those of young accounts too, each with its whole history at hand."""
    chosen = set(np.linspace(0, len(events) - 1, min(_NAIVE_EVENTS, len(events))).astype(int).tolist())
    history: dict[str, list[tuple[float, int, int]]] = {}
    seconds = 0.0
    for i, event in enumerate(events):
        rows = history.setdefault(event.account, [])
        rows.append((event.amount, model.codes(event.category), model.codes(event.merchant)))
        if i in chosen:
            amounts, categories, merchants = (np.array(c) for c in zip(*rows, strict=True))
            start = time.perf_counter()
            numpy_window_score(model.index, model.sigma_y, model.settings, amounts, categories, merchants)
            seconds += time.perf_counter() - start
    return len(chosen) / seconds


def _half_space_trees_rate(events: list[Transaction]) -> float:
    """River's HalfSpaceTrees with default settings, one record at a time: score, then learn."""
    trees = peer("river.anomaly").HalfSpaceTrees(seed=0)
    last = max(e.time for e in events) or 1.0
    start = time.perf_counter()
    for e in events:
        record = {
            "amount": min(e.amount / 1000.0, 1.0),
            "time": e.time / last,
            "category": (text_hash(e.category, 4) % 1024) / 1024,
            "merchant": (text_hash(e.merchant, 4) % 1024) / 1024,
        }
        trees.score_one(record)
        trees.learn_one(record)
    return len(events) / (time.perf_counter() - start)


_FIRST_SCORE = """
import sys
from stream_ccsd.engine import Engine
from stream_ccsd.model.model import Model
from stream_ccsd.transaction import Schema
result = Engine(Model.load(sys.argv[1])).process(Schema().parse_json(sys.argv[2]))
assert result.evidence is not None
"""


def _first_score(place: Path, event: Transaction) -> dict[str, float]:
    """Seconds from the start of a process to its first score.

    With nothing compiled yet, with the cache filled, and with what a wheel brings (``deploy/wheel.py``) at its first
    start.
    """
    record = json.dumps({name: getattr(event, name) for name in Transaction.__dataclass_fields__})
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)

        def seconds(cache: str) -> float:
            places = {"NUMBA_CACHE_DIR": str(folder / cache), "STREAM_CCSD_KERNELS": str(folder / "shipped")}
            start = time.perf_counter()
            command = [sys.executable, "-c", _FIRST_SCORE, str(place), record]
            subprocess.run(command, check=True, env={**os.environ, **places})
            return time.perf_counter() - start

        result = {"first_score_cold_s": seconds("cache"), "first_score_warm_s": seconds("cache")}
        ship_kernels(folder / "cache", folder / "shipped")
        return result | {"first_score_shipped_s": seconds("new")}
