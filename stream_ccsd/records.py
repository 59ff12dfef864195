"""The public records: one shape each for a score, an alert, a verdict and a dead letter, wherever they are written.

``scores.parquet``, ``alerts.jsonl``, ``dead_letters.jsonl``, the tables of a replay's state, Kafka's messages and
``--json`` have the same names and types. ``schemas/`` holds them as JSON Schema, and a test compares both.

Terms of the evidence are JSON objects with four digits, written for a whole batch at once. The texts are the same, to
the character, as ``json`` and ``round`` give for each row, which would take most of the time of recording a
transaction.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stream_ccsd.alerts.alert import Alert
from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.result import Result
from stream_ccsd.scores import scores
from stream_ccsd.transaction import MAX_TEXT, Refusal, Status, Transaction
from stream_ccsd.verdict import MAX_WHY, NEEDED, Verdict

_DIGITS = 4
# Up to here, a product with 10**4 is exact to a millionth, and Arrow writes out a quotient as Python does.
_LARGE = 1e5
# Products this close to a half may be on its other side.
_NEAR = 1e-5


def rounded(values: FloatArray) -> FloatArray:
    """Each as Python rounds it: by its exact value, where numpy rounds a product that is rounded itself."""
    with np.errstate(all="ignore"):
        scaled = np.abs(values) * 10.0**_DIGITS
        doubtful = ~(np.abs(scaled - np.floor(scaled) - 0.5) > _NEAR) | ~(np.abs(values) < _LARGE)
        result: AnyArray = np.round(values, _DIGITS)
    result[doubtful] = [round(value, _DIGITS) for value in values[doubtful].tolist()]
    return result


def term_texts(names: Sequence[str], values: FloatArray) -> pa.Array:
    """An object a row of ``values``, without terms that are 0; ``names`` are those of its columns."""
    digits = rounded(values)
    rows, columns = np.nonzero(digits)
    numbers = digits[rows, columns]
    texts = pc.cast(pa.array(numbers), pa.string())
    # Whole numbers, which Python writes with a point, and values that no evidence should have.
    odd = ~(np.abs(numbers) < _LARGE) | (numbers == np.trunc(numbers))
    if odd.any():
        texts = pc.replace_with_mask(texts, odd, pa.array([json.dumps(n) for n in numbers[odd].tolist()], pa.string()))
    keys = pa.array([json.dumps(name) + ":" for name in names], pa.string())
    parts = pc.binary_join_element_wise(keys.take(pa.array(columns)), texts, "")
    ends = np.searchsorted(rows, np.arange(len(values) + 1)).astype(np.int32)
    return pc.binary_join_element_wise("{", pc.binary_join(pa.ListArray.from_arrays(ends, parts), ","), "}", "")


Kind = Literal["text", "number", "whole", "truth", "values", "numbers", "series"]
_OBJECTS = ("values", "numbers")
_ARROW = {
    **{"text": pa.string(), "number": pa.float64(), "whole": pa.int64(), "truth": pa.bool_()},
    "series": pa.list_(pa.float32()),
    **dict.fromkeys(_OBJECTS, pa.string()),  # an object of JSON as text: its names differ from model to model
}
_JSON: dict[Any, dict[str, Any]] = {
    **{"text": {"type": "string"}, "number": {"type": "number"}},
    **{"whole": {"type": "integer"}, "truth": {"type": "boolean"}},
    "values": {"type": "object", "additionalProperties": {"type": ["string", "number", "null"]}},
    "numbers": {"type": "object", "additionalProperties": {"type": "number"}},
    "series": {"type": "array", "items": {"type": "number"}},
}
_encode = json.JSONEncoder(separators=(",", ":")).encode  # made once: json.dumps would make one a row
_OF_TRANSACTION = ("id", "account", "time", "amount", "category", "merchant")
_PYTHON: dict[Any, str] = {str: "string", float: "number", int: "integer", bool: "boolean", Status: "string"}


class Origin(NamedTuple):
    """Where a transaction came from: together, its identity among all that were read."""

    position: int  # in a file from 1; in a Kafka partition its offset
    partition: int = 0
    timestamp: int | None = None  # Kafka's, in milliseconds


class Column(NamedTuple):
    """One field of a record."""

    name: str
    kind: Kind
    meaning: str
    optional: bool = False


def score_columns() -> list[Column]:
    """Of a score record: one a transaction that had an effect."""
    return [
        Column("partition", "whole", "Partition of the topic it came from; 0 for a file"),
        Column("position", "whole", "Its place there: a file's record from 1, or Kafka's offset"),
        Column("timestamp", "whole", "Kafka's timestamp in milliseconds", optional=True),
        Column("id", "text", "The transaction's id"),
        Column("account", "text", "Whose transaction it is"),
        Column("time", "number", "When it happened, in the unit of the stream"),
        Column("amount", "number", "How much was paid"),
        Column("category", "text", "For what; empty where nothing is said"),
        Column("merchant", "text", "To whom"),
        Column("fields", "values", "Values of declared fields by name; null where none is declared", optional=True),
        Column("status", "text", "What became of it: scored, or late"),
        *(Column(s.name, "number", f"{s.meaning} ({s.unit})", optional=True) for s in scores()),
        Column(
            "terms",
            "numbers",
            "What the evidence adds up from, by name (nats, four digits; those of 0 are left out)",
            optional=True,
        ),
        Column(
            "inputs",
            "series",
            "What lessons learn from, in the order of the model's inputs; null where the model does not learn",
            optional=True,
        ),
        Column("score", "number", "The alert score: -log of the share of normal transactions this high (nats)"),
        Column("maximum", "number", "The account's highest alert score so far (nats)"),
        Column("alert", "truth", "Whether it raised an alert"),
        Column("model", "text", "The version of the model that scored it"),
        Column("label", "text", "What the source says, for evaluation; the engine never sees it", optional=True),
    ]


def score_schema() -> pa.Schema:
    """A score record for Arrow and Parquet."""
    return pa.schema([pa.field(c.name, _ARROW[c.kind]) for c in score_columns()])


def score_record(origin: Origin, result: Result, label: str | None = None) -> dict[str, Any]:
    """The scores of a transaction; None where there is nothing to compare yet."""
    t, terms = result.transaction, result.terms or {}
    return {
        "partition": origin.partition,
        "position": origin.position,
        "timestamp": origin.timestamp,
        "id": t.id,
        "account": t.account,
        "time": t.time,
        "amount": t.amount,
        "category": t.category,
        "merchant": t.merchant,
        "fields": {name: value for name, value in t.fields.items() if name in terms} or None,  # declared ones
        "status": result.status,
        **result.scores,
        # Most are 0, and rounding is dear.
        "terms": {name: n for name, nats in terms.items() if nats and (n := round(nats, 4))} if terms else None,
        "inputs": None if result.inputs is None else result.inputs.tolist(),
        "score": result.score,
        "maximum": result.maximum,
        "alert": result.alert is not None,
        "model": result.model,
        "label": label,
    }


def score_batch(records: list[dict[str, Any]]) -> pa.RecordBatch:
    """Score records as a batch of columns."""
    arrays = [
        pa.array([_text(r[c.name]) if c.kind in _OBJECTS else r[c.name] for r in records], _ARROW[c.kind])
        for c in score_columns()
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=score_schema())


def scored_batch(positions: Sequence[int], results: Sequence[Result], labels: Sequence[str | None]) -> pa.RecordBatch:
    """The same for results of one engine that had an effect, by their positions in a file, without a dict a row."""
    count = len(results)
    places = {"partition": [0] * count, "position": positions, "timestamp": [None] * count, "label": labels}
    columns = places | scored_columns(results)
    columns["fields"] = [_text(fields) for fields in columns["fields"]]
    names = results[0].term_names if results else ()
    columns["terms"] = term_texts(names, _term_values(results)) if names else [None] * count
    arrays = [pa.array(columns[field.name], field.type) for field in score_schema()]
    return pa.RecordBatch.from_arrays(arrays, schema=score_schema())


def scored_columns(results: Sequence[Result]) -> dict[str, Any]:
    """The columns of score records, from results of one engine that had an effect.

    The caller adds where they came from, their labels and :func:`scored_terms`.
    """
    names = results[0].term_names if results else ()
    transactions = [result.transaction for result in results]
    said = [result.scores for result in results]
    return {
        **{name: list(map(attrgetter(name), transactions)) for name in _OF_TRANSACTION},
        "fields": [{n: v for n, v in t.fields.items() if n in names} or None for t in transactions],
        **{name: list(map(attrgetter(name), results)) for name in ("status", "score", "maximum", "model")},
        **{score.name: [of[score.name] for of in said] for score in scores()},
        "inputs": [None if result.inputs is None else result.inputs.tolist() for result in results],
        "alert": [result.alert is not None for result in results],
    }


def scored_terms(results: Sequence[Result]) -> list[dict[str, float] | None]:
    """The column of their terms. :func:`term_texts` writes thousands sooner; of a few, Arrow's calls cost the most."""
    names = results[0].term_names if results else ()
    if not names:
        return [None] * len(results)
    rows = rounded(_term_values(results)).tolist()
    return [{name: nats for name, nats in zip(names, row, strict=True) if nats} for row in rows]


