"""What the views would show: plain values as the contract has them, made up once, without an engine."""

import math
import random
from typing import Any

from replay.watch.live.background import differs
from stream_ccsd.calendar import Calendar, parse_moment
from stream_ccsd.learning.reviewers import standing_out
from stream_ccsd.verdict import Verdict

CALENDAR = Calendar("days", parse_moment("2026-01-05"))
THRESHOLD = 6.91
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202egnol yrev\u202c " + "שלום عالم " + "x" * 300
_NOW = 1_794_970_000.0
_REASONS = [
    "the last seven transactions fit anyone better than this account",
    "1,003.55 is more than anyone paid for 'electronics' in 293 normal transactions",
    "seventh transaction within an hour; accounts that pay as often make 2.6 within a day",
    "category 'electronics' is 1 in 92 normal transactions",
    "merchant 'm0229' never occurs in normal transactions of 'groceries'",
    "5.2 times what this account usually pays for such things",
]
Dict = dict[str, Any]


def _iso(time: float) -> str:
    return CALENDAR.iso(time) or str(time)


def alert(k: int, account: str | None = None, time: float | None = None) -> Dict:
    draw = random.Random(k)
    time = 20.0 + k * 1.37 if time is None else time
    account = account or f"c{draw.randrange(400):05d}"
    score = THRESHOLD + draw.expovariate(0.3)
    reason = _REASONS[k % len(_REASONS)]
    return {
        "position": 1000 + k,
        "id": f"{k:024x}",
        "account": account,
        "transaction": f"t{5000 + k}",
        "time": time,
        "when": _iso(time),
        "amount": round(math.exp(draw.gauss(4.5, 1.2)), 2),
        "category": draw.choice(["electronics", "groceries", "travel"]),
        "merchant": f"m{draw.randrange(300):04d}",
        "score": score,
        "expected_loss": score * draw.uniform(0.5, 90),
        "raised_by": draw.choice(["evidence", "takeover", "divergence"]),
        "reason": reason,
        "reasons": [{"nats": 3.1, "text": reason}, {"nats": -0.4, "text": "everything else about it, taken together"}],
        "headline": f"{account}: 1 in {draw.randrange(1200, 27000):,} normal transactions score this high; {reason}",
        "verdict": [None, None, "fraud", "normal", "unsure"][k % 5],
        "disputed": k % 7 == 3,
        "suppressed": k % 11 == 5,
        "fields": {"country": "AT", "device": "" if k % 3 else "d00052s"},
    }


def pulse() -> Dict:
    counts = [int(21_000 * math.exp(-0.75 * k)) + (9 - k % 9 if k < 30 else 0) for k in range(40)]
    return {
        "position": 30159,
        "transactions": 30159,
        "alerts": 175,
        "dead_letters": 12,
        "accounts": 210,
        "time": 71.42,
        "when": _iso(71.42),
        "per_minute": {"transactions": 28431.2, "alerts": 14.3},
        "latency_ms": {"p50": 0.21, "p99": 11.47},
        "state": "running",
        "histogram": {"edges": [k * 0.8 for k in range(41)], "counts": counts},
        "threshold": THRESHOLD,
        "open_cases": 61,
        "drift": 2,
    }


_DRIFT = [
    {"time": 41.0, "when": _iso(41.0), "text": "amounts of 'travel' have been 1.8 times higher since 2026-02-11"},
    {"time": 63.5, "when": _iso(63.5), "text": "18 % of the transactions come from country 'PL', 4 % before"},
]


def now() -> Dict:
    draw = random.Random(3)
    return {
        "pulse": pulse(),
        "newest": [alert(k) for k in range(25, 0, -1)],
        "drift": _DRIFT,
        "dead_letters": [
            {"kind": "malformed", "field": "amount", "count": 9},
            {"kind": "too late", "field": None, "count": 3},
        ],
        "minutes": {
            "starts": [_NOW - 60 * (30 - k) for k in range(30)],
            "transactions": [0] * 6 + [int(draw.gauss(28_000, 2500)) for _ in range(24)],
            "alerts": [0] * 6 + [draw.randrange(4, 25) for _ in range(24)],
        },
        "over_time": [
            {
                "start": k * 0.6,
                "when": _iso(k * 0.6),
                "transactions": int(draw.gauss(250, 40)),
                "alerts": draw.randrange(4) * (k % 3 > 0),
            }
            for k in range(120)
        ],
    }


