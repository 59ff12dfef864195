"""What every chart is made of: scales, ticks, and SVG elements with everything escaped.

A chart has no fixed width. Places are percentages of the plot, and margins are the padding of the SVG (page.css). Only
curves are stretched, in an SVG of their own, so that letters have the same size at 360 px and on a wall.

An axis of time has ticks at round dates where the stream's times have dates, else at round numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from markupsafe import Markup, escape

from stream_ccsd.calendar import Calendar, plain_number

__all__ = ["Linear", "Log", "Scale", "Symlog", "chart", "curve", "el", "empty", "finite", "grid", "join", "legend"]

_MOST_TICKS = 24
_APART = 9.0  # per cent of the plot between two numbers of the upright axis
# In rem: a letter under the plot, the gap between two texts, and plots at 360 px and from where page.css shows more.
_LETTER, _GAP, _NARROW, _WIDE = 0.46, 0.3, 17.0, 38.0
_LONGEST = 40  # letters of an axis's name
_LEAST, _MOST = 1e-280, 1e280  # so that sums, ratios and margins of numbers are numbers
_TINY = 1e-12  # of a step: where rounding is not to cost a tick


def el(name: str, *content: object, **attributes: object) -> Markup:
    """An element. ``class_`` is class, ``data_tip`` is data-tip; None leaves an attribute out.

    >>> el("text", "<b>", class_="tick", data_tip='a "b"', x=None)
    Markup('<text class="tick" data-tip="a &#34;b&#34;">&lt;b&gt;</text>')
    """
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{said}>{join(content)}</{name}>")


def join(parts: Iterable[object]) -> Markup:
    """One after the other; what is no markup yet is escaped."""
    return Markup("").join(parts)  # type: ignore[arg-type]  # takes anything, and escapes it


def pct(place: float) -> str:
    """A place in the plot, in per cent of it.

    >>> pct(12.3456), pct(50.0)
    ('12.35%', '50%')
    """
    return f"{place:.2f}".rstrip("0").rstrip(".") + "%"


def finite(value: object) -> float | None:
    """The number, if it is one that can be drawn; at the very ends of what there is, the nearest that leaves room.

    >>> finite(3), finite(None), finite(float("nan")), finite(10**400)
    (3.0, None, None, None)
    """
    if value is None or isinstance(value, str):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]  # what is no number is refused here
    except (TypeError, ValueError, OverflowError):
        return None
    if abs(number) < _LEAST:
        return 0.0
    return min(max(number, -_MOST), _MOST) if math.isfinite(number) else None


def short(value: float) -> str:
    """A number for an axis.

    >>> [short(x) for x in (0.25, 950, 1200, 12_000, 3.4e6, 1e30)]
    ['0.25', '950', '1,200', '12k', '3.4M', '1e+30']
    """
    size = abs(value)
    if size >= 1e12 or 0 < size < 1e-4:
        return f"{value:.3g}"
    for least, unit, sign in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if size >= least:
            return plain_number(round(value / unit, 2)) + sign
    return f"{value:,.0f}" if size >= 1000 else plain_number(round(value, 6))


def to_the_minute(when: object) -> str:
    """A moment in ISO 8601 as people read it; any other text as it is.

    >>> to_the_minute("2026-03-12T12:00:31.5+00:00"), to_the_minute("71.4")
    ('2026-03-12 12:00', '71.4')
    """
    text = str(when)
    return f"{text[:10]} {text[11:16]}" if len(text) > 16 and text[10] == "T" else text


@dataclass(frozen=True)
class Scale:
    """From values to per cent of the plot; what lies outside is put at the edge."""

    low: float
    high: float

    def bent(self, value: float) -> float:
        """The value on the axis's own scale."""
        return value

    def at(self, value: float) -> float:
        """Where the value is, from 0 to 100."""
        low, high, here = (self.bent(v) / 2 for v in (self.low, self.high, value))  # halves: no overflow
        return 50.0 if high <= low else 100.0 * min(max((here - low) / (high - low), 0.0), 1.0)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round values in the range, about as many as wanted."""
        return steps(self.low, self.high, wanted)


class Linear(Scale):
    """Equal lengths for equal differences."""

    @classmethod
    def over(cls, values: Iterable[float], zero: bool = False) -> Linear:
        """A range that holds all values, and zero if it is to."""
        found = [*values, *([0.0] if zero else [])] or [0.0]
        low, high = min(found), max(found)
        if low == high:  # one value alone: some room around it
            room = abs(low) / 2 or 1.0
            low, high = (low, low + 1.0) if zero and low == 0 else (low - room, min(high + room, 1.7e308))
        return cls(low, high)


class Log(Scale):
    """Equal lengths for equal ratios; for values above zero."""

    def bent(self, value: float) -> float:
        """Its logarithm."""
        return math.log10(max(value, 5e-324))

    @classmethod
    def over(cls, values: Iterable[float]) -> Log:
        """A range with some room on both sides; what is not above zero is passed over."""
        found = [v for v in values if v > 0] or [1.0]
        return cls(min(found) / 1.3 or 5e-324, min(max(found), 1e308) * 1.3)

    def ticks(self, wanted: int = 5) -> list[float]:
        """1, 2, 5, 10 … where there is room for them, else powers of ten, else steps."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        if last - first > wanted + 1:
            each = math.ceil((last - first) / wanted)
            places = [10.0**k for k in range(first, min(last, 308) + 1, each)]
        else:
            places = [m * 10.0**k for k in range(first, min(last, 307) + 1) for m in (1, 2, 5)]
        inside = [p for p in places if self.low <= p <= self.high]
        if len(inside) > wanted + 2:
            tens = [p for p in inside if f"{p:e}".startswith("1")]
            inside = tens if len(tens) >= 2 else inside[::2]
        return inside if len(inside) >= 2 else steps(self.low, self.high, wanted)


