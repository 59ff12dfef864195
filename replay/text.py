"""A rate and what raised an alert, in few words."""

from __future__ import annotations

from typing import Any

# The score that raised an alert, or the largest term of its evidence; what is not here is called as it is.
_WHY = {
    "amount_own": "more than usual",
    "category": "rare category",
    "merchant": "rare merchant",
    "place_own": "new place",
    "hour_own": "own hours",
    "count_hour": "many an hour",
    "count_day": "many a day",
}


def why_words(why: str) -> str:
    """What an alert is mostly for.

    >>> why_words("place_own"), why_words("device_own"), why_words("takeover")
    ('new place', 'new device', 'takeover')
    """
    return _WHY.get(why) or (f"new {why.removesuffix('_own')}" if why.endswith("_own") else why)


def per_thousand(rate: float) -> str:
    """A rate for people.

    >>> per_thousand(0.001), per_thousand(0.00123), per_thousand(0.02), per_thousand(1e-5)
    ('1 in 1,000', '1.2 in 1,000', '20 in 1,000', '0.01 in 1,000')
    """
    return f"{float(f'{1000 * rate:.2g}'):,.4g} in 1,000"


def learning_words(lessons: dict[str, Any]) -> str:
    """What model updates brought: from what the last one learnt, what it weighs evidence by, how that was measured.

    >>> learning_words({"held": 9, "model": "5a", "models": "r.db.models", "last": None, "adapted": None})
    '9 lessons: nothing to learn from yet (model 5a)'
    """
    last, adapted, text = lessons["last"], lessons["adapted"], f"{lessons['held']:,} lessons"
    if last:
        text += f": the last learnt from {last['frauds']:,} frauds and {last['others']:,} others"
        text += f", weighed by {last['weighed_by']}"
        if "average_precision" in last:
            text += f" (average precision {last['average_precision']:.2f} on accounts left out)"
        if last["disputed"] or last["waiting"] or last["too_late"]:
            text += f"; disputed {last['disputed']:,}, waiting {last['waiting']:,}, too late {last['too_late']:,}"
        if last.get("outweighed"):
            text += f"; left out {last['outweighed']:,} frauds that one person alone found at one merchant"
        if last.get("silence") == "unknown":
            text += "; verdicts are on alerts alone: others are not taken to be normal"
    if adapted:
        text += f"; laws followed {adapted['transactions']:,} transactions"
    if not last and not adapted:
        return f"{text}: nothing to learn from yet (model {lessons['model']})"
    return f"{text}; models: {lessons['models']}"
