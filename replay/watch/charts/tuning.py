"""What to decide on: alerts and what they are worth by threshold, precision by week."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from replay.watch.charts.frame import (
    Linear,
    Log,
    Scale,
    bands,
    below,
    chart,
    curve,
    el,
    empty,
    finite,
    grid,
    join,
    legend,
    marked,
    pct,
    short,
)

__all__ = ["budget", "quality", "weeks"]

_Z = 1.96
_QUALITIES = (
    ("precision", "others", "precision"),
    ("recall", "own", "recall"),
    ("money_caught", "normal", "money caught"),
)


def budget(curve_of: Sequence[Mapping[str, Any]], threshold: float | None) -> Markup:
    """Alerts against the threshold: a day where days are known, else in all. Current and hovered values are said."""
    daily = any(finite(row["alerts_per_day"]) is not None for row in curve_of)
    name = "alerts_per_day" if daily else "alerts"
    rows = _sorted(curve_of, name)
    counts = [count for _, count, _ in rows]
    if not rows or not any(count > 0 for count in counts):
        return empty("no alert yet at any threshold")
    text = "alerts a day" if daily else "alerts"
    x = _along(rows, threshold)
    y: Scale = Log.over(counts)
    drawn = [curve([(x.at(t), y.at(c)) for t, c, _ in rows], "others")]
    for t, c, row in rows:
        kind = "dot current" if row["current"] else "dot"
        drawn.append(el("circle", class_=kind, cx=pct(x.at(t)), cy=pct(100 - y.at(c)), r=6 if row["current"] else 4))
    tips = [f"threshold {short(round(t, 2))} nats\n{_said(row, daily)}" for t, _, row in rows]
    areas = bands([x.at(t) for t, *_ in rows], tips)
    axis = below([(x.at(v), short(v)) for v in x.ticks(7)], "threshold in nats")
    said = f"From {short(max(counts))} {text} at the lowest threshold to {short(min(counts))} at the highest."
    title = text[:1].upper() + text[1:] + " by threshold"
    return chart("budget", title, said, grid(y), axis, join(drawn), _limit(x, threshold), areas)


def quality(curve_of: Sequence[Mapping[str, Any]], threshold: float | None) -> Markup:
    """Precision, recall and the money caught against the threshold, as far as there are verdicts."""
    lines = [(key, kind, text, _sorted(curve_of, key)) for key, kind, text in _QUALITIES]
    lines = [line for line in lines if line[3]]
    if not lines:
        return empty("nothing was judged yet, so what alerts are worth is not known")
    rows = _sorted(curve_of, "threshold")
    x, y = _along(rows, threshold), Linear(0.0, 1.0)
    drawn = [curve([(x.at(t), y.at(v)) for t, v, _ in found], kind) for _, kind, _, found in lines]
    tips = [f"threshold {short(round(t, 2))} nats\n{_said(row, False)}" for t, _, row in rows]
    areas = bands([x.at(t) for t, *_ in rows], tips)
    axis = below([(x.at(v), short(v)) for v in x.ticks(7)], "threshold in nats")
    upright = grid(y, 4, lambda v: f"{100 * v:.0f} %")
    said = "; ".join(
        f"{text} from {min(v for _, v, _ in f):.0%} to {max(v for _, v, _ in f):.0%}" for *_, text, f in lines
    )
    shown = chart(
        "quality", "What alerts are worth by threshold", said, upright, axis, join(drawn), _limit(x, threshold), areas
    )
    return shown + legend(*((kind, text) for _, kind, text, _ in lines))


def weeks(found: Sequence[Mapping[str, Any]]) -> Markup:
    """How many of the alerts with a verdict were fraud, week by week, each with its 95 % interval (Wilson)."""
    if not any(finite(w["precision"]) is not None for w in found):
        return empty("no alert was judged yet")
    y, n = Linear(0.0, 1.0), len(found)
    drawn, places = [], []
    for k, week in enumerate(found):
        x, share, judged = 100 * (k + 0.5) / n, finite(week["precision"]), int(min(finite(week["judged"]) or 0.0, 1e9))
        when = str(week["when"] or short(finite(week["start"]) or 0.0))[:10]
        tip = f"week of {when}\nnothing judged"
        if share is not None:
            share = min(max(share, 0.0), 1.0)
            low, high = _wilson(share, max(judged, 1))
            tip = f"week of {when}\n{share:.0%} of {judged} judged were fraud\n95 %: {low:.0%} to {high:.0%}"
            where = {"x1": pct(x), "x2": pct(x), "y1": pct(100 - y.at(low)), "y2": pct(100 - y.at(high))}
            drawn.append(el("line", class_="interval", **where))
            drawn.append(el("circle", class_="dot", cx=pct(x), cy=pct(100 - y.at(share)), r=5))
        drawn.append(
            el("rect", class_="band", x=pct(100 * k / n), y=0, width=pct(100 / n), height="100%", data_tip=tip)
        )
        places.append((x, when))
    each = max(1, math.ceil(n / 6))
    known = sum(finite(w["precision"]) is not None for w in found)
    said = f"{known} weeks with verdicts of {n}; with 95 % intervals."
    upright = grid(y, 4, lambda v: f"{100 * v:.0f} %")
    return chart("weeks", "Precision by week", said, upright, below(places[::each]), join(drawn))


def _wilson(share: float, n: int) -> tuple[float, float]:
    """Between which shares the true one probably is.

    >>> [round(v, 2) for v in _wilson(0.8, 10)]
    [0.49, 0.94]
    """
    middle = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n * n)) / (1 + _Z**2 / n)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _sorted(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float, Mapping[str, Any]]]:
    found = [(finite(row["threshold"]), finite(row[name]), row) for row in rows]
    return sorted(((t, v, row) for t, v, row in found if t is not None and v is not None), key=lambda row: row[0])


def _along(rows: Sequence[tuple[float, float, Mapping[str, Any]]], threshold: float | None) -> Linear:
    limit = finite(threshold)
    return Linear.over([*(t for t, *_ in rows), *([] if limit is None else [limit])])


def _limit(x: Linear, threshold: float | None) -> Markup:
    limit = finite(threshold)
    return Markup("") if limit is None else marked(x.at(limit), f"now {short(round(limit, 2))}", "limit")


def _said(row: Mapping[str, Any], daily: bool) -> str:
    lines = [f"{short(row['alerts'] or 0)} alerts"]
    if daily and finite(row["alerts_per_day"]) is not None:
        lines.append(f"{short(round(row['alerts_per_day'], 2))} a day")
    for key, _, text in _QUALITIES:
        if finite(row[key]) is not None:
            lines.append(f"{text} {row[key]:.0%}")
    return "\n".join(lines)
