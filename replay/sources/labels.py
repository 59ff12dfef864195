"""What a label says, the same wherever labels are read: fraud, no fraud, a pattern's name, or nothing."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from typing import Any

FRAUD = "fraud"
"""The label of a transaction that is fraud of no named pattern."""

_WORDS = {"false": False, "f": False, "no": False, "n": False, "true": True, "t": True, "yes": True, "y": True}
_NOTHING = frozenset({"", "none", "null", "nan"})
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
# A pattern's name longer than this is damage.
_LONGEST = 256


def is_fraud(value: Any) -> bool | None:
    """What a value that is a number or a word says; None where it says neither yes nor no.

    >>> [is_fraud(v) for v in ("0.00", 0, "-0.0", False, "1", 1.0, "1.00", "YES", "burst", "")]
    [False, False, False, False, True, True, True, True, None, None]
    """
    text = label_text(value).casefold()
    if text in _WORDS:
        return _WORDS[text]
    number = Decimal(text) if _NUMBER.fullmatch(text) else None
    return None if number not in (0, 1) else number == 1


def label_of(value: Any) -> str:
    """The label for a summary: empty without fraud, otherwise ``fraud`` or the name of its pattern."""
    return _label_of_text(value) if value.__class__ is str else _label_of(value)


def _label_of(value: Any) -> str:
    said, text = is_fraud(value), label_text(value)
    if said is None:
        return "" if text.casefold() in _NOTHING else text
    return FRAUD if said else ""


# A column of a table has the same few texts again and again.
_label_of_text = lru_cache(maxsize=1024)(_label_of)


def label_text(value: Any) -> str:
    """A label as text that can be stored and printed, whatever it is."""
    if isinstance(value, list | dict | tuple):
        return f"a {type(value).__name__}"  # however deep it is
    return str(value).strip()[:_LONGEST].encode("utf-8", "backslashreplace").decode()
