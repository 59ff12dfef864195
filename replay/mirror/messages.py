"""Scores, alerts and dead letters off their topics, as records that can be stored; a topic may hold anything else, too.

What is checked is the published shape of a record (``stream_ccsd/schemas``). Names that are unknown here, because
whoever wrote them is of another version, are left out of scores and kept in alerts; a value that may be null may
as well be missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from math import isfinite
from typing import Any, Protocol

from stream_ccsd.records import Column, DeadLetter, json_schemas, score_columns
from stream_ccsd.stores import Record
from stream_ccsd.transaction import MAX_NUMBER, Status

LARGEST = 1 << 20
"""Bytes of a score or an alert: far more than any has."""
# Whole numbers beyond this are no floating-point numbers, which is what they are stored as; inputs are smaller ones.
_EXACT, _EXACT_INPUT, _LARGEST_INPUT = 2**53, 2**24, 3e38
# Of the message behind a dead letter, and of what is said about it, so many characters are kept.
_RAW, _WORDS = 4096, 1024
_ENTERED = {status.value for status in Status if status.entered}


class Message(Protocol):
    """What is needed of a consumer's record."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Iterable[tuple[str, bytes]]


def parse_score(value: bytes | None) -> Record | None:
    """A score with exactly the columns of one; None for what is none."""
    found = _object(value)
    if found is None:
        return None
    record: Record = {}
    try:
        for name, is_fit, optional in _columns():
            said = record[name] = found.get(name)
            if not (optional if said is None else is_fit(said)):
                return None
    except (UnicodeError, OverflowError):  # half a character, too large a number
        return None
    return record if record["status"] in _ENTERED and abs(record["time"]) <= MAX_NUMBER else None


def parse_alert(value: bytes | None) -> Record | None:
    """An alert with everything that is asked of one; None for what is none."""
    found = _object(value)
    if found is None:
        return None
    schema = _schemas()["alert"]
    complete = {name: None for name, said in schema["properties"].items() if "null" in said["type"]} | found
    try:
        json.dumps(complete, allow_nan=False)  # also what is unknown here must be such as any reader of JSON takes
        return complete if _fits(complete, schema) and abs(complete["time"]) <= MAX_NUMBER else None
    except (ValueError, OverflowError, RecursionError):
        return None


def parse_letter(message: Message) -> Record | None:
    """A dead letter as a replay has it, with ``topic`` and ``offset`` of the message it is about; None if it is none.

    Its ``line`` says both in one text, and ``position`` is for the mirror to fill in.
    """
    about = {name: _text(said) for name, said in message.headers}
    try:
        partition, offset = int(about["partition"]), int(about["position"])
        kind, topic, reason = Status(about["kind"]), about["topic"], about["reason"]
        timestamp = int(about["timestamp"]) if "timestamp" in about else None
    except (KeyError, ValueError):
        return None
    if not 0 <= partition < 2**31 or not 0 <= offset < 2**63 or abs(timestamp or 0) >= 2**63:
        return None
    raw = _text(message.value or b"")[:_RAW]
    field, value = (about[name][:_WORDS] if name in about else None for name in ("field", "value"))
    line = f"{topic}/{partition}/{offset}"
    letter = DeadLetter(partition, 0, timestamp, line, kind, reason[:_WORDS], field, value, raw)
    return {**letter.to_dict(), "topic": topic, "offset": offset}


def set_aside(place: tuple[str, int], offset: int, stamp: float, record: Record, error: Exception) -> Record:
    """A dead letter about a message that cannot be stored, whatever is wrong with it."""
    (topic, partition), raw = place, json.dumps(record, default=repr)[:_RAW]
    reason = f"this page cannot store it: {type(error).__name__}: {error}"[:_WORDS]
    line = f"{topic}/{partition}/{offset}"
    letter = DeadLetter(partition, 0, round(1000 * stamp), line, Status.FAILED, reason, None, None, raw)
    return {**letter.to_dict(), "topic": topic, "offset": offset}


def _text(said: bytes) -> str:
    return said[: 4 * _RAW].decode("utf-8", "replace")


def _object(value: bytes | None) -> dict[str, Any] | None:
    if value is None or len(value) > LARGEST:
        return None
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


@cache
def _schemas() -> dict[str, dict[str, Any]]:
    return json_schemas()


@cache
def _columns() -> list[tuple[str, Callable[[Any], bool], bool]]:
    """Of a score: each with what fits it. A stream has many of them, so plain values are not looked up in a schema."""
    plain = {"text": "string", "number": "number", "whole": "integer", "truth": "boolean"}
    properties = _schemas()["score"]["properties"]

    def fit(column: Column) -> Callable[[Any], bool]:
        if column.kind == "series":
            return lambda v: isinstance(v, list) and all(map(_is_input, v))
        return _IS[plain[column.kind]] if column.kind in plain else lambda v: _fits(v, properties[column.name])

    return [(column.name, fit(column), column.optional) for column in score_columns()]


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value has the shape; of JSON Schema, what ours are made of. All numbers are such as can be stored."""
    types = schema["type"]
    if not any(_IS[name](value) for name in ([types] if isinstance(types, str) else types)):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, list):
        return all(_fits(item, schema["items"]) for item in value)
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        return all(name in value for name in schema.get("required", ())) and all(
            _is_text(name) and (not (known := properties.get(name) or others) or _fits(item, known))
            for name, item in value.items()
        )
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.encode() or True)  # half a character raises


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= _EXACT
    return isinstance(value, float) and isfinite(value)


def _is_input(value: Any) -> bool:
    return _is_number(value) and abs(value) <= (_EXACT_INPUT if isinstance(value, int) else _LARGEST_INPUT)


_IS: dict[str, Callable[[Any], bool]] = {
    "string": _is_text,
    "number": _is_number,
    "integer": lambda value: type(value) is int and abs(value) < 2**63,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
}
