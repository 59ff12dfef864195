"""A transaction: who paid how much, where and when. It holds no label, so no score can see one.

One schema checks every source: dictionaries, rows of text, JSON bytes and Arrow batches. A record that does not fit
becomes a :class:`Refusal` that names the field, the value and what was expected. Other records are not affected.

:class:`Status` has one name for each outcome of a record, the same in results, dead letters, messages and counts.
Programs decide by these names. The reasons beside them are for people and quote input, so nothing may be decided by
their words.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from hashlib import blake2b
from numbers import Integral, Real
from typing import Any

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.fields import Field, FieldValue


class Status(StrEnum):
    """The outcome of one record; only the first two have an effect on an account.

    >>> Status("too late"), Status.LATE.entered, Status.DUPLICATE.entered
    (<Status.TOO_LATE: 'too late'>, True, False)
    """

    SCORED = "scored"
    LATE = "late"
    DUPLICATE = "duplicate"
    TOO_LATE = "too late"
    TOO_FAR_AHEAD = "too far ahead"
    REFUSED = "refused"  # made by hand, and no transaction
    DAMAGED = "damaged state"  # a good transaction of an account whose stored state cannot be read
    MALFORMED = "malformed"  # not a transaction by the schema
    KEY = "key"  # a message under another key than its account
    FAILED = "internal error"  # a fault of this software

    @property
    def entered(self) -> bool:
        """Whether the account remembers it."""
        return self in (Status.SCORED, Status.LATE)


MAX_TEXT = 256
"""Longest account, category, merchant or transaction id, in characters."""

MAX_NUMBER = 2.0**53
"""Largest amount and time: beyond it, neighbouring whole numbers are no longer distinct."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")

_FIELDS = ("account", "time", "amount", "category", "merchant", "id")


@dataclass(frozen=True, slots=True)
class Transaction:
    """One checked transaction. ``time`` is BankSim's step, an epoch in seconds, or any other growing number."""

    account: str
    time: float
    amount: float
    category: str
    merchant: str
    id: str
    fields: Mapping[str, FieldValue] = field(default_factory=dict, hash=False)
    """Values of declared fields by name; one that is not there, or None, is missing."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a record was not taken, for the dead letters."""

    reason: str
    field: str | None = None
    value: str | None = None
    position: str | None = None
    kind: Status = Status.MALFORMED

    def __str__(self) -> str:
        where = f" at {self.position}" if self.position else ""
        return f"{self.reason}{where}"


