"""Run statistics, counted from what was recorded: the same for a run in one go and one resumed ten times.

:class:`Timeline` counts along the stream's time, in bins that can be made wider without counting again.
"""

from __future__ import annotations

import heapq
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from stream_ccsd.calendar import Calendar
from stream_ccsd.numerics.arrays import AnyArray
from stream_ccsd.stores import DeadLetterCount, Record
from stream_ccsd.transaction import Status

COUNTED = ("transactions", "late", "alerts", "labelled")
"""What is counted in each bin, in this order."""


@dataclass
class Timeline:
    """Counts by bin: of the transactions whose time divided by ``width`` lies from that whole number to the next."""

    calendar: Calendar = field(default_factory=Calendar)
    width: int = 1
    bins: dict[int, AnyArray] = field(default_factory=dict)

    def add(self, scores: pa.RecordBatch) -> None:
        """Count a batch of scores."""
        kinds = (
            np.ones(scores.num_rows, bool),
            np.array([status == Status.LATE for status in scores.column("status").to_pylist()], bool),
            scores.column("alert").to_numpy(zero_copy_only=False),
            scores.column("label").is_valid().to_numpy(zero_copy_only=False),
        )
        places = np.floor(scores.column("time").to_numpy() / self.width).astype(np.int64)
        bins, owner = np.unique(places, return_inverse=True)
        counts = np.stack([np.bincount(owner[kind], minlength=len(bins)) for kind in kinds], axis=1)
        for place, row in zip(bins.tolist(), counts, strict=True):
            self.put(place, row)

    def put(self, place: int, counts: AnyArray) -> None:
        """Add to the counts of one bin."""
        known = self.bins.get(place)
        self.bins[place] = counts if known is None else known + counts

    def widen(self) -> None:
        """The next larger bins: hours, days, weeks as the calendar knows them, or twice as much."""
        wider = next((width for width in self.calendar.widths if width > self.width), 2 * self.width)
        self._merge(wider // self.width)

    def at_least(self, width: float) -> Timeline:
        """The same counts in bins of this width, or as they are if they are wider."""
        merged = Timeline(self.calendar, self.width, dict(self.bins))
        merged._merge(max(1, int(np.ceil(width / self.width))))
        return merged

    def of(self, kind: str) -> dict[int, int]:
        """Counts of one kind by bin."""
        column = COUNTED.index(kind)
        return {place: int(counts[column]) for place, counts in self.bins.items()}

    def _merge(self, factor: int) -> None:
        narrow, self.bins = self.bins, {}
        for place, counts in narrow.items():
            self.put(place // factor, counts)
        self.width *= factor


# Histogram of the alert score, in nats of surprisal.
EDGES = np.linspace(0.0, 32.0, 65)
_MOST_BINS = 400
TOP = 25
"""Highest alerts that are kept."""


@dataclass
class RunStatistics:
    """Counts over all recorded scores, in stream order, against labels where the source has any."""

    calendar: Calendar = field(default_factory=Calendar)
    threshold: float = math.inf
    transactions: int = 0
    reached: int = 0  # the threshold
    late: int = 0
    alerts: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)
    pattern: dict[str, str] = field(default_factory=dict)  # of accounts with fraud
    first_fraud: dict[str, tuple[float, int]] = field(default_factory=dict)  # time, and how many of its own before
    own: Counter[str] = field(default_factory=Counter)
    own_alerts: Counter[str] = field(default_factory=Counter)
    caught: dict[str, tuple[float, int, int]] = field(default_factory=dict)  # delay in time, transactions; by which
    false_accounts: dict[str, int] = field(default_factory=dict)  # by which alert
    over_time: Timeline = field(init=False)
    histogram: dict[str, Any] = field(
        default_factory=lambda: {name: np.zeros(len(EDGES) - 1, np.int64) for name in ("normal", "fraud")}
    )
    labelled: bool = False
    top: list[Record] = field(default_factory=list)  # the highest alerts, the highest first
    first_time: float = math.inf
    last_time: float = -math.inf
    why: dict[int, str] = field(default_factory=dict)  # by position of an alert: its largest term, or another score

    def __post_init__(self) -> None:
        self.over_time = Timeline(self.calendar)

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
        self.reached += int((scores.column("score").to_numpy(zero_copy_only=False) >= self.threshold).sum())
        self.first_time = min(self.first_time, float(times.min()))
        self.last_time = max(self.last_time, float(times.max()))
        self.late += sum(status == Status.LATE for status in scores.column("status").to_pylist())
        self.over_time.add(scores)
        # By their span, not their number: a time far away from the others must not make a long empty axis.
        while max(self.over_time.bins) - min(self.over_time.bins) >= _MOST_BINS:
            self.over_time.widen()
        values = np.clip(np.nan_to_num(scores.column("score").to_numpy(zero_copy_only=False)), 0.0, EDGES[-1])
        for name, chosen in (("normal", ~fraud), ("fraud", fraud)):
            self.histogram[name] += np.histogram(values[chosen], EDGES)[0]
        accounts = scores.column("account").to_pylist()
        positions, terms = scores.column("position").to_numpy(), scores.column("terms")
        for row, (account, time, label) in enumerate(zip(accounts, times.tolist(), labels, strict=True)):
            self.own[account] += 1
            if label is not None and account not in self.pattern:
                self.pattern[account] = label
                self.first_fraud[account] = time, self.own[account]
            if alerts[row]:
                self._add_alerted(account, time, int(positions[row]), terms[row].as_py())

    def _add_alerted(self, account: str, time: float, position: int, terms: str | None) -> None:
        self.alerts += 1
        self.own_alerts[account] += 1
        nats: dict[str, float] = json.loads(terms or "{}")
        self.why[position] = max(nats, key=nats.__getitem__, default="")
        if account not in self.first_fraud:  # before its first fraud, an alert of a fraud account is a false one too
            self.false_accounts.setdefault(account, position)
        elif account not in self.caught:
            begun, before = self.first_fraud[account]
            self.caught[account] = time - begun, self.own[account] - before, position
            self.false_accounts.pop(account, None)

    def add_alerts(self, alerts: Iterable[Record]) -> None:
        """What raised them; their scores were added before. Keeps the highest; of equal ones the earlier."""
        alerts = list(alerts)
        for alert in alerts:
            if alert["raised_by"] != "evidence" or not self.why.get(alert["position"]):
                self.why[alert["position"]] = alert["raised_by"]
        self.top = heapq.nsmallest(TOP, chain(self.top, alerts), key=lambda a: (-a["score"], a["position"]))

    def add_dead_letters(self, counts: Iterable[DeadLetterCount]) -> None:
        """Count dead letters by their kind, and the field they are about."""
        for letters in counts:
            self.dead_letters[f"{letters.kind} {letters.field}" if letters.field else letters.kind] += letters.count

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        summary: dict[str, Any] = {
            "transactions": self.transactions,
            "accounts": len(self.own),
            "late": self.late,
            "alerts": self.alerts,
            "alert_rate": self.alerts / self.transactions if self.transactions else None,
            "alerts_per_day": self._per_day(),
            "reached_rate": self.reached / self.transactions if self.transactions else None,
            "why": self._counted(self.why),
            "dead_letters": sum(self.dead_letters.values()),
            "dead_letters_by_reason": dict(sorted(self.dead_letters.items(), key=lambda item: (-item[1], item[0]))),
        }
        if self.labelled:
            flagged = len(self.caught) + len(self.false_accounts)
            delays = np.array(list(self.caught.values()))
            summary |= {
                "fraud_accounts": len(self.pattern),
                "caught_accounts": len(self.caught),
                "false_accounts": len(self.false_accounts),
                "precision": len(self.caught) / flagged if flagged else None,
                "recall": len(self.caught) / len(self.pattern),
                "median_delay_time": float(np.median(delays[:, 0])) if len(delays) else None,
                "median_delay_transactions": float(np.median(delays[:, 1])) if len(delays) else None,
                "normal_alert_rate": self._normal_rate(),
                "patterns": self._patterns(),
                "why_false": self._counted(self.false_accounts.values()),
            }
        return summary

    def _per_day(self) -> float | None:
        day, span = self.calendar.of_days(1.0), self.last_time - self.first_time
        return self.alerts * day / span if day is not None and span > 0 else None

    def _normal_rate(self) -> float | None:
        """Alerts of accounts that no label speaks against, by their transactions: what a budget is about."""
        normal = self.own.keys() - self.pattern.keys()
        transactions = sum(self.own[account] for account in normal)
        return sum(self.own_alerts[account] for account in normal) / transactions if transactions else None

    def _counted(self, positions: Iterable[int]) -> dict[str, int]:
        """What raised these alerts, the most frequent first."""
        counts = Counter(self.why[position] for position in positions)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def _patterns(self) -> dict[str, dict[str, Any]]:
        """By pattern: accounts, those caught, how soon half of them were, and by what."""
        accounts = Counter(self.pattern.values())
        found: dict[str, list[tuple[float, int, int]]] = {name: [] for name in accounts}
        for account, how in self.caught.items():
            found[self.pattern[account]].append(how)
        return {
            name: {
                "accounts": accounts[name],
                "caught": len(found[name]),
                "median_delay_time": float(np.median([time for time, _, _ in found[name]])) if found[name] else None,
                "median_delay_transactions": float(np.median([n for _, n, _ in found[name]])) if found[name] else None,
                "why": self._counted(position for _, _, position in found[name]),
            }
            for name in sorted(accounts)
        }
