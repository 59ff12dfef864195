"""The output of a batch: scores as an Arrow batch, alerts, dead letters. Every place they are written to takes this."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from replay.sources.source import Item, Position
from stream_ccsd.alerts.alert import Alert
from stream_ccsd.records import DeadLetter, Origin, alert_record, scored_batch, transaction_record
from stream_ccsd.result import Result
from stream_ccsd.transaction import Refusal


def alert_line(position: int, alert: Alert) -> str:
    """One line of ``alerts.jsonl``."""
    return json.dumps(alert_record(Origin(position), alert))


def dead_letter(item: Item, why: Refusal) -> DeadLetter:
    """A record of a source and what is wrong with it."""
    raw = item.raw
    if not raw and not isinstance(item.parsed, Refusal):  # a stream in memory: the transaction is the record
        raw = json.dumps(transaction_record(item.parsed))
    return DeadLetter.of(Origin(item.position), why, raw, item.line)


@dataclass(frozen=True, eq=False)
class BatchOutput:
    """All output of a batch; a resumed replay goes on behind ``reached``."""

    reached: Position
    scores: pa.RecordBatch
    alerts: list[tuple[int, Alert]]
    dead_letters: list[DeadLetter]

    @classmethod
    def of(cls, items: Sequence[Item], results: Sequence[Result]) -> BatchOutput:
        """From the items of a batch, in order, and the engine's results for those that are transactions."""
        answers = iter(results)
        entered, positions, labels = list[Result](), list[int](), list[str | None]()
        alerts, dead = [], []
        for item in items:
            if isinstance(item.parsed, Refusal):
                dead.append(dead_letter(item, item.parsed))
                continue
            result = next(answers)
            if not result.entered:
                dead.append(dead_letter(item, Refusal(result.refusal, kind=result.status)))
                continue
            entered.append(result)
            positions.append(item.position)
            labels.append(item.label or None)
            if result.alert:
                alerts.append((item.position, result.alert))
        return cls(items[-1].reached, scored_batch(positions, entered, labels), alerts, dead)
