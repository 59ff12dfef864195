"""Scored transactions as columns: what lessons are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from stream_ccsd.library.model import Model
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.result import Result
from stream_ccsd.transaction import category_value, number_value


@dataclass(frozen=True, eq=False)
class Rows:
    """Scored transactions in the order of the stream, a row each."""

    time: FloatArray
    account: AnyArray  # texts
    id: AnyArray  # texts
    amount: FloatArray
    category: AnyArray  # codes
    merchant: AnyArray  # codes
    names: AnyArray  # (rows, declared categories), codes
    numbers: FloatArray  # (rows, declared numbers), NaN where missing
    inputs: AnyArray  # (rows, inputs): what weights are learnt on
    evidence: FloatArray
    takeover: FloatArray
    score: FloatArray
    alerted: AnyArray
    texts: Mapping[int, str] = field(default_factory=dict)  # behind codes that the model does not know

    def __len__(self) -> int:
        return len(self.time)

    @classmethod
    def of(cls, results: Iterable[Result], model: Model) -> Rows:
        """Of all results that had an effect; ``model`` is one with the codes of the model that scored them."""
        entered = [result for result in results if result.entered]
        transactions = [result.transaction for result in entered]
        declared, codes, count = model.settings.declared, model.codes, len(entered)
        categories = [f.name for f in declared if f.kind == "category"]
        numbers = [f.name for f in declared if f.kind == "number"]
        texts: dict[int, str] = {}

        def code(text: str) -> int:
            known = codes(text)
            if known not in codes.names:
                texts.setdefault(known, text)
            return known

        inputs = [getattr(result, "inputs", None) for result in entered]
        width = 0 if not inputs or inputs[0] is None else len(inputs[0])
        return cls(
            time=np.array([t.time for t in transactions], float),
            account=np.array([t.account for t in transactions], object),
            id=np.array([t.id for t in transactions], object),
            amount=np.array([t.amount for t in transactions], float),
            category=np.array([code(t.category) for t in transactions], np.uint32),
            merchant=np.array([code(t.merchant) for t in transactions], np.uint32),
            names=np.array([[code(category_value(t, f)) for f in categories] for t in transactions], np.uint32).reshape(
                count, len(categories)
            ),
            numbers=np.array([[number_value(t, f) for f in numbers] for t in transactions], float).reshape(
                count, len(numbers)
            ),
            inputs=np.array(inputs if width else [], np.float32).reshape(count, width),
            evidence=np.array([r.evidence for r in entered], float),
            takeover=np.array([r.takeover for r in entered], float),
            score=np.array([r.score for r in entered], float),
            alerted=np.array([r.alert is not None for r in entered], bool),
            texts=texts,
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Rows]) -> Rows:
        """One after the other; at least one."""
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
        texts: dict[int, str] = {}
        for part in parts:
            texts = {**part.texts, **texts}
        return cls(**columns, texts=texts)

    def take(self, chosen: AnyArray) -> Rows:
        """Rows of a mask, or of these places."""
        return Rows(**{name: getattr(self, name)[chosen] for name in _COLUMNS}, texts=self.texts)


_COLUMNS = tuple(f.name for f in fields(Rows) if f.name != "texts")