class TransactionError(StreamCcsdError):
    """A record does not fit the schema; carries the :class:`Refusal`."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


@dataclass(frozen=True)
class Schema:
    """Which column holds which field. ``category`` and ``id`` may be None: absent, and numbered by position.

    Declared ``fields`` are in columns of their own names, or of those that ``renamed`` gives.

    >>> banksim = Schema(account="customer", time="step", id=None)
    >>> row = {"customer": "C1", "step": "3", "amount": "9.5", "category": "es_food", "merchant": "M1", "age": "2"}
    >>> banksim.parse(row, position="7")
    Transaction(account='C1', time=3.0, amount=9.5, category='es_food', merchant='M1', id='7', fields={})
    """

    account: str = "account"
    time: str = "time"
    amount: str = "amount"
    category: str | None = "category"
    merchant: str = "merchant"
    id: str | None = "id"
    fields: tuple[Field, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict, hash=False)
    _columns: dict[str, str] = field(init=False, repr=False, compare=False)
    _declared: tuple[tuple[str, bool, str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        columns = {name: getattr(self, name) for name in _FIELDS if getattr(self, name) is not None}
        object.__setattr__(self, "_columns", dict(columns))
        unknown = set(self.renamed) - {f.name for f in self.fields}
        if unknown:
            known = ", ".join((*_FIELDS, *(f.name for f in self.fields)))
            raise StreamCcsdError(f"no field is called {', '.join(sorted(unknown))}: there are {known}")
        own = tuple((f.name, f.kind == "number", self.renamed.get(f.name, f.name)) for f in self.fields)
        object.__setattr__(self, "_declared", own)
        columns |= {name: column for name, _, column in own}
        for name, column in columns.items():
            if not isinstance(column, str) or not column:
                raise StreamCcsdError(f"the column for {name} must be a name, got {column!r}")
        if len(set(columns.values())) < len(columns):
            raise StreamCcsdError(f"two fields are mapped to one column: {columns}")

    @property
    def columns(self) -> dict[str, str]:
        """Field to column, for the fields that are present."""
        return self._columns | {name: column for name, _, column in self._declared}

    def parse(self, record: Mapping[str, Any], position: str | None = None) -> Transaction:
        """A transaction from a dictionary; unknown keys are ignored.

        Raises
        ------
        TransactionError
            Naming the field, the value and what was expected.
        """
        if record.__class__ is not dict and not isinstance(record, Mapping):
            raise malformed(f"expected a record with named fields, got {shown(record)}", None, record, position)
        values = {}
        for name, column in self._columns.items():
            if column not in record:
                raise malformed(f"{name}: column {column!r} is missing", name, None, position)
            values[name] = record[column]
        if self.id is None and position is None:
            raise StreamCcsdError("a schema without an id column needs the position of each record")
        return Transaction(
            account=checked_text("account", values["account"], position),
            time=checked_time(values["time"], position),
            amount=_amount(values["amount"], position),
            category="" if self.category is None else checked_text("category", values["category"], position),
            merchant=checked_text("merchant", values["merchant"], position),
            id=str(position) if self.id is None else checked_text("id", values["id"], position),
            fields={
                name: (_measured if is_number else _named)(name, record.get(column), position)
                for name, is_number, column in self._declared
            },
        )

    def parse_row(self, header: Sequence[str], row: Sequence[str], position: str | None = None) -> Transaction:
        """A transaction from a row of a text table; raises as :meth:`parse`."""
        if len(row) != len(header):
            raise malformed(f"the row has {len(row)} values, the header {len(header)}", None, ",".join(row), position)
        return self.parse(dict(zip(header, row, strict=True)), position)

    def parse_json(self, raw: bytes | str, position: str | None = None) -> Transaction:
        """A transaction from one JSON object; raises as :meth:`parse`."""
        try:
            record = json.loads(raw)
        except (ValueError, TypeError, RecursionError) as error:
            raise malformed(f"not valid JSON: {error}", None, raw, position) from None
        return self.parse(record, position)

    def parse_arrow(self, batch: Any, first_position: int = 0) -> Iterator[Transaction | Refusal]:
        """Transactions or refusals, one for each row of an Arrow record batch or table.

        Raises
        ------
        StreamCcsdError
            If a column of the schema is not there: then no row can be read.
        """
        columns = tuple(self.columns.values())
        missing = [c for c in columns if c not in batch.schema.names]
        if missing:
            names = ", ".join(batch.schema.names)
            raise StreamCcsdError(f"no column named {', '.join(missing)}: the data has {names}. Map the columns.")
        lists = [batch.column(c).to_pylist() for c in columns]
        for offset, row in enumerate(zip(*lists, strict=True)):
            position = str(first_position + offset)
            try:
                yield self.parse(dict(zip(columns, row, strict=True)), position)
            except TransactionError as error:
                yield error.refusal


@dataclass(frozen=True)
class Guess:
    """A schema whose own columns are recognised where they are read; only those of declared fields are known."""

    fields: tuple[Field, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict, hash=False)


def unsound(transaction: object) -> str | None:
    """What is wrong with a transaction that was made without a schema; quick, for the engine to check each."""
    t = transaction
    if not isinstance(t, Transaction):
        return f"expected a transaction, got {shown(t)}"
    if (
        t.amount.__class__ is t.time.__class__ is float
        and 0.0 <= t.amount <= MAX_NUMBER
        and -MAX_NUMBER <= t.time <= MAX_NUMBER
        and t.account.__class__ is t.merchant.__class__ is t.category.__class__ is t.id.__class__ is str
        and t.account
        and t.account[0] != "\0"
        and t.merchant
        and t.id
    ):
        return None if t.fields.__class__ is dict and not t.fields else _unsound_fields(t.fields)
    for name in ("account", "merchant", "category", "id"):
        text = getattr(transaction, name)
        if not isinstance(text, str) or not (text or name == "category"):
            return f"{name}: expected text, got {shown(text)}"
    if t.account.startswith("\0"):  # names that stores reserve for what belongs to no account
        return f"account: expected a name that does not begin with a zero byte, got {shown(t.account)}"
    for name, lowest in (("amount", 0.0), ("time", -MAX_NUMBER)):
        number = getattr(transaction, name)
        # Python's and numpy's own: fractions, decimals and arrays are numbers that the engine cannot take.
        plain = isinstance(number, int | float) or (isinstance(number, Real) and hasattr(number, "dtype"))
        if not plain or not lowest <= number <= MAX_NUMBER:
            return f"{name}: expected a number from {lowest:g} to 2**53, got {shown(number)}"
    return _unsound_fields(t.fields)


def _unsound_fields(values: object) -> str | None:
    if not isinstance(values, Mapping):
        return f"fields: expected values by name, got {shown(values)}"
    for name, value in values.items():
        if value is None or isinstance(value, str):
            continue
        if not isinstance(value, int | float) or not -MAX_NUMBER <= value <= MAX_NUMBER:
            return f"{shown(name).strip(chr(39))}: expected text, a number within 2**53 or None, got {shown(value)}"
    return None


def misfit(transaction: Transaction, declared: Sequence[Field]) -> str | None:
    """Which declared field of a sound transaction has a value of the wrong kind."""
    values = transaction.fields
    for f in declared:
        value = values.get(f.name)
        if value is None or (value == "" and f.kind == "number"):
            continue
        if isinstance(value, str) != (f.kind == "category"):
            wanted = "text" if f.kind == "category" else "a number"
            return f"{f.name}: expected {wanted}, since it is a {f.kind}, got {shown(value)}"
    return None


def category_value(transaction: Transaction, name: str) -> str:
    """The value of a declared category; empty where it is missing."""
    return transaction.fields.get(name) or ""  # type: ignore[return-value]  # of the right kind, see misfit


def number_value(transaction: Transaction, name: str) -> float:
    """The value of a declared number; NaN where it is missing."""
    value = transaction.fields.get(name)
    return math.nan if value is None or value == "" else float(value)


def identity(text: str) -> int:
    """A transaction id as 64 bits, to recognise duplicates by."""
    return text_hash(text, 8)


def text_hash(text: str, size: int) -> int:
    """Hash of a text as a number of so many bytes, the same in every process."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest(), "little")


