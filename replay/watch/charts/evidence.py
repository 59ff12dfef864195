"""Charts of why an alert was raised: reasons in nats, densities, hours and merchants."""

from __future__ import annotations

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

__all__ = ["contributions", "densities", "hours", "law", "merchants", "reasons"]


def reasons(found: Sequence[Mapping[str, Any]]) -> Markup:
    """Bars in nats to both sides of zero, the sentence beside each. Sentences wrap, so they are HTML."""
    rows = [(finite(r["nats"]) or 0.0, str(r["text"])) for r in found]
    if not rows:
        return empty("no reasons were recorded")
    scale = Linear.over([*(n for n, _ in rows), 1.0], zero=True)
    items = []
    for nats, text in rows:
        bar = _diverging(scale, [(nats, "for" if nats > 0 else "against")])
        value = el("span", f"{nats:+.1f}", class_="value")
        items.append(el("li", value, bar, el("span", text, class_="sentence", dir="auto")))
    return el("ol", *items, class_="reasons")


def contributions(fields: Sequence[Mapping[str, Any]]) -> Markup:
    """What each field adds to the evidence on average: where it was fraud, and where it was not."""
    rows = [(f["name"], [finite(f[k]) for k in ("fraud_nats", "normal_nats", "mean_nats")]) for f in fields]
    if not rows:
        return empty("no alert yet")
    scale = Linear.over([v for _, values in rows for v in values if v is not None], zero=True)
    items = []
    for name, (fraud, normal, mean) in rows:
        judged = [(fraud, "fraud"), (normal, "normal")] if fraud is not None or normal is not None else [(mean, "mean")]
        said = "; ".join(f"{kind} {value:+.2f}" for value, kind in judged if value is not None)
        bar = _diverging(scale, [(v, kind) for v, kind in judged if v is not None])
        items.append(el("li", el("span", name, class_="name", dir="auto"), bar, el("span", said, class_="value")))
    return el("ol", *items, class_="contributions")


def _diverging(scale: Scale, values: Sequence[tuple[float, str]]) -> Markup:
    """Bars from zero to the values, one below the other; the numbers stand beside it as text, so it is hidden."""
    zero, deep = scale.at(0.0), 100.0 / max(len(values), 1)
    bars = []
    for k, (value, kind) in enumerate(values):
        left, right = sorted((zero, scale.at(value)))
        where = {"y": pct(k * deep + 8), "height": pct(deep - 16)}
        bars.append(el("rect", class_=f"bar {kind}", x=pct(left), width=pct(max(right - left, 0.4)), **where))
    axis = el("line", class_="axis", x1=pct(zero), x2=pct(zero), y1=0, y2="100%")
    return el("svg", *bars, axis, class_="bar-line", aria_hidden="true")


def merchants(found: Sequence[Mapping[str, Any]]) -> Markup:
    """Where the account pays most often, as bars."""
    rows = [(str(m["name"]), finite(m["count"]) or 0.0, finite(m["amount"])) for m in found]
    if not rows:
        return empty("no merchant yet")
    scale = Linear(0.0, max(count for _, count, _ in rows) or 1.0)
    items = []
    for name, count, amount in rows:
        bar = el("rect", class_="bar own", x=0, y="15%", width=pct(scale.at(count)), height="70%")
        said = f"{count:,.0f}×" + ("" if amount is None else f", {amount:,.2f}")
        line = el("svg", bar, class_="bar-line", aria_hidden="true")
        items.append(el("li", el("span", name, class_="name", dir="auto"), line, el("span", said, class_="value")))
    return el("ol", *items, class_="merchants")


