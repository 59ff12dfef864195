"""What a page must know about a stream before it shows it: model, threshold, rules of alerts, calendar.

On Kafka nobody writes that down in one place. A model that is named has it all; else the messages have: each alert says
its threshold, its model and, where times are dates, its time as both. What nobody says has its usual value.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from stream_ccsd.alert.policy import build_policy
from stream_ccsd.alert.threshold import threshold_by_budget
from stream_ccsd.calendar import UNITS, Calendar, CalendarError
from stream_ccsd.library.versions import load_model
from stream_ccsd.settings import Settings
from stream_ccsd.stores import Record

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Dates in messages have microseconds, and times are floating-point numbers.
_ROUNDING = timedelta(milliseconds=2)


def first_facts(source: str, model: Path | None = None) -> dict[str, Any]:
    """Before any message: of the model that is named, or as usual."""
    if model is None:
        settings, calendar, version = Settings(), Calendar(), ""
        threshold = threshold_by_budget(settings.alert_rate)
    else:
        loaded = load_model(model)
        settings, calendar, version, threshold = loaded.settings, loaded.calendar, loaded.version, loaded.threshold
    return {
        "source": source,
        "model": version,
        "threshold": threshold,
        "policy": build_policy(settings, threshold)._asdict(),
        "calendar": calendar.to_dict(),
        "learning": None,
    }


def learnt_facts(facts: dict[str, Any], alerts: Iterable[Record]) -> dict[str, Any]:
    """The same with what alerts say, the newest last; the calendar stays where it is known."""
    alerts = list(alerts)
    if not alerts:
        return facts
    newest, calendar = alerts[-1], Calendar.from_dict(facts["calendar"])
    if calendar.unit == "number":
        calendar = calendar_of([(a["time"], a["when"]) for a in alerts if a["when"] is not None])
    threshold = float(newest["threshold"])
    return {
        **facts,
        "model": newest["model"],
        "threshold": threshold,
        "policy": {**facts["policy"], "threshold": threshold},
        "calendar": calendar.to_dict(),
    }


def calendar_of(dated: list[tuple[float, str]]) -> Calendar:
    """The calendar by which these times are these dates; plain numbers where there is none, or it is not certain.

    >>> calendar_of([(49.5, "2026-02-23T12:00:00+00:00"), (50.0, "2026-02-24T00:00:00+00:00")]).to_dict()
    {'unit': 'days', 'origin': '2026-01-05T00:00:00+00:00'}
    >>> calendar_of([(1546310400.0, "2019-01-01T02:40:00+00:00")]).unit
    'seconds'
    >>> calendar_of([(5.0, "soon")]).unit
    'number'
    """
    fitting = []
    for unit in (unit for unit in UNITS if unit != "number"):
        try:
            moments = [(time, datetime.fromisoformat(when)) for time, when in dated]
            origins = [moment - timedelta(**{unit: time}) for time, moment in moments]
            if origins and max(origins) - min(origins) <= _ROUNDING:
                fitting.append(Calendar(unit, _rounded(origins[0])))
        except (ValueError, TypeError, OverflowError, CalendarError):
            continue
    # One alert fits every unit; nobody counts from anything but midnight.
    likely = fitting if len(fitting) == 1 else [c for c in fitting if c.origin is not None and _is_midnight(c.origin)]
    return likely[0] if len(likely) == 1 else Calendar()


def _rounded(origin: datetime) -> datetime:
    """To the second that is meant."""
    second = (origin + timedelta(seconds=0.5)).replace(microsecond=0)
    return second if abs(second - origin) <= _ROUNDING else origin


def _is_midnight(origin: datetime) -> bool:
    return (origin.hour, origin.minute, origin.second, origin.microsecond) == (0, 0, 0, 0)