def checked_text(name: str, value: Any, position: str | None = None, longest: int = MAX_TEXT) -> str:
    """A text that can be stored and printed, and is not empty; only a category may be.

    Raises
    ------
    TransactionError
        Naming the field, the value and what was expected.
    """
    if value.__class__ is str and value and len(value) <= longest and value.isprintable():
        return value  # nearly all are, so this comes before slower checks
    if value is None and name == "category":
        return ""
    if isinstance(value, Integral) and not isinstance(value, bool) and abs(int(value)) < 2**64:
        value = str(value)
    if not isinstance(value, str):
        raise malformed(f"{name}: expected text, got {shown(value)}", name, value, position)
    if not value and name != "category":
        raise malformed(f"{name}: must not be empty", name, value, position)
    if len(value) > longest:
        raise malformed(f"{name}: {len(value)} characters, at most {longest} are allowed", name, value, position)
    if not value.isprintable():
        raise malformed(f"{name}: holds a character that cannot be printed, {shown(value)}", name, value, position)
    return value


def _named(name: str, value: Any, position: str | None) -> str:
    """The value of a category that was declared; empty where it is missing."""
    if value is None or _is_nan(value):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float | Decimal) and -(2**64) < value < 2**64:
        # Tables turn whole numbers into these where some are missing.
        value = int(value) if value == int(value) else str(value)
    return "" if isinstance(value, str) and not value else checked_text(name, value, position)


def _measured(name: str, value: Any, position: str | None) -> float | None:
    """The value of a number that was declared; None where it is missing."""
    if value is None or (isinstance(value, str) and not value) or _is_nan(value):
        return None
    return _number(name, value, position)


def _is_nan(value: Any) -> bool:
    """Whether this is a missing number of a table."""
    return math.isnan(value) if isinstance(value, float) else isinstance(value, Decimal) and value.is_nan()


def _amount(value: Any, position: str | None) -> float:
    number = _number("amount", value, position)
    if number < 0:
        raise malformed(f"amount: must not be negative, got {shown(value)}", "amount", value, position)
    return number


def checked_time(
    value: Any, position: str | None = None, time_of: Callable[[datetime], float] = datetime.timestamp
) -> float:
    """A number, or a date as ``time_of`` has it: by default in seconds since 1970; raises as :func:`checked_text`."""
    moment = value
    if isinstance(value, str) and "-" in value[1:] and len(value) <= MAX_TEXT and not value[-1:].isspace():
        try:
            # Text that is no number may be a date; "1e-5" is a number.
            moment = value if _NUMBER.fullmatch(value) else datetime.fromisoformat(value)
        except ValueError:
            raise malformed(
                f"time: expected a number or ISO 8601, got {shown(value)}", "time", value, position
            ) from None
    if isinstance(moment, datetime):
        try:
            return time_of(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
        except (ValueError, OverflowError):  # pandas' "not a time" is a datetime, too
            raise malformed(f"time: expected a moment, got {shown(value)}", "time", value, position) from None
    return _number("time", value, position)


def _number(name: str, value: Any, position: str | None) -> float:
    if value.__class__ is float and -MAX_NUMBER <= value <= MAX_NUMBER:  # most are
        return value
    if value.__class__ is not str and (isinstance(value, bool) or not isinstance(value, Real | Decimal | str)):
        raise malformed(f"{name}: expected a number, got {shown(value)}", name, value, position)
    try:
        # float() also reads "1_000" and " 7 ": those are typing mistakes in a table, not numbers.
        number = float(value) if not isinstance(value, str) or _NUMBER.fullmatch(value) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise malformed(f"{name}: expected a finite number, got {shown(value)}", name, value, position)
    if abs(number) > MAX_NUMBER:
        raise malformed(f"{name}: larger than 2**53, got {shown(value)}", name, value, position)
    return number


def malformed(reason: str, name: str | None, value: Any, position: str | None = None) -> TransactionError:
    """The error of a record that is not taken."""
    return TransactionError(Refusal(reason, name, None if value is None else shown(value), position))


def shown(value: Any) -> str:
    """A value as it may stand in a message or a log: never longer than a line, however large or deep it is."""
    try:
        text = _SHORT.repr(value)
    except ValueError:  # Python will not write out an integer of thousands of digits
        text = f"an enormous {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 2, 60, 60, 40
