"""Sources of a replay: items in the order of their arrival, from a file or from the simulator, and at which pace.

A label, where a source has one, travels beside its transaction for the summary. The engine never sees it.

A replay goes as fast as it can, at so many events a second, or at so many times the stream's own pace.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from replay.sources.csv import chained
from replay.sources.files import Reading, Row, listed, parsed_rows, raw_text, readable
from replay.sources.labels import label_of
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.transaction import Guess, Refusal, Schema, Transaction

_FINGERPRINT_BYTES = 1 << 16
_FINGERPRINT = re.compile(r"file:(\d{1,18}):([0-9a-f]{64})")
# Accounts looked through for names like those that were asked for, and names so looked for.
_REMEMBERED, _LOOKED_FOR = 10_000, 3


class Position(NamedTuple):
    """How far a stream was read: so many records, and a checksum of them that tells whether they are still the same."""

    position: int = 0
    checksum: int = 0

    def check(self, name: str, position: int, checksum: int) -> None:
        """Compare with what is read now.

        Raises
        ------
        StreamCcsdError
            If this is that place of the stream, and what comes before it has changed.
        """
        if position == self.position and checksum != self.checksum:
            raise StreamCcsdError(
                f"{name} has changed within the {position:,} records that were already read: resume with the file as "
                "it was (it may have grown), or start anew with another --state"
            )

    def check_reached(self, name: str, position: int) -> None:
        """As :meth:`check`, at the end of the stream: refused if it ends before this place."""
        if position < self.position:
            raise StreamCcsdError(
                f"{name} is shorter than it was: it has {position:,} records, {self.position:,} were already read. "
                "Resume with the file as it was, or start anew with another --state"
            )


START = Position()


class Item(NamedTuple):
    """One record of a stream: its place in it from 1, its line, the transaction or its refusal, its label."""

    position: int
    line: str
    parsed: Transaction | Refusal
    reached: Position  # from where a resumed replay goes on
    label: str = ""
    row: Row | None = None

    @property
    def raw(self) -> str:
        """The record as it came."""
        return "" if self.row is None else raw_text(self.row)

    @property
    def is_unfinished(self) -> bool:
        """Whether it may be the beginning of a record that is still being written: then it is not counted as read."""
        return self.reached.position < self.position


class Source(Protocol):
    """A stream that can be gone through again from any place."""

    name: str

    def fingerprint(self) -> str:
        """What a resumed replay compares, so as not to go on with another stream."""

    def matches(self, fingerprint: str) -> bool:
        """Whether that is the fingerprint of this stream."""

    def items(self, after: Position = START) -> Iterator[Item]:
        """Items behind the given place, in order. Places count every record, the left out ones too.

        Raises
        ------
        StreamCcsdError
            If what comes before that place is not what it was.
        """

    def share(self) -> float:
        """How much of it is behind us, 0 to 1."""


@dataclass(frozen=True)
class Wanted:
    """Which transactions of a source are replayed; records that cannot be parsed always are, as dead letters."""

    start: float | None = None
    until: float | None = None
    accounts: frozenset[str] | None = None
    without: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for option, value in (("--from", self.start), ("--until", self.until)):
            if value is not None and not math.isfinite(value):
                raise StreamCcsdError(f"{option} must be a finite time of the stream, got {value}")

    def __contains__(self, transaction: Transaction) -> bool:
        return (
            (self.start is None or transaction.time >= self.start)
            and (self.until is None or transaction.time < self.until)
            and (self.accounts is None or transaction.account in self.accounts)
            and transaction.account not in self.without
        )

    def refusal(self, name: str, count: int, accounts: set[str]) -> str:
        """What to say where none of the transactions is chosen; ``accounts`` are some of those that there are."""
        chosen = [f"--from {self.start:g}"] if self.start is not None else []
        chosen += [f"--until {self.until:g}"] if self.until is not None else []
        chosen += [f"--accounts {listed(sorted(self.accounts))}"] if self.accounts is not None else []
        chosen += [f"without {len(self.without):,} known accounts"] if self.without else []
        text = f"none of the {count:,} transactions in {name} is chosen by {' '.join(chosen)}"
        wanted = sorted(self.accounts or ())[:_LOOKED_FOR]
        near = {n for w in wanted if w not in accounts for n in difflib.get_close_matches(w, sorted(accounts), 2)}
        some = sorted(near) or sorted(accounts)[:_LOOKED_FOR]
        return text + (f"; there are accounts like {listed(some)}" if self.accounts is not None else "")


class FileSource:
    """A transaction file in its own order: rows that arrive behind their account's newest are late, as on a stream."""

    def __init__(
        self,
        path: Path,
        schema: Schema | Guess | None = None,
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
        """Of how the file is read and of its beginning up to a line's end; says how long that beginning was.

        What comes behind it is compared record by record, see :class:`Position`; of a Parquet file this is of all of
        it.
        """
        with readable(self.path), self.path.open("rb") as file:
            length = os.fstat(file.fileno()).st_size
            if self._reading.can_grow:
                start = file.read(_FINGERPRINT_BYTES)
                length = start.rfind(b"\n") + 1 or len(start)
        return f"file:{length}:{self._digest(length)}"

    def matches(self, fingerprint: str) -> bool:
        """Whether it is the same file, read in the same way; it may have grown since."""
        match = _FINGERPRINT.fullmatch(fingerprint)
        return match is not None and match[2] == self._digest(int(match[1]))

    def _digest(self, length: int) -> str:
        """Of how it is read and of so many bytes; a file that cannot grow must have no more than them."""
        w = self._wanted
        accounts = None if w.accounts is None else sorted(w.accounts)
        how = (self.schema, self.label, self._reading.encoding, w.start, w.until, accounts, sorted(w.without))
        digest = hashlib.sha256(repr(how).encode("utf-8", "replace"))
        with readable(self.path), self.path.open("rb") as file:
            if self._reading.can_grow:
                digest.update(file.read(length))
            else:
                while block := file.read(_FINGERPRINT_BYTES):
                    digest.update(block)
        return digest.hexdigest()

    def items(self, after: Position = START) -> Iterator[Item]:
        """See :class:`Source`.

        A last line without a line end is read if it is a transaction. If it is not, it is given as it is but not
        counted: a replay that is resumed reads it again, for it may be whole by then.
        """
        position = checksum = transactions = chosen = 0
        known: set[str] = set()
        for row, parsed in parsed_rows(self._reading, self.schema):
            before = checksum
            position += 1
            checksum = chained(checksum, f"{row.line}:{row.left_out}:{row.raw}\n")
            if position <= after.position:
                after.check(str(self.path), position, checksum)
                continue
            is_counted = row.is_ended
            if isinstance(parsed, Transaction):
                is_counted = True
                transactions += 1
                if parsed not in self._wanted:
                    if len(known) < _REMEMBERED:
                        known.add(parsed.account)
                    continue
                chosen += 1
            reached = Position(position, checksum) if is_counted else Position(position - 1, before)
            yield Item(position, row.line, parsed, reached, self._label(row), row)
        after.check_reached(str(self.path), position)
        if transactions and not chosen and after == START:
            raise StreamCcsdError(self._wanted.refusal(str(self.path), transactions, known))

    def share(self) -> float:
        """See :class:`Source`."""
        return self._reading.share

    def _label(self, row: Row) -> str:
        if self.label is None or row.values is None:
            return ""
        if self.label not in row.values and row.is_table:
            names = listed(row.values)
            raise StreamCcsdError(f"{self.path} has no label column {self.label!r}: it has {names}. Use --label.")
        return label_of(row.values.get(self.label, ""))


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

    def items(self, after: Position = START) -> Iterator[Item]:
        """See :class:`Source`; places are those in time order."""
        timed, newest = [], -math.inf
        for item in self._source.items():
            newest = newest if isinstance(item.parsed, Refusal) else item.parsed.time
            timed.append((math.inf if item.is_unfinished else newest, item))
        timed.sort(key=lambda pair: pair[0])
        checksum = 0
        for position, (_, item) in enumerate(timed, start=1):
            before = Position(position - 1, checksum)
            checksum = chained(checksum, f"{item.reached.checksum}\n")
            self._share = position / len(timed)
            after.check(self.name, position, checksum)
            if position > after.position:
                reached = before if item.is_unfinished else Position(position, checksum)
                yield item._replace(position=position, reached=reached)
        after.check_reached(self.name, len(timed))

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

    def items(self, after: Position = START) -> Iterator[Item]:
        """See :class:`Source`."""
        for position in range(after.position + 1, len(self._transactions) + 1):
            transaction = self._transactions[position - 1]
            self._position = position
            label = self._labels.get(transaction.id, "")
            yield Item(position, str(position), transaction, Position(position), label)

    def share(self) -> float:
        """See :class:`Source`."""
        return self._position / max(1, len(self._transactions))


@dataclass
class Pace:
    """``events`` a second, or ``factor`` units of the stream's time a second; neither: no waiting."""

    events: float | None = None
    factor: float | None = None
    clock: Callable[[], float] = time.monotonic
    _begun: float | None = field(default=None, init=False)
    _first: float = field(default=0.0, init=False)
    _count: int = field(default=0, init=False)

    @classmethod
    def parse(cls, text: str) -> Pace:
        """``max``, ``10x`` (units of the stream's time a second) or ``500`` (events a second).

        >>> Pace.parse("10x").factor, Pace.parse("500").events, Pace.parse("max") == Pace()
        (10.0, 500.0, True)
        """
        if text == "max":
            return cls()
        match = re.fullmatch(r"(\d+\.?\d*|\.\d+)(x|/s)?", text.strip())
        if not match or not float(match[1]) > 0:
            raise StreamCcsdError(
                f"the speed {text!r} is none of: max, 10x (times the stream's own pace), 500 (events/s)"
            )
        return cls(factor=float(match[1])) if match[2] == "x" else cls(events=float(match[1]))

    @property
    def waits(self) -> bool:
        """Whether there is a pace to keep."""
        return self.events is not None or self.factor is not None

    def delay(self, event_time: float) -> float:
        """Seconds to wait before the next event, which happened at that time of the stream."""
        if not self.waits:
            return 0.0
        now = self.clock()
        if self._begun is None:
            self._begun, self._first = now, event_time
        self._count += 1
        if self.events is not None:
            due = (self._count - 1) / self.events
        else:
            assert self.factor is not None
            due = (event_time - self._first) / self.factor
        return max(0.0, self._begun + due - now)
