"""Labelled transactions. Labels travel beside the transactions, never in them: nothing that scores can see one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from replay.files import Reading, guess_schema, parse_record
from replay.labels import is_fraud, label_text
from stream_ccsd.codes import Codes
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.library.windows import AccountHistory
from stream_ccsd.numeric import AnyArray, FloatArray, IntArray
from stream_ccsd.transaction import Refusal, Schema, Transaction

_FIELDS = tuple(Transaction.__dataclass_fields__)


@dataclass(frozen=True, eq=False)
class LabelledData:
    """Transactions in time order (file order within a time), their labels, and where they came from."""

    name: str
    transactions: list[Transaction]
    fraud: AnyArray  # bool, by transaction
    refused: int
    fingerprint: str

    def save(self, path: Path) -> None:
        """Write everything to a Parquet file, for another process."""
        table = pa.Table.from_pandas(self.frame, preserve_index=False)
        facts = {"name": self.name, "refused": str(self.refused), "fingerprint": self.fingerprint}
        pq.write_table(table.replace_schema_metadata(facts), path)

    @classmethod
    def load(cls, path: Path) -> LabelledData:
        """Read what :meth:`save` wrote."""
        table = pq.read_table(path)
        facts = {k.decode(): v.decode() for k, v in table.schema.metadata.items()}
        columns = [table[name].to_pylist() for name in _FIELDS]
        transactions = [Transaction(*row) for row in zip(*columns, strict=True)]
        fraud = table["fraud"].to_numpy()
        return cls(facts["name"], transactions, fraud, int(facts["refused"]), facts["fingerprint"])

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The same as a table: a row a transaction with its fields, and ``fraud``."""
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


def load_labelled(path: Path, schema: Schema | None = None, label: str = "fraud") -> LabelledData:
    """Read a transaction file with a label column; rows that the schema refuses are counted and left out.

    Raises
    ------
    StreamCcsdError
        If the label column is missing, a label is not 0 or 1, or nothing is left.
    """
    rows: list[tuple[Transaction, bool]] = []
    refused = 0
    for row in Reading(path).rows():
        if row.values is None:
            refused += 1
            continue
        position, record = row.line, row.values
        if label not in record:
            raise StreamCcsdError(f"{path} has no label column {label!r}: it has {', '.join(record)}. Use --label.")
        schema = schema or guess_schema(list(record))
        transaction = parse_record(schema, record, position)
        if isinstance(transaction, Refusal):
            refused += 1
            continue
        rows.append((transaction, _label(path, record[label], position)))
    if not rows:
        raise StreamCcsdError(f"{path} holds no usable transaction ({refused} refused)")
    rows.sort(key=lambda row: row[0].time)
    transactions = [transaction for transaction, _ in rows]
    fraud = np.array([label for _, label in rows])
    return LabelledData(path.name, transactions, fraud, refused, _fingerprint(transactions, fraud))


def _label(path: Path, value: object, position: str) -> bool:
    said = is_fraud(value)
    if said is None:
        raise StreamCcsdError(f"{path}, row {position}: a label must be 0 or 1, got {label_text(value)[:40]!r}")
    return said


def _fingerprint(transactions: list[Transaction], fraud: AnyArray) -> str:
    digest = hashlib.sha256(fraud.tobytes())
    for t in transactions:
        digest.update(f"{t.account}\0{t.time!r}\0{t.amount!r}\0{t.category}\0{t.merchant}\n".encode("utf-8", "replace"))
    return digest.hexdigest()
