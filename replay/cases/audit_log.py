"""The audit log beside a replay's state: what people did, in order. Entries are added, none is changed or deleted.

It is a file of its own, ``replay.db.verdicts``, because a state file has one writer, while any number of people and
programs may add to this one, at any time. Verdicts are most of it (:mod:`replay.cases.verdicts`); claims, budgets and
suppressions are the rest (:mod:`replay.cases.cases`). Each entry is chained to the one before it by a hash, whatever
kinds they are, so that a changed, missing or inserted one is found; and SQLite itself refuses to change or delete one.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time as clock
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from replay.state import schema
from replay.state.schema import DamageError, FileKind, explained
from stream_ccsd.files import WriteError

_TABLES = """
CREATE TABLE lines (sequence INTEGER PRIMARY KEY, recorded REAL NOT NULL, kind TEXT NOT NULL, who TEXT NOT NULL,
    account TEXT NOT NULL, transaction_id TEXT NOT NULL, time REAL NOT NULL, body TEXT NOT NULL, hash BLOB NOT NULL);
CREATE INDEX lines_by_transaction ON lines (account, transaction_id);
CREATE INDEX lines_by_id ON lines (transaction_id);
CREATE TRIGGER lines_are_not_changed BEFORE UPDATE ON lines BEGIN
    SELECT RAISE(ABORT, 'a line is never changed: add a later one'); END;
CREATE TRIGGER lines_are_not_deleted BEFORE DELETE ON lines BEGIN
    SELECT RAISE(ABORT, 'a line is never deleted: add a later one'); END;
CREATE TRIGGER lines_are_not_replaced BEFORE INSERT ON lines
    WHEN NEW.sequence IS NOT (SELECT coalesce(max(sequence), 0) + 1 FROM lines) BEGIN
    SELECT RAISE(ABORT, 'a line comes behind the last one'); END;
"""
BOOK = FileKind(
    "book of verdicts",
    0x63637376,  # "ccsv"
    2,
    _TABLES,
    again="try again",
    instead="move it away: a new book begins with the next verdict",
)
Act = Literal["verdict", "claim", "release", "budget", "suppress", "lift", "pin"]
_COLUMNS = ("kind", "who", "account", "transaction_id", "time", "body")
_HASH_BYTES = 32
# Seconds to wait for others that write: each takes some milliseconds, and there may be hundreds.
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Action:
    """What somebody did: to an account, or one of its transactions, at a time of the stream, where it is about one."""

    kind: Act
    who: str
    account: str = ""
    transaction: str = ""
    time: float = 0.0
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def row(self) -> tuple[Any, ...]:
        """As it is stored; equal ones are equal texts."""
        return self.kind, self.who, self.account, self.transaction, self.time, _text(self.body)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry of the audit log: its number from 1, when it was recorded (Unix time), and the chain up to it."""

    sequence: int
    recorded: float
    said: Action
    hash: str

    @property
    def moment(self) -> str:
        """When it was recorded, as a date."""
        return datetime.fromtimestamp(self.recorded, UTC).isoformat(timespec="seconds")


