"""Model: its versions, how right its alerts were week by week, what each field contributes, and its challenger."""

from __future__ import annotations

from typing import Any

import numpy as np

from replay.watch.views.context import Query, ViewContext
from replay.watch.views.now import drift
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.stores import Record
from stream_ccsd.verdict import EffectiveVerdict

_VERSIONS = 20
_WEEKS = 104


def model(known: ViewContext, query: Query) -> dict[str, Any]:
    """The values of the page."""
    with known.looking() as effective:
        rows, stands = known.follower.alerts.rows, effective.stands
        used = rows[-1]["model"] if rows else known.reader.facts["model"]

        def judged() -> list[tuple[Record, EffectiveVerdict | None]]:
            return [(row, stands.get((row["account"], row["transaction"]))) for row in rows]

        weeks = known.open_cases.made("weeks", known, lambda: _weeks(known, judged()))
        fields = known.open_cases.made("fields", known, lambda: _fields(judged()))
    versions, pinned, problem = _versions(known)
    return {
        "version": used,
        "versions": versions,
        "pinned": pinned,
        "can_pin": bool(versions),
        "problem": problem,
        "weeks": weeks,
        "fields": fields,
        "challenger": known.rivalry.newest(),
        "drift": drift(known),
    }


def _versions(known: ViewContext) -> tuple[list[dict[str, Any]], str | None, str | None]:
    try:
        pinned = known.model_cache.versions.choice().pinned
        described = known.model_cache.described(_VERSIONS)
    except StreamCcsdError as error:
        return [], None, str(error)
    found = []
    for row in described:
        update = row.get("lessons") or {}
        moment = update.get("moment")
        found.append(
            {
                **{name: row.get(name) for name in ("name", "version", "current", "pinned", "problem")},
                "when": known.when(moment),
                "lessons": update.get("number"),
                "judged": None if "frauds" not in update else f"{update['frauds']:,} of {_all(update):,} fraud",
                "weighed_by": update.get("weighed_by"),
            }
        )
    return found, pinned, None


def _all(update: dict[str, Any]) -> int:
    return int(update["frauds"] + update["others"])


def _weeks(known: ViewContext, judged: list[tuple[Record, EffectiveVerdict | None]]) -> list[dict[str, Any]]:
    """Of the alerts of each week, as far as somebody found them fraud or normal."""
    week = known.days(7.0)
    counts: dict[int, list[int]] = {}
    for row, stands in judged:
        if stands is not None and stands.label is not None:
            sums = counts.setdefault(int(np.floor(row["time"] / week)), [0, 0])
            sums[stands.label == "fraud"] += 1
    return [
        {
            "start": place * week,
            "when": known.when(place * week),
            "judged": normal + fraud,
            "fraud": fraud,
            "precision": fraud / (normal + fraud),
        }
        for place, (normal, fraud) in sorted(counts.items())[-_WEEKS:]
    ]


def _fields(judged: list[tuple[Record, EffectiveVerdict | None]]) -> list[dict[str, Any]]:
    """What each term adds to an alert on average: to all, to those that were fraud, to those that were not."""
    sums: dict[str, list[float]] = {}
    counts = [0, 0, 0]
    for row, stands in judged:
        label = None if stands is None else stands.label
        places = [0, *([1] if label == "fraud" else [2] if label == "normal" else [])]
        for place in places:
            counts[place] += 1
        for term, nats in row["terms"].items():
            own = sums.setdefault(term, [0.0, 0.0, 0.0, 0.0])
            own[3] += 1
            for place in places:
                own[place] += nats
    rows = [
        {
            "name": term,
            "mean_nats": own[0] / counts[0],
            "fraud_nats": own[1] / counts[1] if counts[1] else None,
            "normal_nats": own[2] / counts[2] if counts[2] else None,
            "alerts": int(own[3]),
        }
        for term, own in sums.items()
    ]
    return sorted(rows, key=lambda row: -row["mean_nats"])
