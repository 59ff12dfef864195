"""Now: how the stream goes, and the newest alerts."""

from __future__ import annotations

import math
import time
from typing import Any

from replay.watch.views.context import Query, ViewContext

_NEWEST = 25
_BINS = 120


def now(known: ViewContext, query: Query) -> dict[str, Any]:
    """The values of the page."""
    beat = pulse(known)
    with known.looking() as effective:
        newest = [known.shown(row, effective) for row in known.follower.alerts.rows[-_NEWEST:][::-1]]
        minutes = known.follower.minutes.to_dict(time.time())
        letters = known.follower.dead_letters[:]
    return {
        "pulse": beat,
        "newest": newest,
        "drift": drift(known),
        "dead_letters": [{"kind": each.kind, "field": each.field, "count": each.count} for each in letters],
        "minutes": minutes,
        "over_time": _over_time(known),
    }


def pulse(known: ViewContext) -> dict[str, Any]:
    """How it goes, in few numbers."""
    follower = known.follower
    with known.looking():
        totals, notes, last = follower.totals, follower.notes, follower.scores.last_time
        when = last if math.isfinite(last) else None
        return {
            "position": totals.position,
            "transactions": totals.transactions,
            "alerts": totals.alerts,
            "dead_letters": totals.dead_letters,
            "accounts": totals.accounts,
            "time": when,
            "when": known.when(when),
            "per_minute": follower.minutes.per_minute(time.time()),
            "latency_ms": notes.get("latency_ms") or {"p50": None, "p99": None},
            "state": follower.state,
            "problem": follower.trouble,
            "histogram": follower.scores.histogram(),
            "threshold": known.threshold,
            "open_cases": len(known.open_cases.of(known).cases),
            "drift": len(notes.get("drift", ())),
        }


def drift(known: ViewContext) -> list[dict[str, Any]]:
    """When the stream changed, the newest first."""
    events = known.follower.notes.get("drift", [])
    return [{"time": event["time"], "when": known.when(event["time"]), "text": event["text"]} for event in events[::-1]]


def _over_time(known: ViewContext) -> list[dict[str, Any]]:
    with known.looking():
        first, last = known.follower.scores.first_time, known.follower.scores.last_time
    if not last > first:
        return []
    with known.reader.records() as records:
        bins = records.counts_over_time((last - first) / _BINS)
    return [
        {"start": each.start, "when": known.when(each.start), "transactions": each.transactions, "alerts": each.alerts}
        for each in bins[-2 * _BINS :]
    ]