class AuditLog:
    """Entries in the order they were recorded. Several processes may add to one log at the same time."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self._connection = path, connection

    @classmethod
    def open(cls, path: Path, read_only: bool = False) -> Self:
        """An audit log that exists.

        Raises
        ------
        StreamCcsdError
            If there is none, or the file is something else.
        """
        schema.check_exists(path, BOOK)
        with explained(path, BOOK):
            connection = schema.connect(path, read_only=True, patience=_PATIENCE, shared=True)
            try:
                schema.check_format(path, connection, BOOK)
                if not read_only:
                    connection.close()
                    connection = schema.connect(path, patience=_PATIENCE, shared=True)
            except BaseException:
                connection.close()
                raise
            return cls(path, connection)

    @classmethod
    def create(cls, path: Path) -> Self:
        """The audit log of this name, made if there is none."""
        if not path.exists():
            _make(path)
        return cls.open(path)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Nobody else adds to the audit log meanwhile; what is added inside is there as a whole, or not at all."""
        with explained(self.path, BOOK):
            if self._connection.in_transaction:
                yield
                return
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def add(self, what: Iterable[Action]) -> list[LogEntry]:
        """Record what was done, all or none of it."""
        with self.writing():
            last = self.last()
            sequence, previous = (0, "") if last is None else (last.sequence, last.hash)
            added = []
            for action in what:
                sequence, recorded, row = sequence + 1, clock.time(), action.row
                previous = _chained(previous, sequence, recorded, row)
                stored = (sequence, recorded, *row, bytes.fromhex(previous))
                self._connection.execute(f"INSERT INTO lines VALUES ({', '.join('?' * len(stored))})", stored)
                added.append(LogEntry(sequence, recorded, action, previous))
        return added

    def known(self, what: Iterable[Action]) -> set[tuple[Any, ...]]:
        """Those that were recorded before; entries on a transaction are read once, however many are asked for."""
        asked: dict[tuple[str, str], set[tuple[Any, ...]]] = {}
        for action in what:
            asked.setdefault((action.account, action.transaction), set()).add(action.row)
        query = f"SELECT {', '.join(_COLUMNS)} FROM lines WHERE account = ? AND transaction_id = ?"
        found: set[tuple[Any, ...]] = set()
        with explained(self.path, BOOK):
            for key, rows in asked.items():
                found |= rows.intersection(self._connection.execute(query, key))
        return found

    def lines(self, after: int = 0) -> Iterator[LogEntry]:
        """Entries behind a number, in order; each is compared with its hash as it is read."""
        return self._lines("WHERE e.sequence > ? ORDER BY e.sequence", after)

    def newest(self, limit: int, before: int | None = None) -> list[LogEntry]:
        """The last entries, the newest first; or the last before a number."""
        bound = 2**63 - 1 if before is None else before
        return [*self._lines("WHERE e.sequence < ? ORDER BY e.sequence DESC LIMIT ?", bound, limit)]

    def last(self) -> LogEntry | None:
        """The newest entry, whose hash stands for everything before it."""
        return next(iter(self.newest(1)), None)

    def check(self) -> LogEntry | None:
        """Verify the whole chain; gives its last entry.

        Entries cut off at the end leave a whole chain behind: who must rule that out notes the last hash elsewhere.

        Raises
        ------
        StreamCcsdError
            If an entry was changed, inserted or taken out, or what protects them.
        """
        with explained(self.path, BOOK):
            self._connection.execute("BEGIN")  # somebody may be writing: all of this is about one moment
            try:
                schema.check_format(self.path, self._connection, BOOK)
                schema.check_pages(self.path, self._connection, BOOK)
                last = None
                for last in self._lines("ORDER BY e.sequence"):  # noqa: B007  # reading is checking
                    pass
            finally:
                self._connection.execute("ROLLBACK")
        return last

    def close(self) -> None:
        """Close the file."""
        with explained(self.path, BOOK):
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lines(self, chosen: str, *values: Any) -> Iterator[LogEntry]:
        columns = ", ".join(f"e.{name}" for name in ("sequence", "recorded", "hash", *_COLUMNS))
        before = "LEFT JOIN lines AS p ON p.sequence = e.sequence - 1"
        with explained(self.path, BOOK):
            for previous, sequence, recorded, own, *row in self._connection.execute(
                f"SELECT p.hash, {columns} FROM lines AS e {before} {chosen}", values
            ):
                link = previous.hex() if isinstance(previous, bytes) else ""
                found = own.hex() if isinstance(own, bytes) else ""
                if _chained(link, sequence, recorded, row) != found:
                    raise DamageError(self.path, f"line {sequence} is not what was recorded, or not in order", BOOK)
                kind, who, account, transaction, time, body = row
                action = Action(kind, who, account, transaction, time, json.loads(body))
                yield LogEntry(sequence, recorded, action, found)


def audit_log_beside(state: Path) -> Path:
    """Where the verdicts on what is in a state file are."""
    return state.with_name(state.name + ".verdicts")


def _make(path: Path) -> None:
    """A new, empty audit log; nothing happens if another process was quicker."""
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with explained(path, BOOK), closing(sqlite3.connect(temporary)) as made:
            schema.make_tables(made, BOOK)
            # Now, not when the first two writers meet: the change would lock one of them out.
            made.execute("PRAGMA journal_mode = WAL")
        os.link(temporary, path)  # unlike a rename it replaces nothing
    except FileExistsError:
        pass
    except OSError as error:
        raise WriteError(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _text(body: dict[str, Any]) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


def _chained(previous: str, sequence: int, recorded: float, row: Iterable[Any]) -> str:
    """The hash of an entry: of the hash before it, and of the entry as JSON with its names in order."""
    line = {"sequence": sequence, "recorded": recorded, **dict(zip(_COLUMNS, row, strict=True))}
    text = json.dumps(line, sort_keys=True, separators=(",", ":"), default=repr)
    return blake2b(bytes.fromhex(previous) + text.encode(), digest_size=_HASH_BYTES).hexdigest()
