"""What the engine returns for one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stream_ccsd.alerts.alert import Alert
from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.transaction import Status, Transaction


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one transaction."""

    transaction: Transaction
    status: Status
    scores: Mapping[str, float | None] = field(default_factory=dict)  # by name; None: nothing to compare yet
    rarities: Mapping[str, float | None] = field(default_factory=dict)  # -log of the share of normal ones this high
    score: float | None = None  # the alert score: the rarity of the score that alerts are on
    maximum: float | None = None  # the account's highest alert score so far
    accumulated: float | None = None  # the sum of its three highest; not repeated for duplicates
    # Terms of the evidence in the model's order; not repeated for duplicates.
    term_values: FloatArray | None = field(default=None, compare=False)
    term_names: tuple[str, ...] = ()
    # What a model update learns from (``evidence.supervised.input_names``), where the model learns.
    inputs: AnyArray | None = field(default=None, compare=False)
    waits: int = 0  # transactions of the account until the divergence score starts
    model: str = ""
    alert: Alert | None = None
    held_back: bool = False  # it would have been an alert, but for the cap
    reason: str | None = None  # why it was refused, or what is special about a duplicate

    @property
    def terms(self) -> dict[str, float] | None:
        """Of the evidence, which they add up to; not repeated for duplicates."""
        if self.term_values is None:
            return None
        return dict(zip(self.term_names, self.term_values.tolist(), strict=True))

    @property
    def evidence(self) -> float | None:
        """The evidence of the transaction."""
        return self.scores.get("evidence")

    @property
    def takeover(self) -> float | None:
        """The takeover score of the account's newest transactions."""
        return self.scores.get("takeover")

    @property
    def divergence(self) -> float | None:
        """The divergence score."""
        return self.scores.get("divergence")

    @property
    def entered(self) -> bool:
        """Whether it had an effect on its account."""
        return self.status.entered

    @property
    def refusal(self) -> str:
        """Why it had none, for the dead letters."""
        return f"{self.status}: {self.reason or 'a transaction with this id was entered before, nothing changed'}"

    @property
    def tail_rate(self) -> float | None:
        """Share of normal transactions that score this high."""
        return None if self.score is None else float(np.exp(-self.score))
