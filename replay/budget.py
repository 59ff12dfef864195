"""What a replay would have alerted with other budgets, from the scores it recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.state.records import SqliteRecords
from stream_ccsd.alerts.policy import ALERTED, Policy, decide, threshold_by_budget
from stream_ccsd.calendar import Calendar
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, IntArray
from stream_ccsd.numerics.compiling import compiled

RATES = (1e-2, 5e-3, 2e-3, 1e-3, 5e-4, 2e-4, 1e-4, 5e-5, 2e-5, 1e-5)
"""Budgets that are tried, besides that of the replay: shares of normal transactions."""

_STANDING = np.dtype([("alerts", "i8"), ("alerted_score", "f8"), ("alerted_time", "f8")])
_COLUMNS = ("account", "time", "amount", "score", "label")


@dataclass(frozen=True, eq=False)
class RecordedScores:
    """Scored transactions in order, as columns; accounts are numbers."""

    account: IntArray
    time: FloatArray
    amount: FloatArray
    score: FloatArray
    fraud: AnyArray

    @property
    def accounts(self) -> int:
        """How many there are."""
        return int(self.account.max()) + 1 if len(self.account) else 0

    @classmethod
    def of(cls, batches: Iterator[pa.RecordBatch]) -> RecordedScores:
        """All of a replay."""
        chosen = [batch.select(_COLUMNS) for batch in batches]
        if not chosen:
            nothing = np.empty(0)
            return cls(nothing.astype(int), nothing, nothing, nothing, nothing.astype(bool))
        table = pa.Table.from_batches(chosen)
        account = table.column("account").combine_chunks().dictionary_encode().indices.to_numpy()
        time, amount, score = (table.column(name).to_numpy() for name in ("time", "amount", "score"))
        return cls(account.astype(np.int64), time, amount, score, pc.is_valid(table.column("label")).to_numpy())


def budgets(records: SqliteRecords, rates: Sequence[float] = RATES) -> dict[str, Any]:
    """For each budget and that of the replay: alerts, their share, and with labels precision, recall and money."""
    with records.at_one_moment():
        seen = RecordedScores.of(records.score_batches())
    policy = Policy(**records.facts["policy"])
    day = Calendar.from_dict(records.facts["calendar"]).of_days(1.0)
    span = float(np.ptp(seen.time)) if len(seen.time) else 0.0
    days = span / day if day is not None and span > 0 else None
    thresholds = sorted({policy.threshold, *map(threshold_by_budget, rates)})
    return {
        "transactions": len(seen.time),
        "days": days,
        "labelled": bool(seen.fraud.any()),
        "threshold": policy.threshold,
        "budgets": [
            {
                "rate": float(np.exp(-threshold)),
                "threshold": threshold,
                "current": threshold == policy.threshold,
                **_outcome(seen, policy._replace(threshold=threshold), days),
            }
            for threshold in thresholds
        ],
    }


def would_alert(seen: RecordedScores, policy: Policy) -> IntArray:
    """Which of these transactions would have been alerts, by their places; the others may as well be missing."""
    high = np.flatnonzero(seen.score >= policy.threshold)  # no other can be an alert
    standing = np.zeros(seen.accounts, _STANDING)
    return high[_alerted(policy, seen.account[high], seen.score[high], seen.time[high], standing)]


def _outcome(seen: RecordedScores, policy: Policy, days: float | None) -> dict[str, Any]:
    raised = would_alert(seen, policy)
    outcome: dict[str, Any] = {
        "alerts": len(raised),
        "share": len(raised) / max(1, len(seen.time)),
        "alerts_per_day": None if days is None else len(raised) / days,
    }
    if seen.fraud.any():
        outcome |= against_labels(seen, raised)
    return outcome


def against_labels(seen: RecordedScores, raised: IntArray) -> dict[str, Any]:
    """As a summary counts: an account is caught by an alert from its first fraud on, and false with others only."""
    frauds, never, accounts = np.flatnonzero(seen.fraud), len(seen.time), seen.accounts
    first_fraud = np.full(accounts, never)
    np.minimum.at(first_fraud, seen.account[frauds], frauds)
    true = raised[raised >= first_fraud[seen.account[raised]]]
    caught_at = np.full(accounts, never)
    np.minimum.at(caught_at, seen.account[true], true)
    caught = int((caught_at < never).sum())
    alerted = len(np.unique(seen.account[raised]))
    hits = int(seen.fraud[raised].sum())
    stopped = frauds[frauds >= caught_at[seen.account[frauds]]]
    money = float(seen.amount[frauds].sum())
    return {
        "account": {
            "precision": caught / alerted if alerted else None,
            "recall": caught / int((first_fraud < never).sum()),
        },
        "transaction": {"precision": hits / len(raised) if len(raised) else None, "recall": hits / len(frauds)},
        "money_caught": float(seen.amount[stopped].sum()) / money if money else None,
    }


@compiled()
def _alerted(policy: Policy, account: IntArray, score: FloatArray, time: FloatArray, standing: AnyArray) -> AnyArray:
    """Which of these transactions would have been alerts."""
    cap = np.array([-np.inf, 0.0])
    alerted = np.zeros(len(score), np.bool_)
    for i in range(len(score)):
        alerted[i] = decide(policy, standing[account[i]], score[i], time[i], cap) == ALERTED
    return alerted
