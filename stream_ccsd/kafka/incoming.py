"""Transactions as messages bring them, read by compiled code.

What it cannot vouch for is left to the schema, which alone decides what is a transaction, and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from stream_ccsd.fields import FieldValue
from stream_ccsd.transaction import MAX_NUMBER, MAX_TEXT, Schema, Transaction

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
