"""Labelled transactions, and disjoint sets of accounts: to fit on, to choose thresholds on, to report on.

Labels travel beside the transactions, never in them, so no score can see one.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from replay.sources.files import Reading, listed, parsed_rows
from replay.sources.labels import is_fraud, label_text
from stream_ccsd.divergence.search.windows import AccountHistory
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.model.codes import Codes
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, IntArray, shuffled
from stream_ccsd.transaction import Guess, Refusal, Schema, Transaction

_FIELDS = tuple(name for name in Transaction.__dataclass_fields__ if name != "fields")
# How declared fields and kinds of fraud are called in a file for another process: no transaction's column is.
_DECLARED, _KINDS = "field:", "kind of fraud"
# A column with more values among the frauds than this names something else than kinds of fraud.
_MOST_KINDS = 50


@dataclass(frozen=True, eq=False)
class LabelledData:
    """Transactions in time order (file order within a time), their labels, and where they came from."""

    name: str
    transactions: list[Transaction]
    fraud: AnyArray  # bool, by transaction
    refused: int
    fingerprint: str
    kinds: AnyArray | None = None
    """By transaction, what kind of fraud it is, empty where it is none; None where no column says."""

    def save(self, path: Path) -> None:
        """Write everything to a Parquet file, for another process."""
        names = sorted({name for t in self.transactions for name in t.fields})
        columns: dict[str, Any] = {name: [getattr(t, name) for t in self.transactions] for name in _FIELDS}
        columns |= {_DECLARED + name: [t.fields.get(name) for t in self.transactions] for name in names}
        columns["fraud"] = self.fraud
        if self.kinds is not None:
            columns[_KINDS] = self.kinds.tolist()
        facts = {"name": self.name, "refused": str(self.refused), "fingerprint": self.fingerprint}
        pq.write_table(pa.table(columns).replace_schema_metadata(facts), path)

    @classmethod
    def load(cls, path: Path) -> LabelledData:
        """Read what :meth:`save` wrote."""
        table = pq.read_table(path)
        facts = {k.decode(): v.decode() for k, v in table.schema.metadata.items()}
        declared = [name for name in table.column_names if name.startswith(_DECLARED)]
        values = zip(*(table[name].to_pylist() for name in declared), strict=True)
        names = [name.removeprefix(_DECLARED) for name in declared]
        fields = [dict(zip(names, row, strict=True)) for row in values] or [{}] * len(table)
        columns = [table[name].to_pylist() for name in _FIELDS]
        transactions = [Transaction(*row) for row in zip(*columns, fields, strict=True)]
        fraud = table["fraud"].to_numpy()
        kinds = np.array(table[_KINDS].to_pylist(), object) if _KINDS in table.column_names else None
        return cls(facts["name"], transactions, fraud, int(facts["refused"]), facts["fingerprint"], kinds)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The same as a table: a row a transaction without its declared fields, and ``fraud``."""
        columns = {name: [getattr(t, name) for t in self.transactions] for name in _FIELDS}
        return pd.DataFrame({**columns, "fraud": self.fraud})

    def fraud_accounts(self) -> pd.Series:
        """By account, whether any of its transactions is fraud."""
        return self.frame.groupby("account", sort=False)["fraud"].any()

    def rows_by_account(self) -> dict[str, IntArray]:
        """Positions of each account's transactions, in time order."""
        return self.frame.groupby("account", sort=False).indices

    @cached_property
    def codes(self) -> Codes:
        """Categories and merchants as numbers."""
        return Codes.of(text for t in self.transactions for text in (t.category, t.merchant))

    def history(self, rows: IntArray) -> AccountHistory:
        """Some of the transactions as columns."""
        return AccountHistory(*(column[rows] for column in self._columns))

    @cached_property
    def _columns(self) -> tuple[FloatArray, FloatArray, AnyArray, AnyArray]:
        categories, merchants = (
            self.frame[name].map(self.codes).to_numpy(np.uint32) for name in ("category", "merchant")
        )
        times, amounts = (self.frame[name].to_numpy(float) for name in ("time", "amount"))
        return times, amounts, categories, merchants


def load_labelled(
    path: Path, schema: Schema | Guess | None = None, label: str = "fraud", by: str | None = None
) -> LabelledData:
    """Read a transaction file with a label column; rows that the schema refuses are counted and left out.

    With ``by``, that column names the kind of each fraud.

    Raises
    ------
    StreamCcsdError
        If the label column or another is missing, a label is not 0 or 1, or nothing is left.
    """
    rows: list[tuple[Transaction, bool, str]] = []
    refused = 0
    for row, parsed in parsed_rows(Reading(path), schema):
        if isinstance(parsed, Refusal) or row.values is None:
            refused += 1
            continue
        for column, option in ((label, "label"), (by, "by")):
            if column is not None and column not in row.values:
                raise StreamCcsdError(
                    f"{path} has no {'label column' if option == 'label' else 'column'} {column!r}: "
                    f"it has {listed(row.values)}. Use --{option}."
                )
        is_labelled = _label(path, row.values[label], row.line)
        kind = sys.intern(label_text(row.values[by])) if by is not None and is_labelled else ""
        rows.append((parsed, is_labelled, kind))
    if not rows:
        raise StreamCcsdError(f"{path} holds no usable transaction ({refused} refused)")
    rows.sort(key=lambda row: row[0].time)
    transactions = [transaction for transaction, _, _ in rows]
    fraud = np.array([is_labelled for _, is_labelled, _ in rows])
    kinds = None if by is None else np.array([kind for _, _, kind in rows], object)
    if kinds is not None and len(set(kinds)) > _MOST_KINDS:
        raise StreamCcsdError(
            f"{path}: {by!r} has more than {_MOST_KINDS} values among the frauds, it does not name kinds of fraud"
        )
    return LabelledData(path.name, transactions, fraud, refused, _fingerprint(transactions, fraud, kinds), kinds)


def _label(path: Path, value: object, position: str) -> bool:
    said = is_fraud(value)
    if said is None:
        raise StreamCcsdError(f"{path}, row {position}: a label must be 0 or 1, got {label_text(value)[:40]!r}")
    return said


def _fingerprint(transactions: list[Transaction], fraud: AnyArray, kinds: AnyArray | None) -> str:
    digest = hashlib.sha256(fraud.tobytes())
    for t in transactions:
        digest.update(f"{t.account}\0{t.time!r}\0{t.amount!r}\0{t.category}\0{t.merchant}\n".encode("utf-8", "replace"))
        if t.fields:
            digest.update(repr(sorted(t.fields.items())).encode("utf-8", "replace"))
    for kind in () if kinds is None else kinds:
        digest.update(f"{kind}\n".encode("utf-8", "replace"))
    return digest.hexdigest()


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
