"""The book of verdicts beside a replay's state: entries are added, and nothing is ever changed or deleted.

It is a file of its own, ``replay.db.verdicts``, because a state file has one writer, while any number of people and
programs may add to this one, at any time. Each entry is chained to the one before it by a hash, so that a changed,
missing or inserted one is found; and SQLite itself refuses to change or delete one.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any

from replay import database
from replay.database import DamageError, Kind, explained
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.transaction import Refusal
from stream_ccsd.verdict import Key, Standing, Verdict, standing
from stream_ccsd.writing import WriteError

_TABLES = """
CREATE TABLE verdicts (sequence INTEGER PRIMARY KEY, recorded REAL NOT NULL, transaction_id TEXT NOT NULL,
    account TEXT NOT NULL, verdict TEXT NOT NULL, who TEXT NOT NULL, time REAL NOT NULL, why TEXT NOT NULL,
    source TEXT NOT NULL, hash BLOB NOT NULL);
CREATE INDEX verdicts_by_transaction ON verdicts (account, transaction_id);
CREATE INDEX verdicts_by_id ON verdicts (transaction_id);
CREATE TRIGGER verdicts_are_not_changed BEFORE UPDATE ON verdicts BEGIN
    SELECT RAISE(ABORT, 'a verdict is never changed: record a later one'); END;
CREATE TRIGGER verdicts_are_not_deleted BEFORE DELETE ON verdicts BEGIN
    SELECT RAISE(ABORT, 'a verdict is never deleted: record a later one'); END;
CREATE TRIGGER verdicts_are_not_replaced BEFORE INSERT ON verdicts
    WHEN NEW.sequence IS NOT (SELECT coalesce(max(sequence), 0) + 1 FROM verdicts) BEGIN
    SELECT RAISE(ABORT, 'a verdict comes behind the last one'); END;
"""
BOOK = Kind(
    "book of verdicts",
    0x63637376,  # "ccsv"
    1,
    _TABLES,
    again="try again",
    instead="move it away: a new book begins with the next verdict",
)
_COLUMNS = ("transaction_id", "account", "verdict", "who", "time", "why", "source")
_HASH_BYTES = 32
# Seconds to wait for others that write: each takes some milliseconds, and there may be hundreds.
_PATIENCE = 60.0
_AS_ONE = "(SELECT 1 FROM verdicts WHERE " + " AND ".join(f"{name} = ?" for name in _COLUMNS) + ")"


@dataclass(frozen=True, slots=True)
class Entry:
    """A verdict in the book: its number from 1, when it was recorded (seconds since 1970), and the chain up to it."""

    sequence: int
    recorded: float
    verdict: Verdict
    hash: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; ``recorded`` is a date."""
        moment = datetime.fromtimestamp(self.recorded, UTC).isoformat(timespec="seconds")
        return {"sequence": self.sequence, "recorded": moment, **self.verdict.to_dict()}


