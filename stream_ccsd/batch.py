"""Events and accounts as compiled code takes them, and room for what it says."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from stream_ccsd.account import BACKGROUND
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.scores import COMPILED
from stream_ccsd.status import Status

# What became of an event.
SCORED, LATE, DUPLICATE, TOO_LATE = 0, 1, 2, 3
# Duplicates by id with another content, and those whose answer is no longer kept.
DIFFERENT, FORGOTTEN = 4, 5
STATUSES = (Status.SCORED, Status.LATE, Status.DUPLICATE, Status.TOO_LATE, Status.DUPLICATE, Status.DUPLICATE)

# An event as compiled code takes it, and its answer.
EVENT = np.dtype(
    [
        ("row", "i8"),
        ("time", "f8"),
        ("amount", "f8"),
        ("category", "u4"),
        ("merchant", "u4"),
        ("id", "u8"),
        ("account", "u8"),
    ]
)
PACKED_EVENT = struct.Struct("=qddIIQQ")
"""The same as Python packs it: quicker than an assignment to a row."""
# Eight bytes each, whole numbers first.
OUTPUT = np.dtype(
    [
        ("status", "i8"),
        ("decision", "i8"),
        ("regime", "i8"),  # change flags of the transaction, -1 for an account's first
        ("count", "i8"),  # transactions of the account so far
        ("scores", "f8", (len(COMPILED),)),  # NaN where there is nothing to compare yet
        ("rarities", "f8", (len(COMPILED),)),  # of each, among normal transactions
        ("score", "f8"),  # the alert score: rarity of the score that alerts are on
        ("previous_maximum", "f8"),
        ("maximum", "f8"),
        ("accumulated", "f8"),  # sum of the account's highest scores
        ("newest_time", "f8"),  # of the account, before the event
    ]
)
_ROW = struct.Struct(f"=4q{OUTPUT.itemsize // 8 - 4}d")


class Answers(NamedTuple):
    """An output as Python's own values."""

    status: int
    decision: int
    transactions: int  # of the account so far
    scores: list[float | None]
    rarities: list[float | None]
    score: float
    maximum: float
    accumulated: float
    newest_time: float


def answers(outputs: AnyArray) -> list[Answers]:
    """Rows of a table of outputs; a score or rarity that is NaN is None."""
    n, found = len(COMPILED), []
    # Unpacked as bytes: for one row, numpy's ways to Python's own numbers take several times as long.
    for status, decision, _, count, *row in _ROW.iter_unpack(outputs.data):
        scores = [None if value != value else value for value in row[:n]]  # noqa: PLR0124
        rated = zip(scores, row[n : 2 * n], strict=True)
        rarities = [None if score is None or value != value else value for score, value in rated]  # noqa: PLR0124
        score, _, maximum, accumulated, newest = row[2 * n :]
        found.append(Answers(status, decision, count, scores, rarities, score, maximum, accumulated, newest))
    return found


class Accounts(NamedTuple):
    """Working memory of accounts, a row each (``account.Slab``)."""

    records: AnyArray
    histories: AnyArray
    named: AnyArray
    views: AnyArray


class Batch(NamedTuple):
    """Events as compiled code takes them, and room for what it says, a row each."""

    events: AnyArray
    names: AnyArray  # codes of declared categories
    numbers: FloatArray  # declared numbers, NaN where missing
    outputs: AnyArray
    terms: FloatArray  # of the evidence
    inputs: FloatArray  # what a lesson learns from, where somebody does
    backgrounds: AnyArray  # filled in for alerts
    views: AnyArray  # likewise, of declared categories

    @staticmethod
    def of(rows: int, terms: int, named: int, numbers: int, inputs: int = 0) -> Batch:
        """Room for so many events of models with so many terms and declared fields."""
        return Batch(
            np.zeros(rows, EVENT),
            np.zeros((rows, named), np.uint32),
            np.zeros((rows, numbers)),
            np.zeros(rows, OUTPUT),
            np.zeros((rows, terms)),
            np.zeros((rows, inputs)),
            np.zeros(rows, BACKGROUND),
            np.zeros((rows, named), np.float32),
        )
