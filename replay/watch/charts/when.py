"""Ticks of an axis of time: round dates where the stream's times have dates, else round numbers."""

from __future__ import annotations

from datetime import datetime, timedelta

from replay.watch.charts.frame import Linear, short
from stream_ccsd.calendar import Calendar

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_STEPS = (
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 7, 14)),
)
_MONTHS = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200)
_MOST = 40


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
    found = [start + timedelta(seconds=(first + k) * step) for k in range(_MOST)]
    return [m for m in found if low <= m <= high]


def _months(low: datetime, high: datetime, wanted: int) -> list[datetime]:
    span = (high - low).total_seconds() / (30.44 * _DAY)
    step = next((s for s in _MONTHS if span / s <= wanted), _MONTHS[-1])
    start, found = low.replace(day=1, hour=0, minute=0, second=0, microsecond=0), []
    number = (start.year * 12 + start.month - 1) // step * step
    for k in range(_MOST + 1):
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
