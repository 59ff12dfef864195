"""Labelled transactions. Labels travel beside the transactions, never in them: nothing that scores can see one."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from replay.files import Reading, listed, parsed_rows
from replay.labels import is_fraud, label_text
from stream_ccsd.codes import Codes
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.library.windows import AccountHistory
from stream_ccsd.numeric import AnyArray, FloatArray, IntArray
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