def case(k: int) -> Dict:
    alerts = [alert(100 * k + j, f"c{k:05d}") | {"verdict": None} for j in range(1 + k % 4)]
    held = {
        1: {"who": "bea", "until": _NOW + 300, "mine": True, "own": True},
        3: {"who": "tom", "until": _NOW + 90, "mine": False, "own": False},
    }
    return {
        "account": f"c{k:05d}",
        "alerts": alerts,
        "score": max(a["score"] for a in alerts),
        "expected_loss": max(a["expected_loss"] for a in alerts),
        "amount": sum(a["amount"] for a in alerts),
        "newest": alerts[-1]["time"],
        "when": alerts[-1]["when"],
        "reasons": sorted({a["reason"] for a in alerts}),
        "claim": held.get(k),
        "first": alerts[0]["position"],
    }


def queue() -> Dict:
    return {
        "cases": [case(k) for k in range(1, 9)],
        "total": 61,
        "page": 1,
        "pages": 2,
        "by": "loss",
        "filters": {"score": "7", "category": "electronics", "by": "loss"},
        "mine": 1,
        "suppressed": 3,
        "choices": {
            "categories": ["electronics", "groceries", "travel"],
            "merchants": ["m0001", "m0229"],
            "fields": ["country", "device"],
        },
        "below_threshold": 4,
    }


def _bell(axis: list[float], middle: float, width: float) -> list[float]:
    return [math.exp(-(((a - middle) / width) ** 2) / 2) / width for a in axis]


def verdicts() -> list[Dict]:
    def verdict(n: int, finding: str, who: str, why: str, counts: bool) -> Dict:
        return {
            "sequence": n,
            "recorded": _NOW - 4000 + 700 * n,
            "transaction": "t5003",
            "verdict": finding,
            "who": who,
            "why": why,
            "when": _iso(70.1 + n / 10),
            "source": "investigator",
            "counts": counts,
        }

    return [
        verdict(2, "fraud", "bea", "card lost abroad, customer called", True),
        verdict(1, "normal", "tom", "he often buys phones", False),
    ]


