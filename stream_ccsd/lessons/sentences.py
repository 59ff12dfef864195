"""A change of the stream as an event with a sentence for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from stream_ccsd.calendar import Calendar, plain_number
from stream_ccsd.lessons.glance import DIGITS, RATES, Layout
from stream_ccsd.numeric import IntArray

# From this ratio on, and with so many of them, it is said how often a category scores high.
_WORTH_SAYING, _ENOUGH = 1.3, 5


@dataclass(frozen=True)
class DriftEvent:
    """The stream has changed."""

    time: float  # when it was noticed
    since: float  # when it most likely began
    what: str  # rate, amount, evidence, precision or mix
    field: str  # category, merchant or a term of the evidence; empty where it is about all
    value: str  # the category or merchant; of a rate of all, the rate
    before: float
    after: float
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class Change(NamedTuple):
    """What a watch has found: in which of its series, since when, and the sums before and after."""

    what: str
    field: str
    place: int
    since: float
    before: IntArray
    after: IntArray


def described(change: Change, time: float, calendar: Calendar, layout: Layout) -> DriftEvent:
    """The event of a change that was noticed at this time."""
    before = {name: change.before[at] for name, at in layout.slices.items()}
    after = {name: change.after[at] for name, at in layout.slices.items()}
    field, value, old, new, text = _SAID[change.what](change, before, after, layout)
    since = _day(calendar, change.since)
    return DriftEvent(time, change.since, change.what, field, value, float(old), float(new), f"since {since} {text}")


def _day(calendar: Calendar, time: float) -> str:
    moment = calendar.moment(time)
    return f"time {plain_number(time)}" if moment is None else f"{moment:%Y-%m-%d}"


_Sums = dict[str, IntArray]
_Said = tuple[str, str, float, float, str]
"""Field, value, before and after, sentence."""


def _rate(change: Change, before: _Sums, after: _Sums, layout: Layout) -> _Said:
    if change.field:
        name = layout.categories[change.place]
        old, new = (s["over_in_category"][change.place] / s["in_category"][change.place] for s in (before, after))
        text = f"transactions in {name!r} {_as_often(old, new)} over 1 in {1 / RATES[0]:,.0f}: {_rates(old, new)}"
        return "category", name, old, new, text
    line = f"1 in {1 / RATES[change.place]:,.0f}"
    old, new = (s["over"][change.place] / s["count"][0] for s in (before, after))
    return "", line, old, new, f"transactions {_as_often(old, new)} over {line}: {_rates(old, new)}"


def _amount(change: Change, before: _Sums, after: _Sums, layout: Layout) -> _Said:
    i, name = change.place, layout.categories[change.place]
    old, new = (float(np.expm1(s["amounts"][i] / DIGITS / s["in_category"][i])) for s in (before, after))
    text = f"{name!r} costs {'more' if new > old else 'less'}: usually {new:,.2f}, before {old:,.2f}"
    rates = [s["over_in_category"][i] / s["in_category"][i] for s in (before, after)]
    many = min(s["over_in_category"][i] for s in (before, after)) >= _ENOUGH
    if many and not 1 / _WORTH_SAYING < rates[1] / rates[0] < _WORTH_SAYING:
        text += f"; its transactions {_as_often(*rates)} over 1 in {1 / RATES[0]:,.0f}"
    return "category", name, old, new, text


def _evidence(change: Change, before: _Sums, after: _Sums, layout: Layout) -> _Said:
    old, new = (float(s["terms"][change.place] / DIGITS / s["count"][0]) for s in (before, after))
    more = "more" if new > old else "less"
    text = f"{change.field!r} speaks {more} for fraud: {new:.3f} nats a transaction, before {old:.3f}"
    return change.field, "", old, new, text


def _precision(change: Change, before: _Sums, after: _Sums, layout: Layout) -> _Said:
    old, new = (float(s["judged"][1] / s["judged"][0]) for s in (before, after))
    fewer = "more" if new > old else "fewer"
    return "", "", old, new, f"{fewer} of the judged alerts are fraud: {new:.0%}, before {old:.0%}"


def _mix(change: Change, before: _Sums, after: _Sums, layout: Layout) -> _Said:
    """Told by the name whose share has moved most."""
    field, names = {"in_category": ("category", layout.categories), "at_merchant": ("merchant", layout.merchants)}[
        change.field
    ]
    shares = [s[change.field] / s[change.field].sum() for s in (before, after)]
    i = int(np.argmax(np.abs(shares[1] - shares[0])))
    old, new = float(shares[0][i]), float(shares[1][i])
    kinds = "categories" if field == "category" else "merchants"
    name = names[i] if i < len(names) else ""
    who = repr(name) if i < len(names) else f"all beside the {len(names)} most usual"
    text = f"the mix of {kinds} is another: {who} {'has' if i < len(names) else 'have'} {new:.1%} of transactions, "
    return field, name, old, new, f"{text}before {old:.1%}"


_SAID = {"rate": _rate, "amount": _amount, "evidence": _evidence, "precision": _precision, "mix": _mix}


def _as_often(old: float, new: float) -> str:
    if old <= 0.0:
        return "score"
    ratio = new / old
    if ratio >= 1.0:
        return f"score {ratio:.1f} times as often"
    return f"score {1 / ratio:.1f} times less often" if new > 0.0 else "no longer score"


def _rates(old: float, new: float) -> str:
    return f"{100 * new:.2g} in 100, before {100 * old:.2g}"
