"""Five disjoint sets of accounts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import pandas as pd

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.sampling import shuffled

LIBRARY_SHARE, VAL_NORMAL_SHARE = 0.70, 0.15
VAL_FRAUD_SHARE = 0.35

Part = Literal["val", "test"]
PARTS: tuple[Part, Part] = ("val", "test")


@dataclass(frozen=True)
class Split:
    """Accounts by use; the paper's names in brackets. Normal accounts 70/15/15 %, fraud accounts 35/65 %."""

    library: frozenset[str]  # LIB_NORMAL
    val_normal: frozenset[str]
    val_fraud: frozenset[str]
    test_normal: frozenset[str]
    test_fraud: frozenset[str]

    def __post_init__(self) -> None:
        sets = (self.library, self.val_normal, self.val_fraud, self.test_normal, self.test_fraud)
        if len(frozenset().union(*sets)) != sum(len(s) for s in sets):
            raise StreamCcsdError("an account is in two sets of the split: its results would be worth nothing")
        if not all(sets):
            raise StreamCcsdError("too few accounts: every set of the split needs at least one")

    @property
    def val(self) -> frozenset[str]:
        """Accounts that thresholds are chosen on."""
        return self.val_normal | self.val_fraud

    @property
    def test(self) -> frozenset[str]:
        """Accounts that results are reported on."""
        return self.test_normal | self.test_fraud

    @property
    def sizes(self) -> dict[str, int]:
        """How many accounts are in each set."""
        return {field.name: len(getattr(self, field.name)) for field in fields(self)}

    def labelled(self, part: Part, scores: pd.Series) -> tuple[AnyArray, FloatArray]:
        """Labels and scores (by account) of one part's accounts, in order of name."""
        accounts = sorted(getattr(self, part))
        fraud = getattr(self, f"{part}_fraud")
        return np.array([a in fraud for a in accounts]), scores[accounts].to_numpy()


def split_accounts(fraud_accounts: pd.Series, seed: int) -> Split:
    """A random permutation of each class, cut at the shares; the same for the same accounts and seed."""
    rng = np.random.default_rng(seed)
    labels = fraud_accounts.to_numpy(bool)
    normal, fraud = (shuffled(fraud_accounts.index[mask], rng) for mask in (~labels, labels))
    first = round(LIBRARY_SHARE * len(normal))
    second = first + round(VAL_NORMAL_SHARE * len(normal))
    third = round(VAL_FRAUD_SHARE * len(fraud))
    return Split(
        frozenset(normal[:first]),
        frozenset(normal[first:second]),
        frozenset(fraud[:third]),
        frozenset(normal[second:]),
        frozenset(fraud[third:]),
    )
