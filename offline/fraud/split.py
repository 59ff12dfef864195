"""Five disjoint sets of accounts, or two periods with a gap between."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stream_ccsd.errors import StreamCcsdError

LIBRARY_SHARE, VAL_NORMAL_SHARE = 0.70, 0.15
VAL_FRAUD_SHARE = 0.35


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


def split_accounts(fraud_accounts: dict[str, bool], seed: int) -> Split:
    """A random permutation of each class, cut at the shares; the same for the same accounts and seed."""
    rng = np.random.default_rng(seed)
    normal = rng.permutation(sorted(a for a, fraud in fraud_accounts.items() if not fraud)).tolist()
    fraud = rng.permutation(sorted(a for a, fraud in fraud_accounts.items() if fraud)).tolist()
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
