"""What the numbers in ``time`` mean: their unit, the date of time 0, and how times and lengths are shown.

Scores do not need it. With a unit and an origin, every time that people see is a date.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

from stream_ccsd.errors import StreamCcsdError

Unit = Literal["seconds", "milliseconds", "days", "number"]
UNITS: tuple[Unit, ...] = get_args(Unit)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Numbers that would be moments between these years are taken for seconds or milliseconds since 1970.
_FIRST, _LAST = datetime(1971, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)

_SECONDS: dict[Unit, float] = {"seconds": 1.0, "milliseconds": 0.001, "days": 86400.0}
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
# Units that a length of time may be given in, in seconds.
_LENGTHS = {"ms": 0.001, "s": 1.0, "min": _MINUTE, "h": _HOUR, "d": _DAY, "w": 7 * _DAY}
_DURATION = re.compile(r"(\d+\.?\d*|\.\d+) ?([a-z]+)?", re.ASCII)
_LONGEST = 2.0**53

# Each a multiple of the one before, so that counts in one width can be added up to counts in the next.
_WIDTHS: dict[Unit, tuple[int, ...]] = {
    "seconds": (1, 10, 60, 600, 3600, 21_600, 86_400, 604_800),
    "milliseconds": (1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000, 86_400_000, 604_800_000),
    "days": (1, 7),
    "number": (1,),
}


class CalendarError(StreamCcsdError, ValueError):
    """A unit or a moment that is none."""


@dataclass(frozen=True)
class Calendar:
    """A unit of time, and the moment of time 0 where it is known: dates are shown in the origin's time zone.

    >>> handbook = Calendar("seconds", parse_moment("2018-04-01"))
    >>> handbook.show(47_100.0), handbook.iso(47_100.0), handbook.length(7800.0)
    ('2018-04-01 13:05', '2018-04-01T13:05:00+00:00', '2 h 10 min')
    >>> Calendar().show(1546310400.0), Calendar().iso(1546310400.0), Calendar().length(12.0)
    ('1546310400', None, '12 units of time')
    """

    unit: Unit = "number"
    origin: datetime | None = None

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise CalendarError(f"expected a unit of time, one of {', '.join(UNITS)}, got {self.unit!r}")
        if self.origin is not None and (self.unit == "number" or self.origin.tzinfo is None):
            raise CalendarError("a moment of time 0 needs a time zone, and a unit of time other than 'number'")

    @classmethod
    def recognise(cls, times: Sequence[float]) -> Calendar:
        """Seconds or milliseconds since 1970 where all of these times would be of our age; else plain numbers.

        >>> Calendar.recognise([1.5e9, 1.6e9]).unit, Calendar.recognise([1.5e12]).unit, Calendar.recognise([0, 9]).unit
        ('seconds', 'milliseconds', 'number')
        """
        units: tuple[Unit, ...] = ("seconds", "milliseconds")
        for calendar in (cls(unit, _EPOCH) for unit in units):
            if times and calendar.time_of(_FIRST) <= min(times) and max(times) < calendar.time_of(_LAST):
                return calendar
        return cls()

    @classmethod
    def choose(cls, unit: Unit | None, origin: str | None, times: Sequence[float]) -> Calendar:
        """The calendar of the settings; what they leave open is recognised from observed times."""
        recognised = cls.recognise(times)
        if unit is None or (origin is None and unit == recognised.unit):
            return recognised
        return cls(unit, None if origin is None else parse_moment(origin))

    def of_days(self, days: float) -> float | None:
        """So many days in this unit; None where the unit is not known.

        >>> Calendar("seconds").of_days(2), Calendar().of_days(2)
        (172800.0, None)
        """
        return None if self.unit == "number" else days * _DAY / _SECONDS[self.unit]

    def duration(self, text: str) -> float:
        """A length of time as people write it, in this unit; a bare number is in it already.

        Raises
        ------
        CalendarError
            If it is none, or names a unit where the times of the stream have none.

        >>> days = Calendar("days")
        >>> days.duration("7d"), days.duration("36h"), days.duration("90 min"), Calendar().duration("12")
        (7.0, 1.5, 0.0625, 12.0)
        """
        match = _DURATION.fullmatch(text.strip())
        named = match[2] if match else None
        if match is None or (named and named not in _LENGTHS):
            raise CalendarError(
                f"expected a length of time like 7d, 36h or 30min (units: {', '.join(_LENGTHS)}), or a number in the "
                f"stream's own unit, got {text[:60]!r}"
            )
        if named and self.unit == "number":
            raise CalendarError(
                f"the times of this stream have no unit, so {text[:60]!r} means nothing in it: give a bare number, or "
                "fit with --set time_unit=seconds (or milliseconds, days)"
            )
        span = float(match[1]) * (_LENGTHS[named] / _SECONDS[self.unit] if named else 1.0)
        if span > _LONGEST:
            raise CalendarError(f"{text[:60]!r} is longer than any stream: expected at most 2**53 units of its time")
        return span

    def moment(self, time: float) -> datetime | None:
        """The date of a time; None where it has none, or one beyond the years 1 to 9999."""
        if self.origin is None:
            return None
        try:
            return self.origin + timedelta(**{self.unit: time})
        except (OverflowError, ValueError):
            return None

    def time_of(self, moment: datetime) -> float:
        """The time of a date.

        Raises
        ------
        CalendarError
            If the times of this stream have no dates.
        """
        if self.origin is None:
            raise CalendarError(
                "the times of this stream have no dates: give a number, or fit with --set time_unit=seconds (or "
                "milliseconds, days) and --set time_origin=2018-04-01, the moment of time 0"
            )
        return (moment - self.origin) / timedelta(**{self.unit: 1})

    def iso(self, time: float) -> str | None:
        """The date in ISO 8601, for programs; None where there is none."""
        moment = self.moment(time)
        return None if moment is None else moment.isoformat()

    def show(self, time: float) -> str:
        """The date, to the minute, or the plain number: for tables and sentences."""
        moment = self.moment(time)
        if moment is None:
            return plain_number(time)
        return f"{moment:%Y-%m-%d}" if self.unit == "days" and time == math.floor(time) else _to_the_minute(moment)

    def length(self, span: float) -> str:
        """How long that is.

        >>> Calendar("days").length(3.52), Calendar("milliseconds").length(1500), Calendar("seconds").length(3600)
        ('3.5 days', '1.5 s', '1 h')
        """
        if self.unit == "number":
            return _counted(plain_number(span), "unit") + " of time"
        seconds = span * _SECONDS[self.unit]
        if seconds >= _DAY:
            return _counted(plain_number(round(seconds / _DAY, 1)), "day")
        for large, small, one, other in ((_HOUR, _MINUTE, "h", "min"), (_MINUTE, 1.0, "min", "s")):
            if seconds >= large:
                whole, rest = divmod(round(seconds / small), round(large / small))
                return f"{whole} {one} {rest} {other}" if rest else f"{whole} {one}"
        return f"{plain_number(seconds)} s"

    @property
    def widths(self) -> tuple[int, ...]:
        """Lengths to count events in, each a multiple of the one before."""
        return _WIDTHS[self.unit]

    def axis_label(self, dated: bool) -> str:
        """The label of an axis of time: the zone of its dates, or the unit of its numbers."""
        if dated and self.origin is not None:
            return f"time ({self.origin.tzname()})"
        return "time" if self.unit == "number" else f"time, {self.unit}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"unit": self.unit, "origin": None if self.origin is None else self.origin.isoformat()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calendar:
        """The inverse.

        Raises
        ------
        CalendarError
            If these are not the values of a calendar.
        """
        if not isinstance(values, Mapping) or set(values) != {"unit", "origin"}:
            raise CalendarError(f"expected unit and origin of a calendar, got {values!r}")
        origin = values["origin"]
        return cls(values["unit"], None if origin is None else parse_moment(origin))


def parse_moment(text: object) -> datetime:
    """A date or moment in ISO 8601, in UTC unless it names a zone.

    Raises
    ------
    CalendarError
        If it is none.

    >>> parse_moment("2018-04-01").isoformat()
    '2018-04-01T00:00:00+00:00'
    """
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        moment = None
    if moment is None:
        raise CalendarError(f"expected a date in ISO 8601 like 2018-04-01 or 2018-04-01T13:05, got {text!r}")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def alert_moment(alert: Mapping[str, Any]) -> datetime | None:
    """The date of an alert that came as JSON, where its model's calendar is not at hand."""
    try:
        return parse_moment(alert.get("when"))
    except CalendarError:
        return None


def show_alert_time(alert: Mapping[str, Any]) -> str:
    """The time of such an alert: its date, or the plain number."""
    moment = alert_moment(alert)
    return plain_number(float(alert["time"])) if moment is None else _to_the_minute(moment)


def plain_number(value: float) -> str:
    """A number as people write it: some four digits, all of those before the point, and never an exponent.

    >>> [plain_number(x) for x in (1546310400.0, 41.2345, 0.00123456, -2.0, 0.0)]
    ['1546310400', '41.23', '0.001235', '-2', '0']
    """
    if not math.isfinite(value) or value == 0:
        return f"{abs(value):g}" if value == 0 else f"{value:g}"
    digits = min(max(3 - math.floor(math.log10(abs(value))), 2), 12)
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _to_the_minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"


def _counted(number: str, noun: str) -> str:
    return f"{number} {noun}" if number == "1" else f"{number} {noun}s"
