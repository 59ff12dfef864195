"""Messages of all topics: transactions in; scores, alerts, verdicts and dead letters out. JSON, keyed by account.

A message's identity is the partition and offset of its transaction. Every output carries both. If an output appears
twice on a topic after a failure, both copies are the same to the byte.

Compiled code reads transactions. It leaves whatever it cannot vouch for to the schema, which alone decides what a
transaction is and says what is wrong. The learner decodes scores and verdicts here; their topics may hold anything.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, starmap
from math import inf, isfinite
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from stream_ccsd.alerts.alert import Alert
from stream_ccsd.calendar import Calendar
from stream_ccsd.fields import FieldValue
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
from stream_ccsd.transaction import MAX_NUMBER, MAX_TEXT, Refusal, Schema, Status, Transaction
from stream_ccsd.verdict import Verdict

_decode = msgspec.json.Decoder().decode
# Values nested deeper than Python's own JSON goes, and numbers longer than it takes, do not fit into this.
_LONGEST = 900
_KINDS = {"account": str, "time": float, "amount": float, "category": str, "merchant": str, "id": str}


class TransactionReader:
    """Reads what :meth:`Schema.parse_json` reads, sooner.

    >>> reader = TransactionReader(Schema(category=None))
    >>> reader.read(b'{"account":"C1","time":3,"amount":9.5,"merchant":"M1","id":"7"}', lambda: "t/0/7")
    Transaction(account='C1', time=3.0, amount=9.5, category='', merchant='M1', id='7', fields={})
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._declared = [(f.name, f"declared_{i}", f.kind == "number") for i, f in enumerate(schema.fields)]
        self._as_usual = _decoder(schema)

    def read(self, raw: bytes, position: Callable[[], str]) -> Transaction:
        """A transaction, or the schema's error in its words; ``position`` is asked where they need it."""
        try:
            transaction = self._usual(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            transaction = None
        return transaction or self._any(raw, position())

    def _usual(self, raw: bytes) -> Transaction | None:
        """A transaction whose values no schema objects to or changes, as nearly all are; None if it may be another.

        Fields that nobody asks for are passed over, so their characters have to be looked at here.
        """
        if self._as_usual is None or len(raw) > _LONGEST or b"\\" in raw:
            return None
        if not raw.isascii():
            raw.decode()
        said = self._as_usual(raw)
        account, category, merchant, key = said.account, said.category, said.merchant, said.id
        time, amount = said.time, said.amount
        if not (
            -MAX_NUMBER <= time <= MAX_NUMBER
            and 0.0 <= amount <= MAX_NUMBER
            and account
            and merchant
            and key
            and len(account) <= MAX_TEXT
            and len(category) <= MAX_TEXT
            and len(merchant) <= MAX_TEXT
            and len(key) <= MAX_TEXT
            and account.isprintable()
            and category.isprintable()
            and merchant.isprintable()
            and key.isprintable()
        ):
            return None
        fields: dict[str, FieldValue] = {}
        for name, place, is_number in self._declared:
            value = getattr(said, place)
            if is_number:
                if value is not None and not -MAX_NUMBER <= value <= MAX_NUMBER:
                    return None
            elif value is None:
                value = ""
            elif len(value) > MAX_TEXT or not value.isprintable():
                return None
            fields[name] = value
        return Transaction(account, time, amount, category, merchant, key, fields)

    def _any(self, raw: bytes, position: str) -> Transaction:
        try:
            record = _decode(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            # Python's own reads a few more things (NaN, a byte order mark, UTF-16), and says what is wrong with others.
            return self._schema.parse_json(raw, position)
        return self._schema.parse(record, position)


def _decoder(schema: Schema) -> Callable[[bytes], Any] | None:
    """Of messages whose values are of the kinds that they become; None where it cannot be had."""
    if schema.id is None:
        return None
    names = [name for name in _KINDS if getattr(schema, name) is not None]
    fields: list[Any] = [(name, _KINDS[name]) for name in names]
    columns = {name: getattr(schema, name) for name in names}
    for i, f in enumerate(schema.fields):
        fields.append((f"declared_{i}", (float if f.kind == "number" else str) | None, None))
        columns[f"declared_{i}"] = schema.renamed.get(f.name, f.name)
    absent: dict[str, Any] = {} if "category" in names else {"category": ""}
    try:
        usual = msgspec.defstruct("Usual", fields, rename=columns, namespace=absent)
    except ValueError:  # a column of a name that has to be escaped
        return None
    return msgspec.json.Decoder(usual).decode


Headers = list[tuple[str, bytes]]

# Of a dead letter that no topic takes whole, this much is kept.
KEPT = 65_536
_AROUND = 256
_encode_lines = msgspec.json.Encoder().encode_lines


class TopicRecord(Protocol):
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


def score_messages(records: Sequence[TopicRecord], results: Sequence[Result]) -> list[bytes]:
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


def alert_message(record: TopicRecord, alert: Alert) -> bytes:
    """One alert with its reasons, headed by the line for people."""
    return _json(alert_record(_origin(record), alert))


def verdict_message(verdict: Verdict, date: str | None = None) -> bytes:
    """A verdict as the learner reads it, by whose calendar a date is understood."""
    return _json(verdict.to_dict() if date is None else {**verdict.to_dict(), "time": date})


def dead_letter(topic: str, record: TopicRecord, why: Refusal) -> OutgoingRecord:
    """A message that had no effect: its own key and bytes, why and where from in the headers."""
    letter = DeadLetter.of(_origin(record), why)
    about = {"topic": record.topic, **letter.to_dict()}
    headers = [(name, str(said).encode("utf-8", "replace")) for name, said in about.items() if said not in (None, "")]
    # A client may send a message of neither key nor value; ours does not.
    value_or_key = record.value if record.value is not None or record.key is not None else b""
    return OutgoingRecord(topic, record.key, value_or_key, headers)


def _origin(record: TopicRecord) -> Origin:
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


_HEAD = struct.Struct("<BQ")  # layout, offset


_LAYOUT = 2


NOTHING = -1


TOPIC = b"\0topic"


def is_account(key: bytes | None) -> bool:
    """Whether a record of table or changelog is an account's: keys of what belongs to no account begin with a zero.

    >>> from stream_ccsd.stores import ALERT_CAP
    >>> is_account(b"C1"), is_account(ALERT_CAP.encode()), is_account(TOPIC), is_account(b"")
    (True, False, False, False)
    """
    return bool(key) and not key.startswith(b"\0")  # type: ignore[union-attr]


def pack_stored(offset: int, state: bytes) -> bytes:
    """A state as table and changelog hold it."""
    return _HEAD.pack(_LAYOUT, offset) + state


def stored_offset(data: bytes | None) -> int:
    """The newest message a stored state has seen; ``NOTHING`` for none, and for bytes that are no state.

    >>> stored_offset(pack_stored(7, b"state")), stored_offset(None)
    (7, -1)
    """
    if data is None or len(data) < _HEAD.size or data[0] != _LAYOUT:
        return NOTHING
    return int(_HEAD.unpack_from(data)[1])


LARGEST = 65_536
"""Bytes of a verdict; its texts are far shorter."""
_TEXTS = ("id", "account", "category", "merchant")
_NUMBERS = ("time", "amount", "score")
_MAYBE = ("evidence", "takeover")


def parse_verdict(record: TopicRecord, calendar: Calendar | None, latest: float = inf) -> Verdict | Refusal:
    """A verdict, or why it is none; ``latest`` is the latest time that the model of the stream takes."""
    if record.value is None:
        return Refusal("the message is empty (a tombstone)")
    if len(record.value) > LARGEST:
        return Refusal(f"the message has {len(record.value):,} bytes: a verdict has at most {LARGEST:,}")
    try:
        said = json.loads(record.value)
    except (ValueError, RecursionError) as error:
        return Refusal(f"not JSON: {type(error).__name__}")
    try:
        return Verdict.parse(said, calendar, f"{record.topic}/{record.partition}/{record.offset}", latest)
    except Exception as error:  # whatever it is, its neighbours go on
        return Refusal(f"cannot be read: {error!r}", kind=Status.FAILED)


def parse_score(value: bytes | None, inputs: int) -> dict[str, Any] | None:
    """What of a score the learner needs, in little memory; None for what is no score, or one of other inputs."""
    try:
        said = json.loads(value or b"")
        found = {name: said[name] for name in ("partition", "position", "fields", "alert", *_TEXTS, *_NUMBERS, *_MAYBE)}
        given = said["inputs"]
        found["inputs"] = None if given is None else np.array(given, np.float32)
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    numbers = [found[name] for name in _NUMBERS] + [found[name] for name in _MAYBE if found[name] is not None]
    sound = (
        all(isinstance(found[name], str) for name in _TEXTS)
        and all(_is_number(number) for number in numbers)
        and all(type(found[name]) is int for name in ("partition", "position"))
        and isinstance(found["fields"], dict | None)
        and isinstance(found["alert"], bool)
        and (found["inputs"] is None or found["inputs"].shape == (inputs,))
    )
    return found if sound else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