def account() -> Dict:
    draw = random.Random(9)
    alerts = [alert(k, "c00245", 63.0 + k * 0.7) for k in range(3, 8)]
    for k, a in enumerate(alerts):
        axis = [0.32 * j for j in range(24)]
        a |= {
            "tail_rate": 0.00015,
            "calibrated_on": 27088,
            "threshold": THRESHOLD,
            "model": "c708ffc6f3a5",
            "scores": {"evidence": 16.75, "takeover": 23.26, "divergence": None if k else 0.06},
            "reasons": [
                {"nats": n, "text": text} for n, text in zip([23.3, 14.5, 2.5, 1.6, 0.5], _REASONS, strict=False)
            ]
            + [{"nats": -2.7, "text": "everything else about it, taken together"}],
            "neighbours": [
                {"category": "groceries", "merchant": f"m{j:04d}", "share": 0.17 / (j + 1)} for j in range(3)
            ],
            "densities": {"change": axis, "account": _bell(axis, 1.8, 1.6), "normal": _bell(axis, 0.8, 0.7)},
            "category_changed": False,
            "merchant_changed": True,
            "history": verdicts() if k == 0 else [],
        }
    points = []
    for k in range(160):
        time = 0.3 + k * 0.43 + draw.random() / 4
        points.append(
            {
                "position": k,
                "time": time,
                "when": _iso(time),
                "amount": round(math.exp(draw.gauss(3.6, 0.9)), 2),
                "score": draw.expovariate(0.9),
                "alert": False,
                "id": None,
                "merchant": f"m{draw.randrange(30):04d}",
                "category": "groceries",
                "verdict": None,
                "label": None,
            }
        )
    points += [
        {k: a[k] for k in ("position", "time", "when", "amount", "score", "id", "merchant", "category", "verdict")}
        | {"alert": True, "label": "new regime"}
        for a in alerts
    ]
    points.sort(key=lambda p: p["time"])
    amounts = [math.exp(k / 8) for k in range(64)]
    logs = [math.log(a) for a in amounts]
    keys = ("position", "time", "when", "amount", "merchant", "category", "score", "alert", "label")
    rows = [
        {k: p[k] for k in keys}
        | {
            "id": f"t{p['position']}",
            "fields": {"country": "PL", "device": "d00245k"},
            "evidence": -3.2,
            "takeover": 0.0,
            "divergence": None,
            "status": "scored",
        }
        for p in reversed(points[-40:])
    ]
    hourly = [0, 0, 0, 0, 0, 1, 4, 9, 12, 7, 5, 8, 14, 9, 6, 5, 8, 16, 22, 18, 11, 6, 2, 1]
    return {
        "account": "c00245",
        "transactions": len(points),
        "maximum": 31.34,
        "last_when": points[-1]["when"],
        "alerts": alerts,
        "chosen": alerts[0]["id"],
        "timeline": {
            "points": points,
            "from": points[0]["time"],
            "to": points[-1]["time"],
            "first": points[0]["time"],
            "last": points[-1]["time"],
            "threshold": THRESHOLD,
        },
        "hours": {"own": hourly, "alerts": [0] * 18 + [3, 1, 1, 0, 0, 0]},
        "merchants": [{"name": f"m{k:04d}", "count": 40 // (k + 1), "amount": 1200.5 / (k + 1)} for k in range(8)],
        "laws": {
            "amount": {
                "axis": amounts,
                "normal": _bell(logs, 3.4, 0.9),
                "own": _bell(logs, 3.0, 0.5),
                "fraud": _bell(logs, 5.4, 1.1),
                "value": 726.58,
                "unit": "amount",
            },
            "hour": {
                "axis": [float(h) for h in range(25)],
                "normal": _bell([float(h) for h in range(25)], 15.0, 4.0),
                "own": _bell([float(h) for h in range(25)], 18.0, 2.0),
                "fraud": None,
                "value": 3.4,
                "unit": "hour of the day",
            },
        },
        "verdicts": verdicts(),
        "claim": {"who": "bea", "until": _NOW + 300, "mine": True, "own": True},
        "suppressions": [],
        "rows": rows,
        "more": True,
    }


def trial() -> Dict:
    return {"threshold": 5.81, "alerts": 268, "gained": 12, "lost": 0, "below": True} | {
        "examples": [
            {"account": "c00017", "transaction": "t1", "time": 3.0, "when": _iso(3.0), "amount": 18.2, "score": 6.7}
            | {"verdict": verdict}
            for verdict in ("fraud", None)
        ]
    }


def tune() -> Dict:
    curve = []
    for k in range(12):
        threshold = [4.0, 4.6, 5.3, 5.8, 6.2, THRESHOLD, 7.6, 8.5, 9.2, 9.9, 10.8, 11.5][k]
        alerts = int(2400 * math.exp(-0.55 * (threshold - 4)))
        curve.append(
            {
                "threshold": threshold,
                "rate": math.exp(-threshold),
                "alerts": alerts,
                "alerts_per_day": alerts / 120,
                "current": threshold == THRESHOLD,
                "precision": min(0.35 + 0.06 * k, 0.97),
                "recall": 0.95 - 0.05 * k,
                "money_caught": 0.99 - 0.03 * k,
            }
        )
    suppression = {
        "recorded": _NOW - 7200,
        "who": "ada",
        "why": "a promotion of theirs until Sunday",
        "start": 60.0,
        "end": 74.0,
        "start_when": _iso(60.0),
        "end_when": _iso(74.0),
    }
    return {
        "trial": trial(),
        "threshold": THRESHOLD,
        "rate": 0.001,
        "days": 119.8,
        "transactions": 30159,
        "judged": {"fraud": 64, "normal": 14, "unsure": 3, "disputed": 1},
        "known_from": "verdicts",
        "curve": curve,
        "changes": [
            {"sequence": 9, "recorded": _NOW - 90_000, "who": "ada", "from": 7.6, "to": 6.91, "why": "two more people"}
        ],
        "suppressions": [
            suppression
            | {"sequence": 12, "what": "merchant", "value": "m0229", "active": True, "hidden": 7, "lifted": None},
            suppression
            | {"sequence": 5, "what": "reason", "value": "hour", "active": False, "hidden": 2}
            | {"lifted": {"who": "bea", "why": "hid real fraud", "recorded": _NOW - 100}},
        ],
        "reasons": ["amount", "merchant", "hour"],
    }


def model() -> Dict:
    names = ("amount", "category", "merchant", "takeover", "gap", "country", "device", "hour")
    shares = [(0, 0), (4, 3), (9, 8), (15, 11), (12, 11), (0, 0), (21, 18), (17, 15), (8, 8)]
    return {
        "version": "c708ffc6f3a5",
        "versions": [
            {"name": "0003", "version": "c708ffc6f3a5", "current": True, "pinned": False, "when": _iso(70)}
            | {"lessons": 3, "judged": "78 of 900 fraud", "weighed_by": "weights"},
            {"name": "0002", "version": "11aa04c6f3a5", "current": False, "pinned": True, "when": _iso(63)}
            | {"lessons": 2, "judged": "51 of 700 fraud", "weighed_by": None},
        ],
        "pinned": "0002",
        "can_pin": True,
        "weeks": [
            {"start": 7.0 * k, "when": _iso(7.0 * k), "judged": n, "fraud": f, "precision": f / n if n else None}
            for k, (n, f) in enumerate(shares)
        ],
        "fields": [
            {"name": name, "mean_nats": 2.4 - 0.4 * k, "fraud_nats": 3.5 - 0.5 * k, "normal_nats": 1.1 - 0.4 * k}
            | {"alerts": 60 - 7 * k}
            for k, name in enumerate(names)
        ],
        "challenger": {
            "champion": {},
            "challenger": {},
            "rows": [
                ["alerts", 175, 161, "132 shared, 29 gained, 43 lost"],
                ["precision", "82 %", "86 %", "+4 points (−2 to +9)"],
                ["recall", "77 %", "77 %", "no difference"],
            ],
            "note": "By verdicts on 78 accounts; an exact McNemar test on those they disagree about: p = 0.21.",
        },
        "drift": _DRIFT,
    }


def audit() -> Dict:
    kinds = ["verdict", "claim", "release", "budget", "suppress", "lift", "pin"]
    entries = [
        {
            "sequence": n,
            "recorded": _NOW - 600 * (60 - n),
            "kind": kinds[n % 7],
            "who": "bea" if n % 2 else "tom",
            "account": f"c{n:05d}" if n % 7 < 3 else None,
            "transaction": f"t{n}" if n % 7 == 0 else None,
            "text": "found transaction t56 of c00056 to be fraud: card lost abroad",
            "hash": f"{n * 7919:064x}"[::-1],
        }
        for n in range(56, 36, -1)
    ]
    chain = {"entries": entries, "whole": True, "checked": 56, "head": entries[0]["hash"], "before": 37}
    return chain | {"people": 61, "reviewers": _reviewers()}


def _reviewers() -> list[Dict]:
    """Eve says fraud far too often, and against the others, who do as people do."""
    said = (
        Verdict(f"t{n}", "c00001", "fraud" if n % often == 0 else "normal", who, 1.0)
        for who, first, often in (("tom", 0, 10), ("bea", 100, 10), ("cem", 200, 10), ("dee", 300, 10), ("eve", 310, 2))
        for n in range(first, first + (60 if who == "eve" else 200))
    )
    return [one.to_dict() | {"differs": differs(one)} for one in standing_out(said)]


def bare() -> dict[str, Dict]:
    """Every view before anything has happened."""
    first = pulse() | {
        "transactions": 0,
        "alerts": 0,
        "time": None,
        "when": None,
        "per_minute": {"transactions": 0.0, "alerts": 0.0},
        "latency_ms": {"p50": None, "p99": None},
        "state": "waiting",
        "histogram": {"edges": [], "counts": []},
        "open_cases": 0,
    }
    empty = {"starts": [], "transactions": [], "alerts": []}
    choices = {"categories": [], "merchants": [], "fields": []}
    nobody = {"fraud": 0, "normal": 0, "unsure": 0, "disputed": 0}
    line = {"points": [], "from": None, "to": None, "first": None, "last": None, "threshold": THRESHOLD}
    return {
        "now": {
            "pulse": first,
            "newest": [],
            "drift": [],
            "dead_letters": [],
            "minutes": empty,
            "over_time": [],
        },
        "queue": queue() | {"cases": [], "total": 0, "pages": 0, "filters": {}, "choices": choices, "mine": 0},
        "account": account()
        | {"alerts": [], "chosen": None, "timeline": line, "hours": None, "merchants": [], "laws": None, "rows": []}
        | {"verdicts": [], "claim": None, "more": False, "maximum": None, "last_when": None},
        "tune": tune()
        | {"trial": None}
        | {"curve": [], "changes": [], "suppressions": [], "days": None, "rate": None, "judged": nobody}
        | {"known_from": None, "reasons": []},
        "model": model() | {"versions": [], "weeks": [], "fields": [], "challenger": None, "drift": []},
        "audit": audit() | {"entries": [], "checked": 0, "head": None, "before": None} | {"people": 0, "reviewers": []},
    }


def full() -> dict[str, Dict]:
    return {
        "now": now(),
        "queue": queue(),
        "account": account(),
        "tune": tune(),
        "model": model(),
        "audit": audit(),
        "login": {"error": "this token is not known"},
        "error": {"status": 404, "title": "No such alert", "error": "no alert 'abc' was recorded"},
    }


# Texts that the software says itself: kinds, states and ids, which no transaction can bring in.
_OURS = {"verdict", "state", "by", "when", "start_when", "end_when", "last_when", "id", "chosen", "known_from"}


def evil(value: Any, name: str = "") -> Any:
    """The same with the worst text in every place that a transaction, a person or a file can fill."""
    if isinstance(value, dict):
        named = {key: evil(item, key) for key, item in value.items()}
        return named if name != "fields" else {EVIL: EVIL}
    if isinstance(value, list):
        return [evil(item) for item in value]
    return EVIL if isinstance(value, str) and name not in _OURS else value
