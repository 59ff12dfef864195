"""The live index, which a page reads at once: alerts in short, scores high enough to matter, counts by minute.

It grows batch by batch with the state file, so that no view has to read the file from its beginning. It keeps only
scores that some budget on offer would alert by, or that the source labels as fraud.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.budget import RATES, RecordedScores
from replay.cases.cases import best_term
from stream_ccsd.alerts.policy import threshold_by_budget
from stream_ccsd.numerics.arrays import FloatArray, IntArray
from stream_ccsd.stores import Record
from stream_ccsd.verdict import Key

SCORE_COLUMNS = ("position", "account", "id", "time", "amount", "score", "label")
"""What is read of a batch of scores."""
FLOOR = threshold_by_budget(max(RATES))
"""Lowest score that a budget on offer alerts by; that of the stream itself may be lower."""
MOST_ALERTS = 200_000
"""Alerts that are kept in short; those before them are reached through their accounts."""
MOST_SCORES = 1_000_000
"""Scores that are kept: some hundred MB."""
_MINUTES = 30
_RECENT = 20_000  # transactions in the histogram
# Reasons of an alert in a list of cases; its own page has all.
_REASONS = 8
_EDGES: FloatArray = np.linspace(0.0, 20.0, 41)
_SHORT = (
    *("position", "id", "account", "transaction", "time", "when", "amount", "category", "merchant", "score"),
    *("expected_loss", "raised_by", "reason", "headline", "fields"),
)


class AlertIndex:
    """Index of alerts in short, in the order of the stream."""

    def __init__(self) -> None:
        self.rows: list[Record] = []
        self.by_id: dict[str, Record] = {}
        self.by_account: dict[str, list[Record]] = {}
        self.position = 0
        self.version = 0

    def add(self, alerts: Iterable[Record]) -> None:
        """Those that came since."""
        for alert in alerts:
            row = short(alert)
            self.rows.append(row)
            self.by_id[row["id"]] = row
            self.by_account.setdefault(row["account"], []).append(row)
            self.position = row["position"]
            self.version += 1
        if len(self.rows) > MOST_ALERTS * 1.1:
            self._forget(len(self.rows) - MOST_ALERTS)

    def _forget(self, count: int) -> None:
        for row in self.rows[:count]:
            self.by_id.pop(row["id"], None)
            own = self.by_account[row["account"]]
            own.remove(row)
            if not own:
                del self.by_account[row["account"]]
        del self.rows[:count]


def short(alert: Record) -> Record:
    """An alert without what only its own page shows; ``terms`` are the nats of its reasons by what they are about."""
    row = {name: alert.get(name) for name in _SHORT}
    terms = {reason["term"]: reason["nats"] for reason in alert["reasons"] if reason.get("term")}
    reasons = [{"nats": reason["nats"], "text": reason["text"]} for reason in alert["reasons"][:_REASONS]]
    return row | {"reasons": reasons, "terms": terms, "best_term": best_term(alert), "model": alert["model"]}


class ScoreIndex:
    """Scores of a stream as they come: those that matter as columns, all of them as counts."""

    def __init__(self, threshold: float) -> None:
        self.floor = min(FLOOR, threshold)
        self.position = 0  # of the newest batch
        self._row = 0  # of the newest transaction
        self.transactions = 0
        self.first_time = self.last_time = float("nan")
        self.keys: list[Key] = []  # account and id of those that are kept
        self.places: dict[Key, int] = {}  # of a transaction among them
        self._numbers: dict[str, int] = {}
        self._columns: list[list[Any]] = [[], [], [], [], []]
        self.since: float | None = None  # where older ones were forgotten: from when on they are kept
        self._recent: deque[tuple[int, IntArray]] = deque()
        self._scored: RecordedScores | None = None

    def add(self, batch: pa.RecordBatch, position: int) -> None:
        """The next batch."""
        self.position = position
        # A mirror stores a small batch again with what came behind it: its first rows are known.
        batch = batch.filter(pc.greater(batch.column("position"), self._row))
        if not batch.num_rows:
            return
        self._row = pc.max(batch.column("position")).as_py()
        scores = batch.column("score").to_numpy(zero_copy_only=False)
        times = batch.column("time").to_numpy(zero_copy_only=False)
        self.transactions += batch.num_rows
        self.first_time = float(np.fmin(self.first_time, times.min()))
        self.last_time = float(np.fmax(self.last_time, times.max()))
        counts, _ = np.histogram(np.clip(scores, 0.0, _EDGES[-1] - 1e-9), _EDGES)
        self._recent.append((batch.num_rows, counts))
        while sum(rows for rows, _ in self._recent) - self._recent[0][0] >= _RECENT:
            self._recent.popleft()
        chosen = np.flatnonzero(
            (scores >= self.floor) | pc.is_valid(batch.column("label")).to_numpy(zero_copy_only=False)
        )
        if len(chosen):
            self._keep(batch.take(pa.array(chosen)).to_pydict())

    def _keep(self, rows: dict[str, list[Any]]) -> None:
        keys = [*zip(rows["account"], rows["id"], strict=True)]
        self.places |= {key: len(self.keys) + i for i, key in enumerate(keys)}
        self.keys += keys
        numbers = [self._numbers.setdefault(account, len(self._numbers)) for account in rows["account"]]
        labels = [label is not None for label in rows["label"]]
        new: tuple[list[Any], ...] = (numbers, rows["time"], rows["amount"], rows["score"], labels)
        for column, values in zip(self._columns, new, strict=True):
            column.extend(values)
        self._scored = None
        if len(self.keys) > 1.2 * MOST_SCORES:
            self._forget(len(self.keys) - MOST_SCORES)

    def _forget(self, count: int) -> None:
        """The oldest go; what is said then is about the time since."""
        self.keys = self.keys[count:]  # another list: somebody may be looking at the old one
        for column in self._columns:
            del column[:count]
        self.places = {key: place for place, key in enumerate(self.keys)}
        self._numbers = {}
        accounts = (account for account, _ in self.keys)
        self._columns[0] = [self._numbers.setdefault(account, len(self._numbers)) for account in accounts]
        self.first_time = float(self._columns[1][0])
        self.since = self.first_time

    @property
    def scored(self) -> RecordedScores:
        """As columns."""
        if self._scored is None:
            account, time, amount, score, fraud = self._columns
            times, amounts, scores = (np.array(column, float) for column in (time, amount, score))
            self._scored = RecordedScores(np.array(account, np.int64), times, amounts, scores, np.array(fraud, bool))
        return self._scored

    def histogram(self) -> dict[str, list[float]]:
        """Of the newest transactions."""
        counts = sum((counts for _, counts in self._recent), np.zeros(len(_EDGES) - 1, int))
        return {"edges": _EDGES.tolist(), "counts": counts.tolist()}


@dataclass
class MinuteCounts:
    """Transactions and alerts by minute of the clock on the wall, as far as somebody was looking."""

    counts: dict[int, list[int]] = field(default_factory=dict)
    _newest: deque[tuple[float, int, int]] = field(default_factory=deque)

    def add(self, now: float, transactions: int, alerts: int) -> None:
        """What came by since the last look."""
        minute = self.counts.setdefault(int(now // 60), [0, 0])
        minute[0] += transactions
        minute[1] += alerts
        for old in [start for start in self.counts if start <= now // 60 - _MINUTES]:
            del self.counts[old]
        self._newest.append((now, transactions, alerts))
        while self._newest and self._newest[0][0] < now - 60.0:
            self._newest.popleft()

    def per_minute(self, now: float) -> dict[str, float]:
        """Over the last minute, or for as long as somebody looks."""
        recent = [entry for entry in self._newest if entry[0] >= now - 60.0]
        if len(recent) < 2:
            return {"transactions": 0.0, "alerts": 0.0}
        span = max(now - recent[0][0], 1.0)
        sums = [sum(entry[i] for entry in recent[1:]) for i in (1, 2)]
        return {"transactions": 60.0 * sums[0] / span, "alerts": 60.0 * sums[1] / span}

    def to_dict(self, now: float) -> dict[str, list[float]]:
        """The last half hour, minute by minute."""
        last = int(now // 60)
        starts = [*range(last - _MINUTES + 1, last + 1)]
        rows = [self.counts.get(start, [0, 0]) for start in starts]
        return {
            "starts": [60.0 * start for start in starts],
            "transactions": [row[0] for row in rows],
            "alerts": [row[1] for row in rows],
        }
