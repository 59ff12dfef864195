"""What travels over the topics: transactions in, scores, alerts and dead letters out. JSON, keyed by account.

A message's identity is its transaction's partition and offset, which every output carries: where one appears twice on a
topic after a failure, it is the same to the byte.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, Protocol

from stream_ccsd.alert.reasons import Alert
from stream_ccsd.records import DeadLetter, Origin, alert_record, score_record, transaction_record
from stream_ccsd.result import Result
from stream_ccsd.transaction import Refusal, Transaction
from stream_ccsd.verdict import Verdict

Headers = list[tuple[str, bytes]]

# Of a dead letter that no topic takes whole, this much is kept.
KEPT = 65_536
_AROUND = 256


class Record(Protocol):
    """A message as the consumer gets it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class OutgoingRecord(NamedTuple):
    """A message to send."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers


def transaction_message(transaction: Transaction) -> bytes:
    """A transaction as the workers read it."""
    return _json(transaction_record(transaction))


def score_message(record: Record, result: Result) -> bytes:
    """One transaction's scores; None where there is nothing to compare yet."""
    return _json(score_record(_origin(record), result))


def alert_message(record: Record, alert: Alert) -> bytes:
    """One alert with its reasons, headed by the line for people."""
    return _json(alert_record(_origin(record), alert))


def verdict_message(verdict: Verdict, date: str | None = None) -> bytes:
    """A verdict as the learner reads it, by whose calendar a date is understood."""
    return _json(verdict.to_dict() if date is None else {**verdict.to_dict(), "time": date})


def dead_letter(topic: str, record: Record, why: Refusal) -> OutgoingRecord:
    """A message that had no effect: its own key and bytes, why and where from in the headers."""
    letter = DeadLetter.of(_origin(record), why)
    about = {"topic": record.topic, **letter.to_dict()}
    headers = [(name, str(said).encode("utf-8", "replace")) for name, said in about.items() if said not in (None, "")]
    # A client may send a message of neither key nor value; ours does not.
    value_or_key = record.value if record.value is not None or record.key is not None else b""
    return OutgoingRecord(topic, record.key, value_or_key, headers)


def _origin(record: Record) -> Origin:
    return Origin(record.offset, record.partition, record.timestamp)


def fitted(letter: OutgoingRecord, largest: int) -> OutgoingRecord:
    """A dead letter as a topic takes it that refuses messages of more bytes: itself, or its beginning.

    Kafka counts what surrounds a message too; it is generously guessed.
    """
    around = _AROUND + sum(len(name) + len(said) + 10 for name, said in letter.headers)
    if len(letter.key or b"") + len(letter.value or b"") + around <= largest:
        return letter
    return shortened(letter, max(0, min(KEPT, (largest - around) // 2)))


def shortened(letter: OutgoingRecord, kept: int = KEPT) -> OutgoingRecord:
    """A dead letter that no topic takes whole: its beginning, and how long it was."""
    value, key = letter.value or b"", letter.key
    if len(value) <= kept and len(key or b"") <= kept:
        return letter
    headers = [*letter.headers, ("truncated_from", str(len(value)).encode())]
    return OutgoingRecord(letter.topic, key if key is None else key[:kept], value[:kept], headers)


def _json(values: dict[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
