"""All scores, each declared once. Layouts, rates, files, messages, tables and evaluations follow from this.

Three are compiled into the step of an event and stored for duplicates. Others can be added from outside with
:func:`register`, as a function of the compiled outputs of a batch. They are computed, calibrated, recorded, sent and
shown like the built-in ones, but they raise no alert: what alerts are made of must be known inside the step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.numerics.arrays import AnyArray, FloatArray

Compute = Callable[[AnyArray, AnyArray], FloatArray]
"""From outputs and events of the step, a row a transaction: the score of each, NaN where there is none."""

Explain = Callable[[Any, Any, Any], list[tuple[float, str]]]
"""Of the model, the transaction and its row of outputs: the score's parts in nats with their sentences."""


@dataclass(frozen=True)
class Score:
    """One score of a transaction; higher is more suspicious."""

    name: str
    meaning: str
    """In a sentence, for people and for the schemas of records."""
    unit: str = "nats"
    rated: bool = True
    """Whether a fit learns how rare its values are among normal transactions."""
    joins_alert: bool = False
    """Whether an alert is raised for it: alerts are on the rarest of those that join."""
    compute: Compute | None = None
    """None for a compiled one."""
    explain: Explain | None = None
    """Its reasons for one transaction; None: it is shown as a number."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", self.name):
            raise StreamCcsdError(f"a score's name is a word in small letters, got {self.name!r}")
        if self.compute is not None and self.joins_alert:
            raise StreamCcsdError(f"the score {self.name!r} is computed beside the alert, and cannot join it")


COMPILED = (
    Score(
        "evidence",
        "How much likelier the transaction is as fraud than as a normal one, field by field",
        joins_alert=True,
    ),
    Score(
        "takeover",
        "How much the account's newest transactions, taken together, fit anyone better than this account",
        joins_alert=True,
    ),
    Score("divergence", "The paper's: the account's recent windows against a library of normal ones"),
)
EVIDENCE, TAKEOVER, DIVERGENCE = range(len(COMPILED))
"""Their places in compiled code's arrays."""

FUSED = "fused"
"""The alert score unless one score is chosen: the rarest of those that join."""

_ADDED: dict[str, Score] = {}

TAKEN = frozenset(
    (
        *("partition", "position", "timestamp", "id", "account", "time", "when", "amount", "category", "merchant"),
        *(
            "status",
            "score",
            "maximum",
            "accumulated",
            "alert",
            "model",
            "label",
            "reason",
            "terms",
            "inputs",
            "fields",
            FUSED,
        ),
        *(score.name for score in COMPILED),
    )
)
"""Columns of the public records, which no added score and no declared field may be called."""


def register(score: Score) -> Score:
    """Add a score from outside, for every model that is fitted from now on.

    >>> log_amount = Score("log_amount", "Size of the amount", compute=lambda outputs, events: events["amount"])
    >>> register(log_amount) in scores(), unregister("log_amount"), log_amount in scores()
    (True, None, False)

    Raises
    ------
    StreamCcsdError
        If it has no function, or its name is taken.
    """
    if score.compute is None:
        raise StreamCcsdError(f"the score {score.name!r} needs a function that computes it")
    if score.name in TAKEN or score.name in {s.name for s in scores()}:
        raise StreamCcsdError(f"something is called {score.name!r} already: give the score another name")
    _ADDED[score.name] = score
    return score


def unregister(name: str) -> None:
    """Take an added score away again."""
    _ADDED.pop(name, None)


def scores() -> tuple[Score, ...]:
    """All scores, the compiled ones first."""
    return (*COMPILED, *_ADDED.values())


def score_names() -> tuple[str, ...]:
    """The names of all of them."""
    return tuple(score.name for score in scores())


def recorded_scores(record: Iterable[str]) -> list[str]:
    """Which columns of a score's record are scores, also of one that was added elsewhere and is not known here.

    >>> recorded_scores(["account", "evidence", "risk", "score"])
    ['evidence', 'risk']
    """
    return [name for name in record if name not in TAKEN or name in {s.name for s in COMPILED}]