def hours(told: Mapping[str, Sequence[Any]] | None) -> Markup:
    """When the account pays, hour by hour, and when it was alerted."""
    own = [max(finite(v) or 0.0, 0.0) for v in (told or {}).get("own", [])][:24]
    alerts = [max(finite(v) or 0.0, 0.0) for v in (told or {}).get("alerts", [])][:24]
    if not any(own):
        return empty("the hours of this stream are not known")
    y, n = Linear(0.0, max(own) * 1.08), len(own)
    bars = []
    for hour, count in enumerate(own):
        fired = alerts[hour] if hour < len(alerts) else 0.0
        tip = f"{hour}:00 to {hour + 1}:00\n{count:,.0f} transactions" + (f"\n{fired:,.0f} alerted" if fired else "")
        x, width = pct(100 * hour / n), pct(100 / n)
        for value, kind in ((count, "own"), (min(fired, count), "alerts")):
            if value:
                height = y.at(value)
                bars.append(el("rect", class_=f"bar {kind}", x=x, y=pct(100 - height), width=width, height=pct(height)))
        bars.append(el("rect", class_="band", x=x, y=0, width=width, height="100%", data_tip=tip))
    busiest = max(range(n), key=own.__getitem__)
    axis = below([(100 * h / n, f"{h}:00") for h in range(0, n, 6)])
    said = f"{sum(own):,.0f} transactions by hour of the day, most from {busiest}:00 on; {sum(alerts):,.0f} alerted."
    return chart("hours", "Hours of the day", said, grid(y, 2), join(bars), axis)


def densities(told: Mapping[str, Sequence[Any]]) -> Markup:
    """The divergence's two sides: how far the account's recent windows move, and how far its neighbours' do."""
    axis = [finite(v) for v in told.get("change") or []]
    names = (("account", "own", "the account's recent windows"), ("normal", "others", "its neighbours in the library"))
    return _curves(
        "densities",
        "How far amounts move from one transaction to the next",
        axis,
        [(text, kind, [finite(v) for v in told.get(key) or []]) for key, kind, text in names],
        "size of the change",
        "no full window of transactions yet",
    )


def law(told: Mapping[str, Any], name: str) -> Markup:
    """How likely a value is by each density: among normal transactions, for this account, and in fraud."""
    axis = [finite(v) for v in told.get("axis") or []]
    names = (("normal", "others", "normal"), ("own", "own", "this account's own"), ("fraud", "fraud", "fraud"))
    lines = [(text, kind, [finite(v) for v in told[key]]) for key, kind, text in names if told.get(key)]
    unit = str(told.get("unit") or "")
    text = f"{name}, {unit}" if unit and unit != name else name
    return _curves("law", f"Laws of the {name}", axis, lines, text, "no law is known", finite(told.get("value")))


def _curves(
    kind: str,
    title: str,
    axis: Sequence[float | None],
    lines: Sequence[tuple[str, str, Sequence[float | None]]],
    unit: str,
    nothing: str,
    value: float | None = None,
) -> Markup:
    known = [a for a in axis if a is not None]
    heights = [v for _, _, values in lines for v in values if v is not None and v > 0]
    if len(known) < 2 or not heights:
        return empty(nothing)
    # Amounts over several powers of ten need an axis of ratios; hours are hours.
    wide = "hour" not in unit and min(known) > 0 and max(known) / min(known) > 50
    reach = known if value is None else [*known, value] if not wide or value > 0 else known
    x: Scale = Log(min(reach), max(reach)) if wide else Linear.over(reach)
    y = Linear(0.0, min(max(heights), 1e308) * 1.08)
    drawn = []
    for _, colour, values in lines:
        places = [(x.at(a), y.at(v)) for a, v in zip(axis, values, strict=False) if a is not None and v is not None]
        drawn += [curve(places, colour, filled=True), curve(places, colour)]
    tips = []
    for k, a in enumerate(axis):
        if a is not None:
            here = [(text, values[k]) for text, _, values in lines if k < len(values)]
            said = [f"{text}: {short(float(f'{v:.3g}'))}" for text, v in here if v is not None]
            tips.append((x.at(a), "\n".join([f"{unit} {short(float(f'{a:.4g}'))}", *said])))
    line = Markup("") if value is None else marked(x.at(value), short(float(f"{value:.5g}")), "value")
    told = f"{', '.join(text for text, *_ in lines)}; along {unit}."
    if value is not None:
        told += f" This transaction: {short(value)}."
    ticks = below([(x.at(v), short(v)) for v in x.ticks(6)], unit)
    areas = bands([p for p, _ in tips], [t for _, t in tips])
    return chart(kind, title, told, join(drawn), ticks, line, areas) + legend(*((c, text) for text, c, _ in lines))
