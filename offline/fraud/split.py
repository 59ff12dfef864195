"""Disjoint sets of accounts: what is fitted on, what thresholds are chosen on, what results are reported on."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

import numpy as np
import pandas as pd

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.sampling import shuffled

LIBRARY_SHARE, VAL_NORMAL_SHARE = 0.70, 0.15
VAL_FRAUD_SHARE = 0.35
FITTED_SHARE = 0.5

Kind = Literal["sets", "half", "unlabelled"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Five sets with thresholds chosen on VAL; half of the normal accounts fitted; half of all, labels unknown."""

Part = Literal["val", "test"]
PARTS: tuple[Part, Part] = ("val", "test")


@dataclass(frozen=True)
class Split:
    """Accounts by use; the paper's names in brackets."""

    library: frozenset[str]  # LIB_NORMAL
    val_normal: frozenset[str]
    val_fraud: frozenset[str]
    test_normal: frozenset[str]
    test_fraud: frozenset[str]

    def __post_init__(self) -> None:
        sets = (self.library, self.val_normal, self.val_fraud, self.test_normal, self.test_fraud)
        if len(frozenset().union(*sets)) != sum(len(s) for s in sets):
            raise StreamCcsdError("an account is in two sets of the split: its results would be worth nothing")

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
        return np.array([a in fraud for a in accounts], bool), scores[accounts].to_numpy()


def split_as(kind: Kind, fraud_accounts: pd.Series, seed: int) -> Split:
    """The split of that kind; the same for the same accounts and seed."""
    return {"sets": split_accounts, "half": split_half, "unlabelled": split_unlabelled}[kind](fraud_accounts, seed)


def split_accounts(fraud_accounts: pd.Series, seed: int) -> Split:
    """Five sets: normal accounts 70/15/15 %, fraud accounts 35/65 %, at random.

    Raises
    ------
    StreamCcsdError
        If one of them is empty.
    """
    rng = np.random.default_rng(seed)
    normal, fraud = _by_label(fraud_accounts, rng)
    first = round(LIBRARY_SHARE * len(normal))
    second = first + round(VAL_NORMAL_SHARE * len(normal))
    third = round(VAL_FRAUD_SHARE * len(fraud))
    split = Split(
        frozenset(normal[:first]),
        frozenset(normal[first:second]),
        frozenset(fraud[:third]),
        frozenset(normal[second:]),
        frozenset(fraud[third:]),
    )
    if not all(split.sizes.values()):
        raise StreamCcsdError(
            f"too few accounts: every set of the split needs at least one, there are {len(normal)} without fraud and "
            f"{len(fraud)} with fraud"
        )
    return split


def split_half(fraud_accounts: pd.Series, seed: int) -> Split:
    """A random half of the accounts without fraud to fit on; all others are TEST."""
    normal, fraud = _by_label(fraud_accounts, np.random.default_rng(seed))
    cut = round(FITTED_SHARE * len(normal))
    none: frozenset[str] = frozenset()
    return _with_both(Split(frozenset(normal[:cut]), none, none, frozenset(normal[cut:]), frozenset(fraud)))


def split_unlabelled(fraud_accounts: pd.Series, seed: int) -> Split:
    """A random half of all accounts to fit on, fraud and all, chosen without a look at labels; the others are TEST."""
    accounts = shuffled(fraud_accounts.index, seed)
    cut = round(FITTED_SHARE * len(accounts))
    fraud = {a for a in accounts[cut:] if fraud_accounts[a]}
    none: frozenset[str] = frozenset()
    return _with_both(Split(frozenset(accounts[:cut]), none, none, frozenset(accounts[cut:]) - fraud, frozenset(fraud)))


def _by_label(fraud_accounts: pd.Series, rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """A random permutation of each class: normal, fraud."""
    labels = fraud_accounts.to_numpy(bool)
    normal, fraud = (shuffled(fraud_accounts.index[mask], rng) for mask in (~labels, labels))
    return normal, fraud


def _with_both(split: Split) -> Split:
    """Accounts may all have fraud: then there is no ranking of accounts, but still one of transactions."""
    if not split.library or not split.test_fraud:
        raise StreamCcsdError(
            f"too few accounts: {len(split.library)} to fit on, and {len(split.test_fraud)} with fraud among the others"
        )
    return split