class VerdictBook:
    """Verdicts in the order they were recorded. Processes may add to one book at the same time."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self._connection = path, connection

    @classmethod
    def open(cls, path: Path, read_only: bool = False) -> VerdictBook:
        """A book that exists.

        Raises
        ------
        StreamCcsdError
            If there is none, or the file is something else.
        """
        database.check_exists(path, BOOK)
        with explained(path, BOOK):
            connection = database.connect(path, read_only=True, patience=_PATIENCE)
            try:
                database.check_format(path, connection, BOOK)
                if not read_only:
                    connection.close()
                    connection = database.connect(path, patience=_PATIENCE)
            except BaseException:
                connection.close()
                raise
            return cls(path, connection)

    @classmethod
    def create(cls, path: Path) -> VerdictBook:
        """The book of this name, made if there is none."""
        if not path.exists():
            _make(path)
        return cls.open(path)

    def append(self, verdicts: Iterable[Verdict]) -> list[Entry]:
        """Record verdicts, all or none of them; gives the new entries, without those that were recorded before.

        Raises
        ------
        StreamCcsdError
            If one was made by hand and is not sound, or the book cannot be written.
        """
        sound = [_sound(verdict) for verdict in verdicts]
        with explained(self.path, BOOK):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                added = self._add(sound)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        return added

    def _add(self, verdicts: list[Verdict]) -> list[Entry]:
        last = next(self._entries("ORDER BY e.sequence DESC LIMIT 1"), None)
        sequence, previous = (0, "") if last is None else (last.sequence, last.hash)
        added = []
        for verdict in verdicts:
            values = tuple(verdict.to_dict().values())
            ((is_known,),) = self._connection.execute(f"SELECT EXISTS {_AS_ONE}", values)
            if is_known:
                continue
            sequence, recorded = sequence + 1, time.time()
            previous = _chained(previous, sequence, recorded, values)
            row = (sequence, recorded, *values, bytes.fromhex(previous))
            self._connection.execute(f"INSERT INTO verdicts VALUES ({', '.join('?' * len(row))})", row)
            added.append(Entry(sequence, recorded, verdict, previous))
        return added

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """Entries behind a number, in order; each is compared with its hash as it is read."""
        return self._entries("WHERE e.sequence > ? ORDER BY e.sequence", after)

    def of(self, account: str, transaction: str) -> list[Entry]:
        """All that was said of one transaction, in the order of its recording."""
        where = "WHERE e.account = ? AND e.transaction_id = ? ORDER BY e.sequence"
        return [*self._entries(where, account, transaction)]

    def history(self, account: str | None = None, transaction: str | None = None) -> dict[Key, list[Entry]]:
        """Entries by transaction, those first that were judged first: of an account, of an id, or all."""
        given = {"e.account": account, "e.transaction_id": transaction}
        chosen = {column: value for column, value in given.items() if value is not None}
        where = "WHERE " + " AND ".join(f"{column} = ?" for column in chosen) if chosen else ""
        found: dict[Key, list[Entry]] = {}
        for entry in self._entries(f"{where} ORDER BY e.sequence", *chosen.values()):
            found.setdefault(entry.verdict.key, []).append(entry)
        return found

    def standing(self, account: str, transaction: str) -> Standing | None:
        """What counts of one transaction now; None where nothing was said."""
        said = [entry.verdict for entry in self.of(account, transaction)]
        return standing(said) if said else None

    def check(self) -> Entry | None:
        """Verify the whole chain; gives its last entry, whose hash stands for everything before it.

        Entries cut off at the end leave a whole chain behind: who must rule that out notes the last hash elsewhere.

        Raises
        ------
        StreamCcsdError
            If an entry was changed, inserted or taken out, or what protects them.
        """
        with explained(self.path, BOOK):
            self._connection.execute("BEGIN")  # somebody may be writing: all of this is about one moment
            try:
                database.check_format(self.path, self._connection, BOOK)
                database.check_pages(self.path, self._connection, BOOK)
                last = None
                for last in self._entries("ORDER BY e.sequence"):  # noqa: B007  # reading is checking
                    pass
            finally:
                self._connection.execute("ROLLBACK")
        return last

    def close(self) -> None:
        """Close the file."""
        with explained(self.path, BOOK):
            self._connection.close()

    def __enter__(self) -> VerdictBook:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _entries(self, chosen: str, *values: Any) -> Iterator[Entry]:
        columns = ", ".join(f"e.{name}" for name in ("sequence", "recorded", "hash", *_COLUMNS))
        before = "LEFT JOIN verdicts AS p ON p.sequence = e.sequence - 1"
        with explained(self.path, BOOK):
            for previous, sequence, recorded, own, *said in self._connection.execute(
                f"SELECT p.hash, {columns} FROM verdicts AS e {before} {chosen}", values
            ):
                link = previous.hex() if isinstance(previous, bytes) else ""
                found = own.hex() if isinstance(own, bytes) else ""
                if _chained(link, sequence, recorded, said) != found:
                    raise DamageError(self.path, f"verdict {sequence} is not what was recorded, or not in order", BOOK)
                yield Entry(sequence, recorded, Verdict(*said), found)


def book_beside(state: Path) -> Path:
    """Where the verdicts on what is in a state file are."""
    return state.with_name(state.name + ".verdicts")


def open_beside(state: Path) -> VerdictBook | None:
    """The book of a state file, to be read; None where no verdict was ever recorded."""
    path = book_beside(state)
    return VerdictBook.open(path, read_only=True) if path.exists() else None


def _make(path: Path) -> None:
    """A new, empty book; nothing happens if another process was quicker."""
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with explained(path, BOOK), closing(sqlite3.connect(temporary)) as made:
            database.make_tables(made, BOOK)
            # Now, not when the first two writers meet: the change would lock one of them out.
            made.execute("PRAGMA journal_mode = WAL")
        os.link(temporary, path)  # unlike a rename it replaces nothing
    except FileExistsError:
        pass
    except OSError as error:
        raise WriteError(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _sound(verdict: Verdict) -> Verdict:
    parsed = Verdict.parse(verdict.to_dict())
    if isinstance(parsed, Refusal):
        raise StreamCcsdError(f"a verdict cannot be recorded: {parsed.reason}")
    return parsed


def _chained(previous: str, sequence: int, recorded: float, said: Iterable[Any]) -> str:
    """The hash of an entry: of the hash before it, and of the entry as JSON with its names in order."""
    entry = {"sequence": sequence, "recorded": recorded, **dict(zip(_COLUMNS, said, strict=True))}
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"), default=repr)
    return blake2b(bytes.fromhex(previous) + text.encode(), digest_size=_HASH_BYTES).hexdigest()