class Symlog(Scale):
    """Logarithmic on both sides of zero: for amounts with refunds among them, and counts that may be zero."""

    def bent(self, value: float) -> float:
        """Its logarithm, as if one were zero."""
        return math.copysign(math.log1p(abs(value)), value)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Zero, and powers of ten on both sides."""
        top = math.ceil(math.log10(max(abs(self.low), abs(self.high), 1.0)))
        each = max(1, math.ceil((top + 1) / wanted))
        powers = [10.0**k for k in range(0, min(top, 308) + 1, each)]
        return [t for t in (*(-p for p in reversed(powers)), 0.0, *powers) if self.low <= t <= self.high]


def steps(low: float, high: float, wanted: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within a range.

    >>> steps(0, 9.3, 5), steps(0.13, 0.41, 4)
    ([0.0, 2.0, 4.0, 6.0, 8.0], [0.2, 0.3, 0.4])
    """
    raw = (high / 2 - low / 2) / wanted * 2
    if not raw > 1e-300:
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 5) if m * power >= raw * (1 - _TINY)), 10 * power)
    first, last = math.ceil(low / step - _TINY), math.floor(high / step + _TINY)
    digits = max(0, min(300, 1 - math.floor(math.log10(step))))
    return [round(k * step, digits) + 0.0 for k in range(first, min(last, first + _MOST_TICKS) + 1)]


def grid(scale: Scale, wanted: int = 4, text: Callable[[float], str] = short) -> Markup:
    """Lines across the plot at round values of the upright axis, each with its number."""
    lines: list[Markup] = []
    before = -_APART
    for value in scale.ticks(wanted):
        place = scale.at(value)
        if place - before < _APART:  # its number would stand on the one below
            continue
        before, y = place, pct(100 - place)
        lines.append(el("line", class_="grid", x1=0, x2="100%", y1=y, y2=y))
        lines.append(el("text", text(value), class_="tick", x=-6, y=y, dy="0.32em", text_anchor="end"))
    return join(lines)


def below(places: Sequence[tuple[float, str]], name: str = "") -> Markup:
    """Ticks under the plot, and what the axis is; as many as there is room for, fewer where it is narrow."""
    wide = _stride(places, _WIDE)
    shown = places[::wide]
    narrow = _stride(shown, _NARROW)
    parts = []
    for k, (x, text) in enumerate(shown):
        more = " more" if k % narrow else ""
        parts.append(el("text", text, class_="tick" + more, x=pct(x), y="100%", dy="1.35em", text_anchor=_anchor(x)))
    parts.append(el("line", class_="axis", x1=0, x2="100%", y1="100%", y2="100%"))
    if name:
        name = name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
        parts.append(el("text", name, class_="axis-name", x="100%", y="100%", dy="2.6em", text_anchor="end"))
    return join(parts)


def _anchor(x: float) -> str:
    return "start" if x < 6 else "end" if x > 94 else "middle"


def _stride(places: Sequence[tuple[float, str]], width: float) -> int:
    """Every how many-th label can stand in a plot so wide (in rem) without touching the next."""

    def ends(x: float, text: str) -> tuple[float, float]:
        size, at = _LETTER * len(text), x / 100 * width
        left = {"start": at, "end": at - size, "middle": at - size / 2}[_anchor(x)]
        return left, left + size + _GAP

    for stride in range(1, len(places)):
        spans = [ends(*place) for place in places[::stride]]
        if all(before[1] <= after[0] for before, after in pairwise(spans)):
            return stride
    return max(len(places), 1)


