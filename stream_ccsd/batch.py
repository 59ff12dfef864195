"""Events and accounts as compiled code takes them, and room for what it says."""

from __future__ import annotations

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
