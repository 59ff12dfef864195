"""What a batch brought: scores as an Arrow batch, alerts, dead letters. Every place they are written to takes this."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from replay.source import Item, Place
from stream_ccsd.alert.reasons import Alert
from stream_ccsd.engine import Result
from stream_ccsd.status import Status
from stream_ccsd.transaction import Refusal

SCORES = pa.schema(
    [
        ("position", pa.int64()),
        ("id", pa.string()),
        ("account", pa.string()),
        ("time", pa.float64()),
        ("amount", pa.float64()),
        ("category", pa.string()),
        ("merchant", pa.string()),
        ("status", pa.string()),
        ("outcome", pa.float64()),
        ("habit", pa.float64()),
        ("divergence", pa.float64()),
        ("score", pa.float64()),
        ("maximum", pa.float64()),
        ("alert", pa.bool_()),
        ("label", pa.string()),
    ]
)
"""One row a transaction that had an effect; ``score`` is the alert score, ``label`` the source's, if it has one."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that had no effect: its place, its line, what became of it and why, and the record itself."""

    position: int
    line: str
    kind: Status
    reason: str
    field: str | None
    value: str | None
    raw: str

    @classmethod
    def of(cls, item: Item, why: Refusal) -> DeadLetter:
        """Of a record and what is wrong with it."""
        raw = item.raw
        if not raw and not isinstance(item.found, Refusal):  # a stream in memory: the transaction is the record
            raw = json.dumps({name: getattr(item.found, name) for name in item.found.__dataclass_fields__})
        return cls(item.position, item.line, why.kind, why.reason, why.field, why.value, raw)

    def to_json(self) -> str:
        """One line of ``dead_letters.jsonl``."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps(values, ensure_ascii=True)


@dataclass(frozen=True, eq=False)
class Harvest:
    """Everything a batch brought; a resumed replay goes on behind ``reached``."""

    reached: Place
    scores: pa.RecordBatch
    alerts: list[tuple[int, Alert]]
    dead_letters: list[DeadLetter]

    @classmethod
    def of(cls, items: Sequence[Item], results: Sequence[Result]) -> Harvest:
        """From the items of a batch, in order, and the engine's results for those that are transactions."""
        answers = iter(results)
        entered: list[tuple[Item, Result]] = []
        alerts, dead = [], []
        for item in items:
            if isinstance(item.found, Refusal):
                dead.append(DeadLetter.of(item, item.found))
                continue
            result = next(answers)
            if not result.entered:
                dead.append(DeadLetter.of(item, Refusal(result.refusal, kind=result.status)))
                continue
            entered.append((item, result))
            if result.alert:
                alerts.append((item.position, result.alert))
        return cls(items[-1].reached, _score_batch(entered), alerts, dead)


def _score_batch(entered: list[tuple[Item, Result]]) -> pa.RecordBatch:
    transactions = [result.transaction for _, result in entered]
    columns = [
        [item.position for item, _ in entered],
        [t.id for t in transactions],
        [t.account for t in transactions],
        [t.time for t in transactions],
        [t.amount for t in transactions],
        [t.category for t in transactions],
        [t.merchant for t in transactions],
        [r.status for _, r in entered],
        [r.outcome for _, r in entered],
        [r.habit for _, r in entered],
        [r.divergence for _, r in entered],
        [r.score for _, r in entered],
        [r.maximum for _, r in entered],
        [r.alert is not None for _, r in entered],
        [item.label or None for item, _ in entered],
    ]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, SCORES.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCORES)
