"""Tune: what other alert budgets would have meant, the one that holds, and what is kept out of the queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from replay.budget import RATES, RecordedScores, against_labels, would_alert
from replay.cases.cases import EffectiveVerdicts, Suppression
from replay.watch.views.context import Query, ViewContext, number, verdict_of
from stream_ccsd.alerts.policy import Policy, threshold_by_budget
from stream_ccsd.numerics.arrays import AnyArray
from stream_ccsd.verdict import Key

# Budgets on the curve, besides the one that holds.
_CURVE = 24
# Alerts that are shown of those that another threshold would have added.
_TRIED = 15
# Verdicts that say more than the labels of the source, where it has some.
_ENOUGH = 30


def tune(known: ViewContext, query: Query) -> dict[str, Any]:
    """The values of the page."""
    threshold = known.threshold
    with known.looking() as effective:
        scores = known.follower.scores
        seen, keys, span = scores.scored, scores.keys, scores.last_time - scores.first_time
        transactions = scores.transactions
        judged = _judged(effective)
        verdicts = [(scores.places.get(key), stands.label) for key, stands in effective.stands.items() if stands.label]
        changes = [
            {"sequence": entry.sequence, "recorded": entry.recorded, "who": entry.said.who, **entry.said.body}
            for entry in reversed(effective.budgets)
        ]
        suppressions = [_suppression(known, each) for each in reversed(effective.suppressions.values())]
        terms = sorted({row["best_term"] for row in known.follower.alerts.rows})
    day = known.calendar.of_days(1.0)
    days = float(span / day) if day is not None and span > 0 else None
    known_from, fraud, normal, missed = _labels(seen, verdicts)
    policy = Policy(**known.reader.facts["policy"])._replace(explored=0.0)
    tried = number(query, "threshold")
    return {
        "trial": None if tried is None else _trial(known, seen, keys, policy._replace(threshold=threshold), tried),
        "threshold": threshold,
        "rate": float(np.exp(-threshold)),
        "days": days,
        "transactions": transactions,
        "judged": judged,
        "known_from": known_from,
        "curve": [
            {
                "threshold": each,
                "rate": float(np.exp(-each)),
                "current": each == threshold,
                **_outcome(seen, policy._replace(threshold=each), days, fraud, normal, missed),
            }
            for each in _thresholds(threshold)
        ],
        "changes": changes,
        "suppressions": suppressions,
        "reasons": terms,
    }


def _trial(
    known: ViewContext, seen: RecordedScores, keys: Sequence[Key], policy: Policy, threshold: float
) -> dict[str, Any]:
    """What another threshold would have changed: how many alerts, and the highest of those that it adds."""
    now = set(would_alert(seen, policy).tolist())
    then = set(would_alert(seen, policy._replace(threshold=threshold)).tolist())
    gained = sorted(then - now, key=lambda place: -seen.score[place])
    with known.looking() as effective:
        rows = [
            {
                "account": keys[place][0],
                "transaction": keys[place][1],
                "time": float(seen.time[place]),
                "when": known.when(float(seen.time[place])),
                "amount": float(seen.amount[place]),
                "score": float(seen.score[place]),
                "verdict": verdict_of(effective.stands.get(keys[place]))["verdict"],
            }
            for place in gained[:_TRIED]
        ]
    return {
        "threshold": threshold,
        "alerts": len(then),
        "gained": len(gained),
        "lost": len(now - then),
        "below": threshold < known.follower.scores.floor,
        "examples": rows,
    }


def _thresholds(current: float) -> list[float]:
    low, high = threshold_by_budget(max(RATES)), threshold_by_budget(min(RATES))
    return sorted({current, *np.linspace(low, high, _CURVE).round(3).tolist()})


def _judged(effective: EffectiveVerdicts) -> dict[str, int]:
    counts = dict.fromkeys(("fraud", "normal", "unsure", "disputed"), 0)
    for stands in effective.stands.values():
        counts["disputed" if stands.disputed else stands.verdict.verdict] += 1
    return counts


def _labels(
    seen: RecordedScores, verdicts: Sequence[tuple[int | None, str]]
) -> tuple[str | None, AnyArray, AnyArray, int]:
    """Which transactions are fraud and which normal, by verdicts or else by labels; and frauds with low scores."""
    if len(verdicts) >= _ENOUGH or (verdicts and not seen.fraud.any()):
        fraud, normal = (np.zeros(len(seen.time), bool) for _ in range(2))
        for kind, label in ((fraud, "fraud"), (normal, "normal")):
            kind[[place for place, found in verdicts if place is not None and found == label]] = True
        return "verdicts", fraud, normal, sum(place is None and found == "fraud" for place, found in verdicts)
    if seen.fraud.any():
        return "labels", seen.fraud, ~seen.fraud, 0
    nobody = np.zeros(len(seen.time), bool)
    return None, nobody, nobody, 0


def _outcome(
    seen: RecordedScores, policy: Policy, days: float | None, fraud: AnyArray, normal: AnyArray, missed: int
) -> dict[str, Any]:
    """Alerts, and of those with a verdict, how many are fraud; recall is among frauds that are known."""
    raised = would_alert(seen, policy)
    hits, wrong = int(fraud[raised].sum()), int(normal[raised].sum())
    frauds = int(fraud.sum()) + missed
    caught = against_labels(replace(seen, fraud=fraud), raised) if fraud.any() else {}
    return {
        "alerts": len(raised),
        "alerts_per_day": None if days is None else len(raised) / days,
        "precision": hits / (hits + wrong) if hits + wrong else None,
        "recall": hits / frauds if frauds else None,
        "money_caught": caught.get("money_caught"),
    }


def _suppression(known: ViewContext, each: Suppression) -> dict[str, Any]:
    last = known.follower.scores.last_time
    hidden = sum(each.hides(row) for row in known.follower.alerts.rows)
    return {
        **{name: getattr(each, name) for name in ("sequence", "recorded", "who", "what", "value", "why", "lifted")},
        "start": each.start,
        "end": each.end,
        "start_when": known.when(each.start),
        "end_when": known.when(each.end),
        "active": each.lifted is None and not last >= each.end,
        "hidden": hidden,
    }