def _term_values(results: Sequence[Result]) -> FloatArray:
    return np.array([result.term_values for result in results])


def score_records(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """The records of such a batch again, or of some of its columns, as plain values."""
    records: list[dict[str, Any]] = table.to_pylist()
    there = set(table.schema.names)
    for name in (c.name for c in score_columns() if c.kind in _OBJECTS and c.name in there):
        for record in records:
            record[name] = None if record[name] is None else json.loads(record[name])
    return records


def _text(value: dict[str, Any] | None) -> str | None:
    return None if value is None else _encode(value)


def transaction_record(transaction: Transaction) -> dict[str, Any]:
    """A transaction as it is sent: declared fields beside the others."""
    own = {name: getattr(transaction, name) for name in Transaction.__dataclass_fields__ if name != "fields"}
    return {**transaction.fields, **own}


def alert_record(origin: Origin, alert: Alert) -> dict[str, Any]:
    """An alert with its reasons, after its headline, its best reason, and its expected loss to rank by."""
    return {
        **origin._asdict(),
        "headline": alert.headline,
        "reason": alert.best_reason.text,
        "expected_loss": alert.expected_loss,
        **alert.to_dict(),
    }


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that had no effect: its origin, its status and reason, and the record itself."""

    partition: int
    position: int
    timestamp: int | None
    line: str | None  # of a file; in Parquet its row
    kind: Status
    reason: str
    field: str | None
    value: str | None
    raw: str  # on Kafka it is the message's own bytes, and not repeated

    @classmethod
    def of(cls, origin: Origin, why: Refusal, raw: str = "", line: str | None = None) -> DeadLetter:
        """A record from elsewhere, and what is wrong with it."""
        place = origin.partition, origin.position, origin.timestamp
        return cls(*place, line, why.kind, why.reason, why.field, why.value, raw)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def to_json(self) -> str:
        """One line of ``dead_letters.jsonl``."""
        return json.dumps(self.to_dict())


def json_schemas() -> dict[str, dict[str, Any]]:
    """JSON Schema of each record, by its name."""
    columns = {
        c.name: {**(_or_null(_JSON[c.kind]) if c.optional else _JSON[c.kind]), "description": c.meaning}
        for c in score_columns()
    }
    origin = {name: value for name, value in columns.items() if name in Origin._fields}
    alert = _object_schema(Alert)
    loss = {"type": "number", "description": "To rank alerts by, in nats, not money: evidence plus log(1 + amount)"}
    said = {"headline": {"type": "string"}, "reason": {"type": "string"}, "expected_loss": loss}
    alert["properties"] = {**origin, **said, **alert["properties"]}
    alert["required"] = list(alert["properties"])
    described = {
        "score": {"type": "object", "properties": columns, "required": list(columns), "additionalProperties": False},
        "alert": alert,
        "verdict": _verdict_schema(),
        "dead_letter": _object_schema(DeadLetter),
    }
    return {
        name: {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, **schema}
        for name, schema in described.items()
    }


def _verdict_schema() -> dict[str, Any]:
    """A verdict is read as well as written, so its schema says what may be left out, and how long texts may be."""
    schema = _object_schema(Verdict)
    for name in ("transaction", "account", "who", "why"):
        lengths = {"maxLength": MAX_WHY} if name == "why" else {"minLength": 1, "maxLength": MAX_TEXT}
        schema["properties"][name] |= lengths
    return {**schema, "required": list(NEEDED)}


def _object_schema(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    properties = {field.name: _schema_of(hints[field.name]) for field in dataclasses.fields(kind)}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _schema_of(hint: Any) -> dict[str, Any]:
    """JSON Schema of a type hint, of those that records are made of."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _object_schema(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin in (Union, types.UnionType):
        inner = [_schema_of(a) for a in arguments if a is not type(None)]
        one = inner[0] if len(inner) == 1 else {"type": [schema["type"] for schema in inner]}
        return _or_null(one) if type(None) in arguments else one
    if origin is list:
        return {"type": "array", "items": _schema_of(arguments[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema_of(arguments[1])}
    named = {"enum": [str(status) for status in Status]} if hint is Status else {}
    return {"type": _PYTHON[hint], **named}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    types = schema["type"]
    return {**schema, "type": [*([types] if isinstance(types, str) else types), "null"]}
