"""What is replayed: items in the order of their arrival, from a file or from the simulator.

A label, where a source has one, travels beside its transaction for the summary. The engine never sees it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from replay.files import Reading, Row, parsed_rows, raw_text
from stream_ccsd.transaction import Refusal, Schema, Transaction

_FINGERPRINT_BYTES = 1 << 16
_NEGATIVE = {"", "0", "0.0", "false", "False", "no", "None"}


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
        """Of the file's beginning and of how it is read; a file that has grown since is the same one."""
        digest = hashlib.sha256(repr((self.schema, self._wanted, self._reading.encoding)).encode())
        with self.path.open("rb") as file:
            start = file.read(_FINGERPRINT_BYTES)
        # Of a file shorter than that, all but the last line, which may have been cut off.
        digest.update(start if len(start) == _FINGERPRINT_BYTES else start[: start.find(b"\n") + 1])
        return digest.hexdigest()

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
        text = str(row.values.get(self.label, ""))
        return "" if text in _NEGATIVE else ("fraud" if text in ("1", "1.0", "true", "True", "yes") else text)


class ListSource:
    """Transactions in memory, with labels by transaction id."""

    def __init__(self, name: str, transactions: Sequence[Transaction], labels: dict[str, str] | None = None) -> None:
        self.name = name
        self._transactions, self._labels = transactions, labels or {}
        self._position = 0

    def fingerprint(self) -> str:
        """Of every transaction."""
        return hashlib.sha256(repr((self.name, self._transactions)).encode("utf-8", "replace")).hexdigest()

    def items(self, after: int = 0) -> Iterator[Item]:
        """See :class:`Source`."""
        for position in range(after + 1, len(self._transactions) + 1):
            transaction = self._transactions[position - 1]
            self._position = position
            yield Item(position, str(position), transaction, self._labels.get(transaction.id, ""))

    def share(self) -> float:
        """See :class:`Source`."""
        return self._position / max(1, len(self._transactions))
