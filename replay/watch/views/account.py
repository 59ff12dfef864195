"""Account: what it did, what was alerted and why, its densities, and what people found."""

from __future__ import annotations

from typing import Any

from replay.cases.cases import EffectiveVerdicts
from replay.cases.verdicts import VerdictEntry
from replay.watch.formats import NotFoundError
from replay.watch.live.index import short
from replay.watch.live.open_cases import is_hidden
from replay.watch.views.context import Query, ViewContext, number, verdict_of
from replay.watch.views.densities import densities_behind
from replay.watch.views.queue import claim_of
from stream_ccsd.calendar import Calendar
from stream_ccsd.records import score_columns
from stream_ccsd.stores import AccountSummary, Record

_POINTS = 2000
_ROWS = 100
_ALERTS = 200
_MERCHANTS = 8
_DRAWN = ("position", "id", "time", "amount", "score", "alert", "merchant", "category", "label")
_RAW = tuple(column.name for column in score_columns() if column.name != "inputs")  # which only model updates read
_LONG = (
    *("tail_rate", "calibrated_on", "threshold", "model", "scores", "reasons", "neighbours", "densities"),
    *("category_changed", "merchant_changed", "partition"),
)


def account(known: ViewContext, query: Query) -> dict[str, Any]:
    """The values of the page; of ``alert`` in the query, that of its account."""
    name, chosen = _asked(known, query)
    with known.reader.records() as records:
        summary = records.account(name)
        rows = records.scores_of(name, limit=_ROWS, columns=_RAW)
        before = rows[0]["position"] if rows else None
        points = records.scores_of(name, before=before, limit=_POINTS - len(rows), columns=_DRAWN)
        points += [{column: row[column] for column in _DRAWN} for row in rows]
        alerts = records.newest_alerts(_ALERTS, account=name)
        if chosen is not None and all(alert["id"] != chosen for alert in alerts):
            alerts += [alert for alert in [records.alert_of(chosen)] if alert is not None]
    if summary is None and alerts:  # a mirror keeps alerts for longer than scores
        times, scores = [alert["time"] for alert in alerts], [alert["score"] for alert in alerts]
        summary = AccountSummary(name, 0, max(times), max(scores), len(alerts))
    if summary is None:
        raise NotFoundError(f"there is no account {name!r} in this stream" if name else "say which account")
    with known.looking() as effective:
        active = known.active(effective)
        shown = [_long(known, effective, alert, is_hidden(alert, active)) for alert in alerts]
        verdicts = [row for key, entries in effective.said.items() if key[0] == name for row in _said(known, entries)]
        claim = claim_of(known, name)
        own = [each for each in active if each.what == "account" and each.value == name]
        marks = {key[1]: verdict_of(stands)["verdict"] for key, stands in effective.stands.items() if key[0] == name}
        notes = known.follower.notes
    if chosen is None and shown:  # what is left to do comes first
        chosen = next((alert["id"] for alert in shown if alert["verdict"] is None), shown[0]["id"])
    picked = next((alert for alert in shown if alert["id"] == chosen), None)
    return {
        "account": name,
        "transactions": summary.transactions,
        "maximum": summary.maximum,
        "last_when": known.when(summary.last_time),
        "alerts": shown,
        "chosen": chosen,
        "timeline": _timeline(known, query, points, alerts, marks),
        "hours": _hours(known.calendar, points),
        "merchants": _merchants(points),
        "laws": None if picked is None else densities_behind(known.model_cache, notes.get("model"), picked, points),
        "verdicts": sorted(verdicts, key=lambda row: -row["sequence"]),
        "claim": claim,
        "suppressions": [
            {"who": each.who, "why": each.why, "end": each.end, "end_when": known.when(each.end)} for each in own
        ],
        "rows": [_row(known, row) for row in rows[::-1]],
        "more": summary.transactions > len(rows),
    }


def _asked(known: ViewContext, query: Query) -> tuple[str, str | None]:
    """Whose page it is, and which alert is in focus."""
    chosen = query.get("alert") or None
    if chosen is None:
        return query.get("name", ""), None
    with known.follower.lock:
        row = known.follower.alerts.by_id.get(chosen)
    if row is None:  # older than what is kept in memory
        with known.reader.records() as records:
            row = records.alert_of(chosen)
    if row is None:
        raise NotFoundError(f"there is no alert {chosen!r} in this stream")
    return row["account"], chosen


def _long(known: ViewContext, effective: EffectiveVerdicts, alert: Record, hidden: bool) -> dict[str, Any]:
    entries = effective.said.get((alert["account"], alert["transaction"]), [])
    extra = {name: alert.get(name) for name in _LONG}
    return known.shown(short(alert), effective, hidden) | extra | {"history": _said(known, entries)}


def _said(known: ViewContext, entries: list[VerdictEntry]) -> list[dict[str, Any]]:
    """Verdicts on one transaction, in the order they were recorded, and which of them counts."""
    if not entries:
        return []
    stands = known.desk.refresh().stands.get(entries[0].verdict.key)
    latest = None if stands is None else stands.verdict
    return [
        entry.to_dict() | {"when": known.when(entry.verdict.time), "counts": entry.verdict == latest}
        for entry in entries
    ]


def _timeline(
    known: ViewContext, query: Query, points: list[Record], alerts: list[Record], marks: dict[str, Any]
) -> dict[str, Any]:
    ids = {alert["position"]: alert["id"] for alert in alerts}
    first, last = (points[0]["time"], points[-1]["time"]) if points else (0.0, 0.0)
    start, end = number(query, "from"), number(query, "to")
    low, high = first if start is None else start, last if end is None else end
    return {
        "points": [
            {name: point[name] for name in _DRAWN if name != "id"}
            | {"id": ids.get(point["position"]), "when": known.when(point["time"]), "verdict": marks.get(point["id"])}
            for point in points
            if low <= point["time"] <= high
        ],
        "from": low,
        "to": high,
        "first": first,
        "last": last,
        "threshold": known.threshold,
    }


def _hours(calendar: Calendar, points: list[Record]) -> dict[str, list[int]] | None:
    day = calendar.of_days(1.0)
    if day is None:
        return None
    own, alerted = [0] * 24, [0] * 24
    for point in points:
        moment = calendar.moment(point["time"])
        hour = moment.hour if moment is not None else int(point["time"] / day % 1.0 * 24.0)
        own[hour] += 1
        alerted[hour] += point["alert"]
    # Where time is in whole days, an hour says nothing.
    return {"own": own, "alerts": alerted} if sum(count > 0 for count in own) > 1 else None


def _merchants(points: list[Record]) -> list[dict[str, Any]]:
    found: dict[str, list[float]] = {}
    for point in points:
        sums = found.setdefault(point["merchant"], [0, 0.0])
        sums[0] += 1
        sums[1] += point["amount"]
    most = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))[:_MERCHANTS]
    return [{"name": name, "count": int(count), "amount": amount} for name, (count, amount) in most]


def _row(known: ViewContext, row: Record) -> dict[str, Any]:
    """A raw transaction with its scores."""
    return row | {"when": known.when(row["time"])}
