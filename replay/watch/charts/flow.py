"""What streams by: scores as a histogram, transactions and alerts by minute and over the stream's time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from replay.watch.charts.frame import (
    Linear,
    Symlog,
    below,
    chart,
    el,
    empty,
    finite,
    grid,
    join,
    marked,
    pct,
    short,
    time_ticks,
    to_the_minute,
)
from stream_ccsd.calendar import Calendar

__all__ = ["histogram", "minutes", "over_time"]


def histogram(counts: Mapping[str, Any], threshold: float | None) -> Markup:
    """Scores by frequency; the higher ones are few, so counts are on a logarithmic axis."""
    bins = [
        (low, high, max(count, 0.0))
        for low, high, count in zip(
            map(finite, counts["edges"]), map(finite, counts["edges"][1:]), map(finite, counts["counts"]), strict=False
        )
        if low is not None and high is not None and count is not None and high > low
    ]
    total = sum(count for *_, count in bins)
    if not total:
        return empty("no score yet")
    limit = finite(threshold)
    x = Linear.over([*(v for low, high, _ in bins for v in (low, high)), *([] if limit is None else [limit])])
    y = Symlog(0.0, max(count for *_, count in bins) * 1.1)
    bars = []
    for low, high, count in bins:
        alerting = limit is not None and (low + high) / 2 >= limit
        tip = f"score {short(low)} to {short(high)}\n{count:,.0f} transactions"
        bars.append(_bar(x.at(low), x.at(high), y.at(count), "over" if alerting else "under", tip))
    line = Markup("") if limit is None else marked(x.at(limit), f"threshold {short(round(limit, 2))}", "limit")
    told = f"{total:,.0f} transactions by score in nats; counts on a logarithmic axis."
    if limit is not None:
        told += f" Alerts are raised from {short(round(limit, 2))} on."
    axis = below([(x.at(v), short(v)) for v in x.ticks(8)], "score in nats")
    return chart("histogram", "Scores of all transactions", told, grid(y), join(bars), axis, line)


def minutes(series: Mapping[str, Sequence[Any]], name: str, now: float | None = None) -> Markup:
    """Bars of the last minutes by the clock on the wall; each says how long ago it began."""
    starts = [finite(v) for v in series["starts"]]
    values = [max(finite(v) or 0.0, 0.0) for v in series[name]]
    end = now if now is not None else (starts[-1] or 0.0) + 60.0 if starts else 0.0
    n = min(len(starts), len(values))
    if not any(values[:n]):
        return empty(f"no {name} in the last half hour")
    ages = [max(round((end - s) / 60.0), 1) if s is not None else 0 for s in starts]
    tips = [f"{_ago(age)}\n{value:,.0f} {name}" for age, value in zip(ages, values, strict=False)]
    places = [(100.0 * k / n, f"−{ages[k]} min") for k in range(0, n - 4, 10)] + [(100.0, "now")]
    return _bars(values[:n], tips, name, f"{name} a minute, the last {n} minutes", places)


def over_time(bins: Sequence[Mapping[str, Any]], name: str, calendar: Calendar | None = None) -> Markup:
    """Bars over the stream's own time, from its beginning to now."""
    found = [b for b in bins if finite(b["start"]) is not None]
    values = [max(finite(b[name]) or 0.0, 0.0) for b in found]
    if not any(values):
        return empty("no alert yet" if name == "alerts" else f"no {name} yet")
    tips = [
        f"{to_the_minute(b['when'] or short(b['start']))}\n{value:,.0f} {name}"
        for b, value in zip(found, values, strict=True)
    ]
    starts = [finite(b["start"]) or 0.0 for b in found]
    width = (starts[-1] - starts[0]) / (len(starts) - 1) if len(starts) > 1 else 1.0
    scale = Linear(starts[0], starts[-1] + width)
    return _bars(values, tips, name, f"{name} over the time of the stream", time_ticks(scale, calendar, 6))


def _bars(
    values: Sequence[float], tips: Sequence[str], kind: str, title: str, places: Sequence[tuple[float, str]]
) -> Markup:
    y = Linear(0.0, max(values) * 1.08)
    n = len(values)
    bars = join(
        _bar(100.0 * k / n, 100.0 * (k + 1) / n, y.at(value), kind, tip)
        for k, (value, tip) in enumerate(zip(values, tips, strict=True))
    )
    told = f"{sum(values):,.0f} in all, at most {max(values):,.0f} in one of {n} bars."
    return chart("bars", title[:1].upper() + title[1:], told, grid(y, 3), bars, below(places))


def _bar(left: float, right: float, height: float, kind: str, tip: str) -> Markup:
    """One bar; a strip as high as the plot lies over it, so that a low bar can be pointed at, too."""
    width = pct(max(right - left, 0.05))
    shown = el("rect", class_=f"bar {kind}", x=pct(left), y=pct(100 - height), width=width, height=pct(height))
    return shown + el("rect", class_="band", x=pct(left), y=0, width=width, height="100%", data_tip=tip)


def _ago(age: int) -> str:
    return f"{age} min ago"
