"""The drift monitor: it follows the statistics of a stream by period, and reports each change with a sentence.

A period is a day where time has a unit, else a thousand transactions. The sums of a period (``statistics``) become
numbers that stay about the same as long as nothing changes. Each of them has a change detector (``detector``):

- how many transactions score above 1 in 100 and 1 in 1,000, for the former also by category;
- the mean log amount of a category;
- the mean of each term of the evidence that does not compare with the account itself;
- how many of the alerts with a verdict are fraud, where there are verdicts (a replay that learns has them at each
  model update);
- how far the shares of categories and of merchants are from what they have been.

Everything follows from the sums. So the same transactions give the same changes, whatever the batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from stream_ccsd.calendar import Calendar, plain_number
from stream_ccsd.drift.detector import ChangeDetector
from stream_ccsd.drift.statistics import DIGITS, MIXES, RATES, DriftSample, SampleLayout
from stream_ccsd.model.model import Model
from stream_ccsd.numerics.arrays import AnyArray, IntArray
from stream_ccsd.result import Result

# From this ratio on, and with so many of them, a sentence says how often a category scores high.
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


class DriftChange(NamedTuple):
    """A change that the monitor has found: in which statistic, since when, and the sums before and after."""

    what: str
    field: str
    place: int
    since: float
    before: IntArray
    after: IntArray


def described_change(change: DriftChange, time: float, calendar: Calendar, layout: SampleLayout) -> DriftEvent:
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


def _rate(change: DriftChange, before: _Sums, after: _Sums, layout: SampleLayout) -> _Said:
    if change.field:
        name = layout.categories[change.place]
        old, new = (s["over_in_category"][change.place] / s["in_category"][change.place] for s in (before, after))
        text = f"transactions in {name!r} {_as_often(old, new)} over 1 in {1 / RATES[0]:,.0f}: {_rates(old, new)}"
        return "category", name, old, new, text
    line = f"1 in {1 / RATES[change.place]:,.0f}"
    old, new = (s["over"][change.place] / s["count"][0] for s in (before, after))
    return "", line, old, new, f"transactions {_as_often(old, new)} over {line}: {_rates(old, new)}"


def _amount(change: DriftChange, before: _Sums, after: _Sums, layout: SampleLayout) -> _Said:
    i, name = change.place, layout.categories[change.place]
    old, new = (float(np.expm1(s["amounts"][i] / DIGITS / s["in_category"][i])) for s in (before, after))
    text = f"{name!r} costs {'more' if new > old else 'less'}: usually {new:,.2f}, before {old:,.2f}"
    rates = [s["over_in_category"][i] / s["in_category"][i] for s in (before, after)]
    many = min(s["over_in_category"][i] for s in (before, after)) >= _ENOUGH
    if many and not 1 / _WORTH_SAYING < rates[1] / rates[0] < _WORTH_SAYING:
        text += f"; its transactions {_as_often(*rates)} over 1 in {1 / RATES[0]:,.0f}"
    return "category", name, old, new, text


def _evidence(change: DriftChange, before: _Sums, after: _Sums, layout: SampleLayout) -> _Said:
    old, new = (float(s["terms"][change.place] / DIGITS / s["count"][0]) for s in (before, after))
    more = "more" if new > old else "less"
    text = f"{change.field!r} speaks {more} for fraud: {new:.3f} nats a transaction, before {old:.3f}"
    return change.field, "", old, new, text


def _precision(change: DriftChange, before: _Sums, after: _Sums, layout: SampleLayout) -> _Said:
    old, new = (float(s["judged"][1] / s["judged"][0]) for s in (before, after))
    fewer = "more" if new > old else "fewer"
    return "", "", old, new, f"{fewer} of the judged alerts are fraud: {new:.0%}, before {old:.0%}"


def _mix(change: DriftChange, before: _Sums, after: _Sums, layout: SampleLayout) -> _Said:
    """The sentence names the value whose share has moved most."""
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


__all__ = ["DriftEvent", "DriftMonitor"]

# Transactions of a period where time has no unit, and how many a period has at least: with fewer it goes on.
_TRANSACTIONS, _LEAST = 1000, 30
# Periods in which accounts that are new here are still getting a past, and scores change by themselves.
_SETTLING = 14
# Periods that are kept; then the older half is forgotten.
_KEPT = 730
# Periods from which on shares are compared with those of the past.
_PAST = 7
# Transactions of a category in a period; the mean of fewer is left out.
_FEW = 5
# Smallest deviations, by statistic: a statistic that hardly ever moves may move a little. On BankSim,
# 0.003 nats more of a term would be an event without it.
_FLOORS = {"rate": 0.5, "amount": 0.01, "evidence": 0.01, "precision": 0.05, "mix": 0.1}


class _Watched(NamedTuple):
    """What a change detector follows: see :class:`DriftEvent`."""

    what: str
    field: str
    place: int


@dataclass
class _Period:
    begun: float  # time of its first transaction
    sums: IntArray


@dataclass
class _Past:
    """Counts by name since the shares of names last changed."""

    first: int
    next: int = 0
    counts: Any = 0.5

    def __post_init__(self) -> None:
        self.next = self.first

    def distance(self, counts: IntArray) -> float:
        """Hellinger distance of these counts from the past, in units of what chance gives for so many."""
        if self.next - self.first < _PAST:
            return np.nan
        total = counts.sum()
        alike = np.sqrt(counts / total * self.counts / self.counts.sum()).sum()
        return float(np.sqrt(total * max(1.0 - alike, 0.0)))


class DriftMonitor:
    """Finds changes of one stream. Memory is bounded, and a transaction costs a few additions."""

    def __init__(self, model: Model) -> None:
        self._calendar, self._layout = model.calendar, SampleLayout.of(model)
        self._day = model.calendar.of_days(1.0)
        self._watched = list(_all_watched(self._layout))
        self._now = _Period(np.nan, self._layout.nothing())
        self._number: float = np.nan  # of the period at hand
        self._begin_anew([])

    def _begin_anew(self, periods: list[_Period]) -> None:
        self._periods: list[_Period] = []
        self._series = [ChangeDetector(_FLOORS[w.what]) for w in self._watched]
        self._past = {name: _Past(_SETTLING) for name in MIXES}
        for period in periods:
            self._enter(period)

    def see(self, scores: pa.RecordBatch) -> list[DriftEvent]:
        """Score records in the order of the stream; which changes they show."""
        return self._look(self._layout.of_scores(scores))

    def see_results(self, results: Sequence[Result]) -> list[DriftEvent]:
        """The same for results of an engine."""
        return self._look(self._layout.of_results(results))

    def hear(self, frauds: Iterable[bool]) -> None:
        """Of alerts that got a verdict since: whether each was fraud."""
        judged = list(frauds)
        self._now.sums[self._layout.slices["judged"]] += [len(judged), sum(judged)]

    def to_dict(self) -> dict[str, Any]:
        """Its whole state, as plain values."""
        plain = [[p.begun, p.sums.tolist()] for p in [*self._periods, self._now]]
        return {"layout": asdict(self._layout), "number": self._number, "periods": plain}

    @classmethod
    def from_dict(cls, model: Model, values: dict[str, Any]) -> DriftMonitor:
        """The inverse, for the model that the monitor began with: it goes on as if it had never stopped."""
        monitor = cls(model)
        *periods, monitor._now = (_Period(begun, np.array(sums, np.int64)) for begun, sums in values["periods"])
        monitor._number = values["number"]
        monitor._begin_anew(periods)
        return monitor

    def _look(self, sample: DriftSample) -> list[DriftEvent]:
        events: list[DriftEvent] = []
        count = len(sample.time)
        number = self._numbers(sample)
        borders = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), count]
        for first, last in pairwise(borders):
            if last == first:
                continue
            here, time = float(number[first]), float(sample.time[first])
            # What is late belongs to the period at hand; a clock that jumped ahead must not stop those that follow.
            if not self._number - 1.0 <= here <= self._number:
                if self._now.sums[0] >= _LEAST:
                    events += self._close(time)
                self._number = here
            if not self._now.sums[0]:
                self._now.begun = time
            self._now.sums += self._layout.sums(sample.part(first, last))
        return events

    def _numbers(self, sample: DriftSample) -> AnyArray:
        """Of the period that each transaction is in."""
        if self._day is not None:
            return np.floor(sample.time / self._day)
        before = 0.0 if np.isnan(self._number) else self._number
        filled = np.arange(len(sample.time)) + int(self._now.sums[0])
        return before + 2.0 * (filled // _TRANSACTIONS)  # periods differ by two, so that none is late

    def _close(self, time: float) -> list[DriftEvent]:
        period, self._now = self._now, _Period(np.nan, self._layout.nothing())
        changes = self._enter(period)
        if len(self._periods) > _KEPT:
            self._begin_anew(self._periods[-_KEPT // 2 :])
        return [described_change(change, time, self._calendar, self._layout) for change in changes]

    def _enter(self, period: _Period) -> list[DriftChange]:
        """Add a period; returns what has changed by now."""
        self._periods.append(period)
        here = len(self._periods) - 1
        if here < _SETTLING:
            return []
        found = []
        for watched, series, value in zip(self._watched, self._series, self._values(period.sums), strict=True):
            changed = series.add(here, value)
            if changed is None:
                continue
            first, since = changed
            found.append(
                DriftChange(*watched, self._periods[since].begun, self._sum(first, since), self._sum(since, here + 1))
            )
            if watched.what == "mix":  # distances from another past: none of the old ones can be compared with
                series.forget()
                self._past[watched.field] = _Past(since)
        for name, past in self._past.items():
            for number in range(past.next, here + 1):
                past.counts = past.counts + self._periods[number].sums[self._layout.slices[name]]
            past.next = here + 1
        return found

    def _sum(self, first: int, last: int) -> IntArray:
        total: IntArray = sum((p.sums for p in self._periods[first:last]), start=self._layout.nothing())
        return total

    def _values(self, sums: IntArray) -> list[float]:
        """The value of one period for each detector; NaN where there are too few transactions."""
        part = {name: sums[at] for name, at in self._layout.slices.items()}
        count = float(part["count"][0])
        judged, frauds = part["judged"].tolist()
        inside = part["in_category"]
        many = np.where(inside >= _FEW, inside, np.nan)
        mixes = [self._past[name].distance(part[name]) for name in self._past]
        return [
            *_excess(part["over"], count * np.array(RATES)),
            *_excess(part["over_in_category"], inside * RATES[0])[:-1],
            *(part["amounts"] / DIGITS / many)[:-1].tolist(),
            *(part["terms"] / DIGITS / count).tolist(),
            frauds / judged if judged else np.nan,
            *mixes,
        ]


def _excess(counts: IntArray, expected: AnyArray) -> list[float]:
    """Distance of counts from their expectation, in deviations of chance: about normal, however small they are."""
    excess: list[float] = (2.0 * (np.sqrt(counts + 0.375) - np.sqrt(expected + 0.375))).tolist()
    return excess


def _all_watched(layout: SampleLayout) -> Iterator[_Watched]:
    """In the order of the values."""
    yield from (_Watched("rate", "", i) for i in range(len(RATES)))
    for what in ("rate", "amount"):
        yield from (_Watched(what, "category", i) for i in range(len(layout.categories)))
    yield from (_Watched("evidence", name, i) for i, name in enumerate(layout.terms))
    yield _Watched("precision", "", 0)
    yield from (_Watched("mix", name, 0) for name in MIXES)
