"""What came of a replay, counted from what was recorded: the same for a run in one go and one resumed ten times."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from stream_ccsd.calendar import Calendar
from stream_ccsd.status import Status

# Histogram of the alert score, in nats of rarity.
EDGES = np.linspace(0.0, 32.0, 65)
_MOST_BINS = 400
_TOP = 25


@dataclass
class OverTime:
    """Counts along time in bins that widen when there would be too many: to hours, days, weeks, or to twice as much."""

    calendar: Calendar = field(default_factory=Calendar)
    width: int = 1
    events: Counter[int] = field(default_factory=Counter)
    alerts: Counter[int] = field(default_factory=Counter)
    fraud: Counter[int] = field(default_factory=Counter)

    def add(self, kind: str, times: np.ndarray[Any, Any]) -> None:
        """Count some events of a kind: ``events``, ``alerts`` or ``fraud``."""
        counter: Counter[int] = getattr(self, kind)
        bins, counts = np.unique(np.floor(times / self.width).astype(np.int64), return_counts=True)
        counter.update(dict(zip(bins.tolist(), counts.tolist(), strict=True)))
        # By their span, not their number: a time far away from the others must not make a long empty axis.
        while self.events and max(self.events) - min(self.events) >= _MOST_BINS:
            wider = next((width for width in self.calendar.widths if width > self.width), 2 * self.width)
            for name in ("events", "alerts", "fraud"):
                merged: Counter[int] = Counter()
                for place, count in getattr(self, name).items():
                    merged[place // (wider // self.width)] += count
                setattr(self, name, merged)
            self.width = wider


@dataclass
class Tally:
    """Counts over all recorded scores, in stream order, against labels where the source has any."""

    calendar: Calendar = field(default_factory=Calendar)
    transactions: int = 0
    late: int = 0
    alerts: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)
    pattern: dict[str, str] = field(default_factory=dict)  # of accounts with fraud
    first_fraud: dict[str, tuple[float, int]] = field(default_factory=dict)  # time, and how many of its own before
    own: Counter[str] = field(default_factory=Counter)
    caught: dict[str, tuple[float, int]] = field(default_factory=dict)  # delay in time and in transactions
    false_accounts: set[str] = field(default_factory=set)
    over_time: OverTime = field(init=False)
    histogram: dict[str, Any] = field(
        default_factory=lambda: {name: np.zeros(len(EDGES) - 1, np.int64) for name in ("normal", "fraud")}
    )
    labelled: bool = False
    top: list[tuple[float, int, str]] = field(default_factory=list)  # score, position, the alert as JSON

    def __post_init__(self) -> None:
        self.over_time = OverTime(self.calendar)

    def add_scores(self, scores: pa.RecordBatch) -> None:
        """Count a batch of scores."""
        times = scores.column("time").to_numpy()
        if not len(times):
            return
        self.transactions += len(times)
        labels = scores.column("label").to_pylist()
        alerts = scores.column("alert").to_numpy(zero_copy_only=False)
        fraud = np.array([label is not None for label in labels])
        self.labelled |= bool(fraud.any())
        self.late += sum(status == Status.LATE for status in scores.column("status").to_pylist())
        self.over_time.add("events", times)
        self.over_time.add("alerts", times[alerts])
        self.over_time.add("fraud", times[fraud])
        values = np.clip(np.nan_to_num(scores.column("score").to_numpy(zero_copy_only=False)), 0.0, EDGES[-1])
        for name, chosen in (("normal", ~fraud), ("fraud", fraud)):
            self.histogram[name] += np.histogram(values[chosen], EDGES)[0]
        accounts = scores.column("account").to_pylist()
        for account, time, label, alert in zip(accounts, times.tolist(), labels, alerts.tolist(), strict=True):
            self._add_one(account, time, label, alert)

    def _add_one(self, account: str, time: float, label: str | None, alert: bool) -> None:
        self.own[account] += 1
        if label is not None and account not in self.pattern:
            self.pattern[account] = label
            self.first_fraud[account] = time, self.own[account]
        if not alert:
            return
        self.alerts += 1
        if account not in self.first_fraud:  # before its first fraud, an alert of a fraud account is a false one too
            self.false_accounts.add(account)
        elif account not in self.caught:
            begun, before = self.first_fraud[account]
            self.caught[account] = time - begun, self.own[account] - before
            self.false_accounts.discard(account)

    def add_lines(self, alerts: list[str], dead_letters: list[str]) -> None:
        """Count alerts and dead letters, given as JSON; the highest alerts are kept."""
        for line in alerts:
            found = json.loads(line)
            entry = (found["score"], -found["position"], line)
            (heapq.heappush if len(self.top) < _TOP else heapq.heappushpop)(self.top, entry)
        for line in dead_letters:
            self.dead_letters[_kind(json.loads(line))] += 1

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        found: dict[str, Any] = {
            "transactions": self.transactions,
            "accounts": len(self.own),
            "late": self.late,
            "alerts": self.alerts,
            "dead_letters": sum(self.dead_letters.values()),
            "dead_letters_by_reason": dict(self.dead_letters.most_common()),
        }
        if self.labelled:
            flagged = len(self.caught) + len(self.false_accounts)
            delays = np.array(list(self.caught.values()))
            found |= {
                "fraud_accounts": len(self.pattern),
                "caught_accounts": len(self.caught),
                "false_accounts": len(self.false_accounts),
                "precision": len(self.caught) / flagged if flagged else None,
                "recall": len(self.caught) / len(self.pattern),
                "median_delay_time": float(np.median(delays[:, 0])) if len(delays) else None,
                "median_delay_transactions": float(np.median(delays[:, 1])) if len(delays) else None,
                "patterns": self._patterns(),
            }
        return found

    def _patterns(self) -> dict[str, dict[str, int]]:
        accounts = Counter(self.pattern.values())
        caught = Counter(self.pattern[a] for a in self.caught)
        return {name: {"accounts": accounts[name], "caught": caught[name]} for name in sorted(accounts)}


def _kind(letter: dict[str, Any]) -> str:
    """What dead letters are counted by: their kind, and the field it is about."""
    return f"{letter['kind']} {letter['field']}" if letter["field"] else str(letter["kind"])
