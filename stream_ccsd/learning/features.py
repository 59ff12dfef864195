"""Scored transactions as columns: what model updates and adaptation learn from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stream_ccsd.evidence.supervised import input_names
from stream_ccsd.fields import Field
from stream_ccsd.model.codes import Codes
from stream_ccsd.model.model import Model
from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.result import Result
from stream_ccsd.transaction import Transaction, category_value, identity, number_value


@dataclass(frozen=True, eq=False)
class Features:
    """Transactions as they were scored, a row each."""

    key: AnyArray  # uint64: account and id, hashed
    account: AnyArray  # uint64, hashed
    time: FloatArray
    amount: FloatArray
    category: AnyArray  # codes
    merchant: AnyArray
    names: AnyArray  # codes of declared categories, a row each
    numbers: FloatArray  # declared numbers
    inputs: AnyArray  # float32, see ``evidence.supervised.input_names``
    evidence: FloatArray
    takeover: FloatArray
    score: FloatArray
    alerted: AnyArray
    texts: Mapping[int, str] = field(default_factory=dict)  # behind codes that the model does not know

    @classmethod
    def of(cls, results: Iterable[Result], model: Model) -> Features:
        """From results that had an effect and have inputs to learn from; others are left out."""
        used = [r for r in results if r.entered and r.inputs is not None]
        columns = features_of([r.transaction for r in used], model.codes, model.settings.declared)
        return cls(
            **columns,
            inputs=np.array([r.inputs for r in used], np.float32).reshape(len(used), model_inputs(model)),
            evidence=np.array([r.evidence for r in used], float),
            takeover=np.array([r.takeover for r in used], float),
            score=np.array([r.score for r in used], float),
            alerted=np.array([r.alert is not None for r in used], bool),
        )

    @classmethod
    def of_records(cls, records: Sequence[dict[str, Any]], model: Model) -> Features:
        """The same from score records, as they were written."""
        used = [r for r in records if r["inputs"] is not None]
        columns = features_of([_transaction(r) for r in used], model.codes, model.settings.declared)
        return cls(
            **columns,
            inputs=np.array([r["inputs"] for r in used], np.float32).reshape(len(used), model_inputs(model)),
            evidence=np.array([r["evidence"] for r in used], float),
            takeover=np.array([r["takeover"] for r in used], float),
            score=np.array([r["score"] for r in used], float),
            alerted=np.array([r["alert"] for r in used], bool),
        )

    @classmethod
    def of_batch(cls, scores: pa.RecordBatch, model: Model) -> Features:
        """The same from score records as a batch of columns."""
        used = scores.filter(pc.is_valid(scores.column("inputs")))
        own = ("account", "time", "amount", "category", "merchant", "id")
        columns = [used.column(name).to_pylist() for name in own]
        said = [json.loads(text) if text else {} for text in used.column("fields").to_pylist()]
        transactions = [
            Transaction(account, time, amount, category, merchant, name, given)
            for account, time, amount, category, merchant, name, given in zip(*columns, said, strict=True)
        ]
        flat = used.column("inputs").flatten().to_numpy(zero_copy_only=False)
        return cls(
            **features_of(transactions, model.codes, model.settings.declared),
            inputs=flat.astype(np.float32).reshape(len(transactions), model_inputs(model)),
            **{name: used.column(name).to_numpy().astype(float) for name in ("evidence", "takeover", "score")},
            alerted=used.column("alert").to_numpy(zero_copy_only=False).astype(bool),
        )

    def __len__(self) -> int:
        return len(self.key)

    def take(self, which: AnyArray) -> Features:
        """Some of them."""
        return Features(**{name: getattr(self, name)[which] for name in _COLUMNS}, texts=self.texts)

    @staticmethod
    def concatenate(parts: Sequence[Features]) -> Features:
        """One after the other; at least one part."""
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
        texts: dict[int, str] = {}
        for part in parts:
            texts |= {code: text for code, text in part.texts.items() if code not in texts}
        return Features(**columns, texts=texts)


def model_inputs(model: Model) -> int:
    """How many inputs the model updates of this model have."""
    return len(input_names(model.settings.declared))


def _transaction(record: dict[str, Any]) -> Transaction:
    own = {name: record[name] for name in ("account", "time", "amount", "category", "merchant", "id")}
    return Transaction(**own, fields=record["fields"] or {})


_COLUMNS = tuple(f.name for f in fields(Features) if f.name != "texts")


def transaction_key(account: str, transaction: str) -> int:
    """The key by which a verdict finds its transaction."""
    return identity(f"{account}\0{transaction}")


def features_of(transactions: Sequence[Transaction], codes: Codes, declared: tuple[Field, ...]) -> dict[str, Any]:
    """The columns that are the transactions' own, and the texts behind codes that are new."""
    categories = [f.name for f in declared if f.kind == "category"]
    numbers = [f.name for f in declared if f.kind == "number"]
    count = len(transactions)
    texts: dict[int, str] = {}

    def coded(names: list[str]) -> AnyArray:
        """Each name is looked up once: there are few of them among many."""
        found = {name: codes(name) for name in set(names)}
        texts.update((code, name) for name, code in found.items() if code not in codes.names)
        return np.array([found[name] for name in names], np.uint64)

    accounts = {name: identity(name) for name in {t.account for t in transactions}}
    return {
        "texts": texts,
        "key": np.array([transaction_key(t.account, t.id) for t in transactions], np.uint64),
        "account": np.array([accounts[t.account] for t in transactions], np.uint64),
        "time": np.array([t.time for t in transactions], float),
        "amount": np.array([t.amount for t in transactions], float),
        "category": coded([t.category for t in transactions]),
        "merchant": coded([t.merchant for t in transactions]),
        "names": np.array(
            [coded([category_value(t, f) for t in transactions]) for f in categories], np.uint64
        ).T.reshape(count, len(categories)),
        "numbers": np.array([[number_value(t, f) for f in numbers] for t in transactions], float).reshape(
            count, len(numbers)
        ),
    }
