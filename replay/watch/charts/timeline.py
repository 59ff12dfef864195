"""An account over time: every amount, how odd it was, what was alerted, and what people found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup, escape

from replay.watch.charts.frame import (
    Linear,
    Log,
    Scale,
    Symlog,
    below,
    chart,
    el,
    empty,
    finite,
    grid,
    join,
    legend,
    pct,
    short,
    time_ticks,
    to_the_minute,
)
from stream_ccsd.calendar import Calendar

__all__ = ["timeline", "windows"]

_VERDICTS = {"fraud": "✕", "normal": "✓", "unsure": "?"}
_LONGEST = 60  # characters of a name in a tip


def timeline(told: Mapping[str, Any], calendar: Calendar | None = None, chosen: str | None = None) -> Markup:
    """Amounts over time. Alerts are links to themselves; the script zooms by ``data-from`` and ``data-to``."""
    known = (dict(p, time=finite(p["time"]), amount=finite(p["amount"])) for p in told["points"])
    points = [p for p in known if p["time"] is not None and p["amount"] is not None]
    if not points:
        return empty("no transaction in this stretch of time")
    x = _window(told, [p["time"] for p in points])
    amounts = [p["amount"] for p in points]
    y: Scale = Log.over(amounts) if min(amounts) > 0 else Symlog(min(*amounts, 0.0), max(*amounts, 1.0) * 1.3)
    limit = finite(told.get("threshold")) or 1.0
    # Alerts are drawn last, so that nothing hides them.
    plain = [p for p in points if not p["alert"]]
    alerted = [p for p in points if p["alert"]]
    marks = [_point(p, x, y, limit) for p in plain] + [_alert(p, x, y, chosen) for p in alerted]
    labels = [
        el("line", class_="label", x1=pct(x.at(p["time"])), x2=pct(x.at(p["time"])), y1="96%", y2="100%")
        for p in points
        if p.get("label")
    ]
    title = "Amounts of this account over time"
    said = f"{len(points):,} transactions from {_when(points[0])} to {_when(points[-1])}, {len(alerted)} alerted."
    catch = el("rect", class_="catch", x=0, y=0, width="100%", height="100%")
    drawn = chart(
        "timeline",
        title,
        said,
        grid(y, 5),
        below(time_ticks(x, calendar, 8)),
        catch,
        join(marks),
        join(labels),
        role="group",
        data_from=repr(x.low),
        data_to=repr(x.high),
    )
    names = [("p s0", "transaction"), ("p s3", "odd, below the threshold"), ("alert", "alert")]
    if any((finite(p["score"]) or 0.0) >= limit for p in plain):
        names.append(("p s4", "above it, but no higher than an alert before"))
    if labels:
        names.append(("label", "labelled in the file"))
    verdicts = [("glyph " + v, f"{_VERDICTS[v]} {v}") for v in _VERDICTS if any(p.get("verdict") == v for p in points)]
    return drawn + legend(*names, *verdicts)


def windows(told: Mapping[str, Any]) -> dict[str, tuple[float, float] | None]:
    """Where the buttons lead: earlier, later, in, out; None where there is nothing more. ``all`` is no window.

    >>> windows({"points": [], "from": 10.0, "to": 20.0, "first": 0.0, "last": 20.0})["earlier"]
    (5.0, 15.0)
    """
    low, high, first, last = (finite(told.get(k)) for k in ("from", "to", "first", "last"))
    if low is None or high is None or first is None or last is None or high <= low:
        return dict.fromkeys(("earlier", "later", "in", "out"))
    span = high - low
    return {
        "earlier": (low - span / 2, high - span / 2) if low > first else None,
        "later": (low + span / 2, high + span / 2) if high < last else None,
        "in": (low + span / 4, high - span / 4),
        "out": (low - span / 2, high + span / 2) if low > first or high < last else None,
    }


def _window(told: Mapping[str, Any], times: list[float]) -> Linear:
    """From and to as given; a little room where they are the first or the last transaction."""
    low, high = finite(told.get("from")), finite(told.get("to"))
    inside = Linear.over([min(times) if low is None else low, max(times) if high is None else high])
    room = (inside.high / 2 - inside.low / 2) * 0.04
    left = room if low is None or low == finite(told.get("first")) else 0.0
    right = room if high is None or high == finite(told.get("last")) else 0.0
    return Linear(inside.low - left, inside.high + right)


def _point(p: Mapping[str, Any], x: Scale, y: Scale, limit: float) -> Markup:
    share = (finite(p["score"]) or 0.0) / limit
    level = 4 if share >= 1 else 3 if share > 0.7 else 2 if share > 0.45 else 1 if share > 0.2 else 0
    # Up to 2,000 of them: written at once, which is faster than element by element.
    return Markup(
        f'<circle class="p s{level}" cx="{pct(x.at(p["time"]))}" cy="{pct(100 - y.at(p["amount"]))}" '
        f'r="{2.5 + level * 0.5}" data-tip="{escape(_tip(p))}"></circle>'
    )


def _alert(p: Mapping[str, Any], x: Scale, y: Scale, chosen: str | None) -> Markup:
    here = {"cx": pct(x.at(p["time"])), "cy": pct(100 - y.at(p["amount"]))}
    verdict = p.get("verdict") or ""
    ring = " chosen" if chosen is not None and p["id"] == chosen else ""
    parts = [
        el("circle", class_="halo", **here, r=11),
        el("circle", class_=f"alert {verdict}".strip(), **here, r=5.5, data_tip=_tip(p)),
    ]
    if verdict in _VERDICTS:
        said = _VERDICTS[verdict]
        parts.append(
            el(
                "text",
                said,
                class_=f"glyph {verdict}",
                x=here["cx"],
                y=here["cy"],
                dy="-1.2em" if ring else "-0.8em",
                text_anchor="middle",
            )
        )
    if not p["id"]:
        return el("g", *parts, class_="alerted")
    name = f"alert of {_when(p)}, amount {short(p['amount'])}" + (f", found to be {verdict}" if verdict else "")
    return el("a", *parts, class_="alerted" + ring, href=f"/alert/{p['id']}", aria_label=name)


def _tip(p: Mapping[str, Any]) -> str:
    score = finite(p["score"])
    lines = [_when(p), f"amount {float(p['amount']):,.2f}"]
    lines.append(" · ".join(_cut(str(p[k])) for k in ("merchant", "category") if p.get(k)))
    lines.append("" if score is None else f"score {score:.1f} nats" + (", alert" if p["alert"] else ""))
    lines.append(f"found to be {p['verdict']}" if p.get("verdict") else "")
    lines.append(f"labelled {_cut(str(p['label']))}" if p.get("label") else "")
    return "\n".join(line for line in lines if line)


def _when(p: Mapping[str, Any]) -> str:
    return to_the_minute(p["when"]) if p.get("when") else short(p["time"])


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
