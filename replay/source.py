"""What is replayed: items in the order of their arrival, from a file or from the simulator.

A label, where a source has one, travels beside its transaction for the summary. The engine never sees it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from replay.files import Reading, Row, parsed_rows, raw_text
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.transaction import Refusal, Schema, Transaction

_FINGERPRINT_BYTES = 1 << 16
NEGATIVE = frozenset({"0", "0.0", "false", "f", "no", "n"})
POSITIVE = frozenset({"1", "1.0", "true", "t", "yes", "y"})
"""What a label column may say, in small letters."""

_NO_LABEL = frozenset({"", "none", "null", "nan"})


@dataclass(frozen=True, slots=True)
class Item:
    """One record of a stream: its place in it from 1, its line, the transaction or its refusal, its label."""

    position: int
    line: str
    found: Transaction | Refusal
    label: str = ""
    row: Row | None = None

    @property
    def raw(self) -> str:
        """The record as it came."""
        return "" if self.row is None else raw_text(self.row)


class Source(Protocol):
    """A stream that can be gone through again from any place."""

    name: str

    def fingerprint(self) -> str:
        """What a resumed replay compares, so as not to go on with another stream."""

    def matches(self, fingerprint: str) -> bool:
        """Whether that is the fingerprint of this stream."""

    def items(self, after: int = 0) -> Iterator[Item]:
        """Items behind the given place, in order. Places count every record, the left out ones too."""

    def share(self) -> float:
        """How much of it is behind us, 0 to 1."""


@dataclass(frozen=True)
class Wanted:
    """Which transactions of a source are replayed; records that cannot be parsed always are, as dead letters."""

    start: float | None = None
    until: float | None = None
    accounts: frozenset[str] | None = None
    without: frozenset[str] = frozenset()

    def __contains__(self, transaction: Transaction) -> bool:
        return (
            (self.start is None or transaction.time >= self.start)
            and (self.until is None or transaction.time < self.until)
            and (self.accounts is None or transaction.account in self.accounts)
            and transaction.account not in self.without
        )


class FileSource:
    """A transaction file in its own order: rows that arrive behind their account's newest are late, as on a stream."""

    def __init__(
        self,
        path: Path,
        schema: Schema | None = None,
        *,
        label: str | None = None,
        encoding: str | None = None,
        wanted: Wanted | None = None,
    ) -> None:
        self.path, self.schema, self.label = path, schema, label
        self.name = path.name
        self._wanted = wanted or Wanted()
        self._reading = Reading(path, encoding)

    def fingerprint(self) -> str:
        """Of how the file is read and of its beginning up to a line's end; says how long that beginning was."""
        with self.path.open("rb") as file:
            start = file.read(_FINGERPRINT_BYTES)
        length = start.rfind(b"\n") + 1 or len(start)
        return f"{length}:{self._digest(start[:length])}"

    def matches(self, fingerprint: str) -> bool:
        """Whether it is the same file, read in the same way; it may have grown since.

        A line that was cut off at the end of the shorter file was a dead letter, and is not read again.
        """
        length, _, digest = fingerprint.partition(":")
        with self.path.open("rb") as file:
            return digest == self._digest(file.read(int(length)))

    def _digest(self, start: bytes) -> str:
        w = self._wanted
        accounts = None if w.accounts is None else sorted(w.accounts)
        how = (self.schema, self.label, self._reading.encoding, w.start, w.until, accounts, sorted(w.without))
        return hashlib.sha256(repr(how).encode("utf-8", "replace") + start).hexdigest()

    def items(self, after: int = 0) -> Iterator[Item]:
        """See :class:`Source`."""
        for position, (row, found) in enumerate(parsed_rows(self._reading, self.schema), start=1):
            if position <= after or (isinstance(found, Transaction) and found not in self._wanted):
                continue
            yield Item(position, row.line, found, self._label(row), row)

    def share(self) -> float:
        """See :class:`Source`."""
        return self._reading.share

    def _label(self, row: Row) -> str:
        if self.label is None or row.values is None:
            return ""
        if self.label not in row.values and row.is_table:
            names = ", ".join(row.values)
            raise StreamCcsdError(f"{self.path} has no label column {self.label!r}: it has {names}. Use --label.")
        text = str(row.values.get(self.label, "")).strip()
        if text.casefold() in NEGATIVE | _NO_LABEL:
            return ""
        return "fraud" if text.casefold() in POSITIVE else text


class SortedSource:
    """A source in time order, records of one time in their own order; it is held in memory as a whole.

    Records that are no transactions stay behind their predecessor.
    """

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self._source = source
        self._share = 0.0

    def fingerprint(self) -> str:
        """Of the source, and that it is sorted."""
        return "sorted:" + self._source.fingerprint()

    def matches(self, fingerprint: str) -> bool:
        """See :class:`Source`."""
        kind, _, rest = fingerprint.partition(":")
        return kind == "sorted" and self._source.matches(rest)

    def items(self, after: int = 0) -> Iterator[Item]:
        """See :class:`Source`; places are those in time order."""
        timed, newest = [], -math.inf
        for item in self._source.items():
            newest = newest if isinstance(item.found, Refusal) else item.found.time
            timed.append((newest, item))
        timed.sort(key=lambda pair: pair[0])
        for position, (_, item) in enumerate(timed, start=1):
            self._share = position / len(timed)
            if position > after:
                yield replace(item, position=position)

    def share(self) -> float:
        """See :class:`Source`."""
        return self._share


class ListSource:
    """Transactions in memory, with labels by transaction id."""

    def __init__(self, name: str, transactions: Sequence[Transaction], labels: dict[str, str] | None = None) -> None:
        self.name = name
        self._transactions, self._labels = transactions, labels or {}
        self._position = 0

    def fingerprint(self) -> str:
        """Of every transaction."""
        return hashlib.sha256(repr((self.name, self._transactions)).encode("utf-8", "replace")).hexdigest()

    def matches(self, fingerprint: str) -> bool:
        """See :class:`Source`."""
        return fingerprint == self.fingerprint()

    def items(self, after: int = 0) -> Iterator[Item]:
        """See :class:`Source`."""
        for position in range(after + 1, len(self._transactions) + 1):
            transaction = self._transactions[position - 1]
            self._position = position
            yield Item(position, str(position), transaction, self._labels.get(transaction.id, ""))

    def share(self) -> float:
        """See :class:`Source`."""
        return self._position / max(1, len(self._transactions))
