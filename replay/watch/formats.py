"""How values are written, for people in templates and as JSON for browsers; and the page's errors with their status."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from stream_ccsd.calendar import Calendar, plain_number
from stream_ccsd.errors import StreamCcsdError

_NOTHING = "–"


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON as the standard has it: what is no number there (NaN, infinity) is null.

    >>> json_text({"a": [1.5, float("nan")], "b": (True, "é")})
    '{"a": [1.5, null], "b": [true, "\\\\u00e9"]}'
    """
    try:
        return json.dumps(value, allow_nan=False, indent=indent)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def filters(show: Callable[[float], str]) -> dict[str, Callable[..., str]]:
    """What templates write values with; ``show`` writes a time of the stream."""
    return {
        "number": number,
        "money": lambda value: _written(value, lambda x: f"{x:,.2f}"),
        "nats": lambda value: _written(value, lambda x: f"{x:.2f}"),
        "percent": percent,
        "clock": lambda value: _written(value, show),
        "ago": ago,
        "moment": moment,
    }


def number(value: Any, digits: int | None = None) -> str:
    """With commas, and as many digits as it takes.

    >>> number(1234.5), number(7), number(1234.5678, 2), number(None)
    ('1,234.5', '7', '1,234.57', '–')
    """

    def write(x: float) -> str:
        if digits is not None:
            return f"{x:,.{digits}f}"
        whole, point, rest = plain_number(x).partition(".")
        sign, whole = ("-", whole[1:]) if whole.startswith("-") else ("", whole)
        return f"{sign}{int(whole):,}{point}{rest}"

    return _written(value, write)


def percent(value: Any, digits: int | None = None) -> str:
    """A share.

    >>> percent(0.765), percent(0.0012), percent(1), percent(None)
    ('76.5%', '0.12%', '100%', '–')
    """
    return _written(value, lambda x: number(100 * x, digits) + "%")


def ago(value: Any, now: float | None = None) -> str:
    """How long a moment (seconds since 1970) is past.

    >>> ago(100.0, 103.0), ago(100.0, 400.0), ago(100.0, 90_000.0)
    ('3 s ago', '5 min ago', '1 day ago')
    """

    def write(x: float) -> str:
        seconds = max(0.0, (time.time() if now is None else now) - x)
        if seconds < 60:
            return f"{seconds:.0f} s ago"
        return Calendar("seconds").length(seconds // 60 * 60) + " ago"

    return _written(value, write)


def moment(value: Any) -> str:
    """A moment (seconds since 1970) as a date.

    >>> moment(0)
    '1970-01-01T00:00:00+00:00'
    """
    return _written(value, lambda x: datetime.fromtimestamp(x, UTC).isoformat(timespec="seconds"))


def _written(value: Any, write: Callable[[float], str]) -> str:
    """What is no number is written as it is, or as nothing: a template need not ask."""
    if value is None:
        return _NOTHING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    try:
        return write(value) if math.isfinite(value) else f"{value:g}"
    except (OverflowError, OSError, ValueError):
        return f"{value:g}"


class NotFoundError(StreamCcsdError):
    """There is no such account, alert or page (404)."""


class RefusedError(StreamCcsdError):
    """A request that is not answered: with which status, why, and what to do instead."""

    def __init__(self, status: int, said: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(said)
        self.status, self.headers = status, dict(headers or {})
