"""A large state file for the page's benchmark: a real replay, multiplied.

Scores and alerts are those of a replay of a simulated town; each copy has accounts of its own. Copies are mixed batch
by batch, so that an account's transactions are spread over as many batches as they would be in one large stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa

from replay.harvest import Harvest
from replay.run import replay_stream
from replay.simulated import simulated_replay
from replay.source import Place
from replay.state import StateFile, model_beside
from stream_ccsd.alert.policy import build_policy
from stream_ccsd.alert.reasons import Alert
from stream_ccsd.alert.threshold import threshold_by_budget
from stream_ccsd.engine import Engine
from stream_ccsd.progress import Progress
from stream_ccsd.settings import Settings

# Transactions of the town that are kept together, and of a stored batch.
_TOGETHER, _BATCH = 200, 2000


def write_large_state(path: Path, transactions: int, alerts: int, progress: Progress) -> dict[str, int]:
    """So many transactions, and so many alerts as nearly as a budget gives them; returns how many there are."""
    model, source = simulated_replay(400, 120, 0, Settings())
    asked = threshold_by_budget(min(0.5, alerts / transactions))
    best: list[Harvest] = []
    for _ in range(6):  # fewer transactions are alerted than ask for it: accounts alert once until they go higher
        harvests: list[Harvest] = []
        replay_stream(source, Engine(model, {}, asked), harvests.append, batch=_TOGETHER)
        count = sum(harvest.scores.num_rows for harvest in harvests)
        raised = sum(len(harvest.alerts) for harvest in harvests)
        best = harvests
        if raised * transactions >= 0.95 * alerts * count:
            break
        asked -= 0.4
    copies = -(-transactions // count)
    facts = {
        "source": {"name": source.name},
        "model": model.version,
        "threshold": asked,
        "policy": build_policy(model.settings, asked)._asdict(),
        "calendar": model.calendar.to_dict(),
        "learning": None,
    }
    model.save(model_beside(path))
    file = StateFile.create(path, facts)
    file.notes |= {"source": "a town, many times", "finished": True, "model": str(model_beside(path))}
    written = raised = 0
    for number, harvest in enumerate(best):
        for first in range(0, copies, _BATCH // _TOGETHER):
            copied = range(first, min(copies, first + _BATCH // _TOGETHER))
            file.record(_copies(harvest, copied, written))
            written += harvest.scores.num_rows * len(copied)
            raised += len(harvest.alerts) * len(copied)
        progress(number + 1, len(best))
    file.close()
    return {"transactions": written, "alerts": raised}


def _copies(harvest: Harvest, copied: Sequence[int], before: int) -> Harvest:
    """A batch of the town's scores for several copies of it; positions go on behind those before."""
    rows = harvest.scores.num_rows
    positions = {position: place for place, position in enumerate(harvest.scores.column("position").to_pylist())}
    batches, alerts = [], []
    for number, copy in enumerate(copied):
        start = before + number * rows + 1
        batches.append(_renamed(harvest.scores, copy, start))
        alerts += [(start + positions[position], _alert(alert, copy)) for position, alert in harvest.alerts]
    scores = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    return Harvest(Place(before + rows * len(copied)), scores, alerts, [])


def _renamed(scores: pa.RecordBatch, copy: int, start: int) -> pa.RecordBatch:
    columns: dict[str, Any] = dict(zip(scores.schema.names, scores.columns, strict=True))
    columns["account"] = pa.array([f"{name}-{copy}" for name in scores.column("account").to_pylist()])
    columns["id"] = pa.array([f"{name}-{copy}" for name in scores.column("id").to_pylist()])
    columns["position"] = pa.array(range(start, start + scores.num_rows), pa.int64())
    return pa.RecordBatch.from_arrays([*columns.values()], schema=scores.schema)


def _alert(alert: Alert, copy: int) -> Alert:
    account, transaction = f"{alert.account}-{copy}", f"{alert.transaction}-{copy}"
    name = blake2b(f"{account}\0{transaction}".encode(), digest_size=12).hexdigest()
    return replace(alert, id=name, account=account, transaction=transaction)
