"""Scores and verdicts as a learner reads them off their topics; either may hold anything."""

from __future__ import annotations

import json
from math import inf, isfinite
from typing import Any

import numpy as np

from stream_ccsd.calendar import Calendar
from stream_ccsd.kafka.messages import Record
from stream_ccsd.status import Status
from stream_ccsd.transaction import Refusal
from stream_ccsd.verdict import Verdict

LARGEST = 65_536
"""Bytes of a verdict; its texts are far shorter."""
_TEXTS = ("id", "account", "category", "merchant")
_NUMBERS = ("time", "amount", "score")
_MAYBE = ("evidence", "takeover")


def parse_verdict(record: Record, calendar: Calendar | None, latest: float = inf) -> Verdict | Refusal:
    """A verdict, or why it is none; ``latest`` is the latest time that the model of the stream takes."""
    if record.value is None:
        return Refusal("the message is empty (a tombstone)")
    if len(record.value) > LARGEST:
        return Refusal(f"the message has {len(record.value):,} bytes: a verdict has at most {LARGEST:,}")
    try:
        said = json.loads(record.value)
    except (ValueError, RecursionError) as error:
        return Refusal(f"not JSON: {type(error).__name__}")
    try:
        return Verdict.parse(said, calendar, f"{record.topic}/{record.partition}/{record.offset}", latest)
    except Exception as error:  # whatever it is, its neighbours go on
        return Refusal(f"cannot be read: {error!r}", kind=Status.FAILED)


def parse_score(value: bytes | None, inputs: int) -> dict[str, Any] | None:
    """What of a score lessons need, in little memory; None for what is no score, or one of other inputs."""
    try:
        said = json.loads(value or b"")
        found = {name: said[name] for name in ("partition", "position", "fields", "alert", *_TEXTS, *_NUMBERS, *_MAYBE)}
        given = said["inputs"]
        found["inputs"] = None if given is None else np.array(given, np.float32)
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    numbers = [found[name] for name in _NUMBERS] + [found[name] for name in _MAYBE if found[name] is not None]
    sound = (
        all(isinstance(found[name], str) for name in _TEXTS)
        and all(_is_number(number) for number in numbers)
        and all(type(found[name]) is int for name in ("partition", "position"))
        and isinstance(found["fields"], dict | None)
        and isinstance(found["alert"], bool)
        and (found["inputs"] is None or found["inputs"].shape == (inputs,))
    )
    return found if sound else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