def curve(points: Sequence[tuple[float, float]], kind: str, filled: bool = False) -> Markup:
    """A line through places in per cent (y from below); stretched with the plot, its width is not."""
    if not points:
        return Markup("")
    said = " ".join(f"{x:.2f},{100 - y:.2f}" for x, y in points)
    if filled:
        said = f"{points[0][0]:.2f},100 {said} {points[-1][0]:.2f},100"
    shape = el(
        "polyline", class_=f"{'area' if filled else 'line'} {kind}", points=said, vector_effect="non-scaling-stroke"
    )
    return el(
        "svg", shape, class_="stretch", viewBox="0 0 100 100", preserveAspectRatio="none", width="100%", height="100%"
    )


def marked(x: float, text: str, kind: str) -> Markup:
    """An upright line with its name on the side where there is room."""
    anchor, shift = ("end", -5) if x > 60 else ("start", 5)
    line = el("line", class_=f"mark {kind}", x1=pct(x), x2=pct(x), y1=0, y2="100%")
    return line + el("text", text, class_=f"mark-name {kind}", x=pct(x), y=0, dx=shift, dy="0.9em", text_anchor=anchor)


def bands(places: Sequence[float], tips: Sequence[str]) -> Markup:
    """Invisible upright strips around places, to point at: each tells its values."""
    edges = [(a + b) / 2 for a, b in pairwise(places)]
    strips = zip([0.0, *edges], [*edges, 100.0], tips, strict=False)
    return join(
        el("rect", class_="band", x=pct(a), y=0, width=pct(max(b - a, 0)), height="100%", data_tip=tip)
        for a, b, tip in strips
    )


def legend(*names: tuple[str, str]) -> Markup:
    """What the colours mean: (class, text)."""
    items = (el("li", el("span", class_=f"key {kind}"), text) for kind, text in names)
    return el("ul", *items, class_="legend")


def chart(kind: str, title: str, told: str, *body: object, role: str = "img", **attributes: object) -> Markup:
    """The picture, with a name and a description for those who do not see it."""
    return el("svg", el("title", title), el("desc", told), *body, class_=f"chart {kind}", role=role, **attributes)


def empty(text: str) -> Markup:
    """What stands in place of a picture that has nothing to show yet."""
    return el("p", text, class_="nothing")


_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_STEPS = (
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 7, 14)),
)
_MONTHS = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200)
_MOST_TICKS = 40


def time_ticks(scale: Linear, calendar: Calendar | None, wanted: int = 7) -> list[tuple[float, str]]:
    """Places in per cent, and what stands there."""
    low, high = (calendar.moment(t) if calendar else None for t in (scale.low, scale.high))
    if calendar is None or low is None or high is None or not (low.year >= 100 and high.year <= 9800) or high <= low:
        return [(scale.at(v), short(v)) for v in scale.ticks(wanted)]
    moments = _round_moments(low, high, wanted)
    texts = _texts(moments)
    return [(scale.at(calendar.time_of(m)), text) for m, text in zip(moments, texts, strict=True)]


def _round_moments(low: datetime, high: datetime, wanted: int) -> list[datetime]:
    span = (high - low).total_seconds()
    step = next((s for s in _STEPS if span / s <= wanted), None)
    if step is None:
        return _months(low, high, wanted)
    start = low.replace(hour=0, minute=0, second=0, microsecond=0)
    if step >= 7 * _DAY:  # weeks begin on Monday
        start -= timedelta(days=start.weekday())
    first = -(-((low - start).total_seconds()) // step)
    found = [start + timedelta(seconds=(first + k) * step) for k in range(_MOST_TICKS)]
    return [m for m in found if low <= m <= high]


def _months(low: datetime, high: datetime, wanted: int) -> list[datetime]:
    span = (high - low).total_seconds() / (30.44 * _DAY)
    step = next((s for s in _MONTHS if span / s <= wanted), _MONTHS[-1])
    start, found = low.replace(day=1, hour=0, minute=0, second=0, microsecond=0), []
    number = (start.year * 12 + start.month - 1) // step * step
    for k in range(_MOST_TICKS + 1):
        year, month = divmod(number + k * step, 12)
        if 1 <= year <= 9999:
            found.append(start.replace(year=year, month=month + 1))
    return [m for m in found if low <= m <= high]


def _texts(moments: list[datetime]) -> list[str]:
    """Days as days, hours as hours; a year with the first day, and where it changes."""
    timed = any((m.hour, m.minute) != (0, 0) for m in moments)
    said, before = [], None
    for m in moments:
        day = f"{m.day} {m:%b}"
        if not timed:
            said.append(day if before is not None and before.year == m.year else f"{day} {m.year}")
        elif before is not None and before.date() == m.date():
            said.append(f"{m:%H:%M}")
        else:
            said.append(day if (m.hour, m.minute) == (0, 0) else f"{day} {m:%H:%M}")
        before = m
    return said
