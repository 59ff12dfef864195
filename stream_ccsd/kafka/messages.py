"""What travels over the topics: transactions in, scores, alerts and dead letters out. JSON, keyed by account.

A message's identity is its transaction's partition and offset, which every output carries: where one appears twice on a
topic after a failure, it is the same to the byte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain, starmap
from math import isfinite
from typing import Any, NamedTuple, Protocol

import msgspec

from stream_ccsd.alert.reasons import Alert
from stream_ccsd.records import (
    DeadLetter,
    Origin,
    alert_record,
    score_columns,
    score_record,
    scored_columns,
    scored_terms,
    transaction_record,
)
from stream_ccsd.result import Result
from stream_ccsd.scores import score_names
from stream_ccsd.transaction import Refusal, Transaction
from stream_ccsd.verdict import Verdict

Headers = list[tuple[str, bytes]]

# Of a dead letter that no topic takes whole, this much is kept.
KEPT = 65_536
_AROUND = 256
_encode_lines = msgspec.json.Encoder().encode_lines


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
    partition: int | None = None  # by its key, if none is named


def transaction_message(transaction: Transaction) -> bytes:
    """A transaction as the workers read it."""
    return _json(transaction_record(transaction))


def score_messages(records: Sequence[Record], results: Sequence[Result]) -> list[bytes]:
    """The scores of transactions that were entered, a message each; None where there is nothing to compare yet.

    They are written by compiled code, all at once: one by one, most of the time would go into dictionaries.
    """
    said, terms = scored_columns(results), scored_terms(results)
    if not _all_finite(said, terms):
        # The compiled code writes null for what is no number, and nobody would notice; Python's own refuses it.
        return [_json(score_record(_origin(r), result)) for r, result in zip(records, results, strict=True)]
    columns = {
        "partition": [record.partition for record in records],
        "position": [record.offset for record in records],
        "timestamp": [record.timestamp for record in records],
        "label": [None] * len(records),
        **said,
        "terms": terms,
    }
    names = tuple(column.name for column in score_columns())
    rows = zip(*(columns[name] for name in names), strict=True)
    lines = _encode_lines(list(starmap(_message_type(names), rows)))
    return lines.split(b"\n")[:-1]  # each ends in a line break, and has no other: JSON escapes them


def _all_finite(columns: Mapping[str, Sequence[Any]], terms: Sequence[Mapping[str, float] | None]) -> bool:
    """A sum shows whether there is anything else."""
    totals = [sum(filter(None, columns[name])) for name in (*score_names(), "score", "maximum")]
    totals += (sum(of.values()) for of in terms if of)
    return isfinite(sum(totals)) and isfinite(sum(chain.from_iterable(filter(None, columns["inputs"]))))


@lru_cache(4)
def _message_type(names: tuple[str, ...]) -> Any:
    return msgspec.defstruct("Score", names, gc=False)


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
    return OutgoingRecord(letter.topic, key if key is None else key[:kept], value[:kept], headers, letter.partition)


def _json(values: dict[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
