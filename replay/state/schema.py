"""The SQLite file under a replay's state: how it is made, opened and checked, and its errors in words.

Every row carries a checksum, and the one row of ``progress`` their sum: a byte that changed, a row that is missing and
pages of an older file are all found before anything is read from it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import WriteError, is_special, replacing

_TABLES = """
CREATE TABLE progress (checksum INTEGER NOT NULL, position INTEGER NOT NULL, records INTEGER NOT NULL,
    total INTEGER NOT NULL, alert_cap BLOB, bin_width INTEGER NOT NULL, facts TEXT NOT NULL,
    notes TEXT NOT NULL);
CREATE TABLE states (account TEXT PRIMARY KEY, checksum INTEGER NOT NULL, state BLOB NOT NULL);
CREATE TABLE accounts (account TEXT PRIMARY KEY, transactions INTEGER NOT NULL, last_time REAL NOT NULL,
    maximum REAL NOT NULL, alerts INTEGER NOT NULL, newest INTEGER NOT NULL, checksum INTEGER NOT NULL);
CREATE INDEX accounts_by_maximum ON accounts (maximum DESC, account);
CREATE TABLE alerts (position INTEGER PRIMARY KEY, id TEXT NOT NULL, account TEXT NOT NULL, time REAL NOT NULL,
    score REAL NOT NULL, expected_loss REAL NOT NULL, tail_rate REAL NOT NULL, headline TEXT NOT NULL,
    json TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE INDEX alerts_by_account ON alerts (account, time);
CREATE INDEX alerts_by_id ON alerts (id);
CREATE INDEX alerts_by_time ON alerts (time);
CREATE INDEX alerts_by_score ON alerts (score DESC);
CREATE INDEX alerts_by_loss ON alerts (expected_loss DESC);
CREATE TABLE dead_letters (position INTEGER PRIMARY KEY, line TEXT NOT NULL, kind TEXT NOT NULL, field TEXT,
    reason TEXT NOT NULL, json TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE INDEX dead_letters_by_kind ON dead_letters (kind, field);
CREATE TABLE scores (position INTEGER PRIMARY KEY, rows BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE timeline (bin INTEGER PRIMARY KEY, transactions INTEGER NOT NULL, late INTEGER NOT NULL,
    alerts INTEGER NOT NULL, labelled INTEGER NOT NULL, checksum INTEGER NOT NULL);
"""

COLUMNS = {
    "progress": "position, records, total, alert_cap, bin_width, facts, notes",
    "states": "account, state",
    "accounts": "account, transactions, last_time, maximum, alerts, newest",
    "alerts": "position, id, account, time, score, expected_loss, tail_rate, headline, json",
    "dead_letters": "position, line, kind, field, reason, json",
    "scores": "position, rows",
    "timeline": "bin, transactions, late, alerts, labelled",
}
"""What is in each table, besides the checksum of its rows.

``scores`` holds a batch a row, and ``accounts.newest`` the batch with the account's newest scores, from where each
leads to the one before (:mod:`replay.state.records`). ``timeline`` counts transactions in bins of
``progress.bin_width``.
``progress.facts`` say what it is about, ``progress.notes`` how it goes, for whoever looks.
"""


class FileKind(NamedTuple):
    """A kind of file of ours: what it is called and made of, and what to do when it fails."""

    name: str
    application: int  # tells it from any other SQLite database
    version: int
    tables: str
    again: str = "--resume"
    instead: str = "start anew with another --state"


STATE = FileKind("state file", 0x63637364, 5, _TABLES)  # "ccsd"

_COMPANIONS = ("-wal", "-shm", "-journal")
_DISK = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_IN_USE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_FORBIDDEN = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)


class DamageError(StreamCcsdError):
    """A file does not hold what was written to it."""

    def __init__(self, path: Path, what: str, kind: FileKind = STATE) -> None:
        super().__init__(
            f"{path}: {what}: the file is damaged. It was left as it is: put a copy back, or {kind.instead}"
        )


def create(path: Path, facts: dict[str, Any], states: Mapping[str, bytes] | None = None) -> None:
    """Make a new file, with states of accounts where these have a past.

    Raises
    ------
    StreamCcsdError
        If there is one already, or it cannot be written.
    """
    target, left = check_free(path)
    try:
        for old in left:
            old.unlink()
    except OSError as error:
        raise WriteError(path, error) from error
    # Made under another name: whatever happens, a file of this name is a whole one.
    with replacing(target) as temporary, explained(path), closing(sqlite3.connect(temporary)) as made:
        made.execute("PRAGMA journal_mode = MEMORY")
        make_tables(made, STATE)
        text = json.dumps(facts)
        rows = [(account, row_checksum(account, state), state) for account, state in (states or {}).items()]
        made.executemany("INSERT INTO states VALUES (?, ?, ?)", rows)
        first = (0, 0, sum(row[1] for row in rows), None, 1, text, "{}")
        made.execute("INSERT INTO progress VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (row_checksum(*first), *first))
        made.commit()


def make_tables(made: sqlite3.Connection, kind: FileKind) -> None:
    """The tables of a new file, and what tells it from others."""
    made.execute(f"PRAGMA application_id = {kind.application}")
    made.execute(f"PRAGMA user_version = {kind.version}")
    made.executescript(kind.tables)


def check_free(path: Path) -> tuple[Path, list[Path]]:
    """Where a new file would be made, and what a killed replay has left there, which is in the way.

    Raises
    ------
    StreamCcsdError
        If there is a file already.
    """
    target = _target(path)
    if is_special(target) or target.is_dir():
        raise StreamCcsdError(f"{path} is a folder, a pipe or a device: name a file with --state")
    # What a killed replay leaves beside its file belongs to that file alone: SQLite would take it into a new one.
    unfinished = target.with_name(target.name + ".new")
    beside = [p.with_name(p.name + end) for p in (target, unfinished) for end in _COMPANIONS]
    left = [p for p in (*beside, unfinished) if os.path.lexists(p)]
    if target.exists() and target.stat().st_size:
        files = ", ".join(p.name for p in (target, *left))
        raise StreamCcsdError(
            f"{path} exists: go on with --resume, or name another file with --state, or remove it to start anew "
            f"(all of it: {files})"
        )
    return target, left


def connect(path: Path, read_only: bool = False, patience: float = 5.0, shared: bool = False) -> sqlite3.Connection:
    """A connection to a file that exists; so many seconds it waits for others that write.

    Threads may use a ``shared`` one if they take turns.
    """
    place = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
    connection = sqlite3.connect(place, uri=True, timeout=patience, check_same_thread=not shared)
    connection.isolation_level = None  # transactions begin and end where the state says
    if not read_only:
        connection.execute("PRAGMA journal_mode = WAL")  # readers may look while a replay runs
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -65536")
        # A batch is some 2,300 pages, most of them those of the batch before: up to 32 MB wait beside the file, and
        # are copied into it once for several batches.
        connection.execute("PRAGMA wal_autocheckpoint = 8000")
    return connection


def stamps(path: Path) -> tuple[tuple[int, int], ...]:
    """What changes when somebody writes to a file of ours: cheaper to look at than the file."""

    def stamp(name: Path) -> tuple[int, int]:
        try:
            status = name.stat()
        except OSError:
            return 0, 0
        return status.st_size, status.st_mtime_ns

    return stamp(path), stamp(path.with_name(path.name + "-wal"))


def identity(path: Path) -> tuple[int, int] | None:
    """Which file it is that has this name."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def check_exists(path: Path, kind: FileKind = STATE) -> None:
    """Refuse a name that leads to no file."""
    if not _target(path).is_file():
        raise StreamCcsdError(f"there is no {kind.name} {path}")


def check(path: Path) -> None:
    """Look through the whole file, without writing to it.

    Raises
    ------
    StreamCcsdError
        If it is not a state file, of another version, or damaged.
    """
    with explained(path), closing(connect(path, read_only=True)) as connection:
        connection.execute("BEGIN")  # somebody may be writing: all of this is about one moment
        check_format(path, connection, STATE)
        check_pages(path, connection, STATE)
        progress = list(checked_rows(path, connection, "progress"))
        tables = [name for name in COLUMNS if name != "progress"]
        total = sum(_total(path, connection, table) for table in tables)
        if len(progress) != 1 or progress[0][2] != total:
            raise DamageError(path, "rows are missing, or from another time")


def check_format(path: Path, connection: sqlite3.Connection, kind: FileKind) -> None:
    """Whether it is a file of this kind, of this version, with its tables; none of their rows is read.

    Raises
    ------
    StreamCcsdError
        If it is not.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != kind.application:
        raise StreamCcsdError(f"{path} is not a {kind.name} of stream-ccsd")
    if version != kind.version:
        raise StreamCcsdError(
            f"{path} was written by another version (format {version}, expected {kind.version}): {kind.instead}, or go "
            "on with that version"
        )
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(kind.tables)
        if _definitions(fresh) != _definitions(connection):
            raise DamageError(path, f"its tables are not those of a {kind.name}", kind)


def check_pages(path: Path, connection: sqlite3.Connection, kind: FileKind) -> None:
    """Have SQLite look through the whole file."""
    (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise DamageError(path, found, kind)


def checked_rows(
    path: Path,
    connection: sqlite3.Connection,
    table: str,
    chosen: str = "ORDER BY rowid",
    parameters: Mapping[str, Any] | None = None,
) -> Iterator[tuple[Any, ...]]:
    """Rows of a table, all in order or those that are ``chosen``, each compared with its checksum."""
    query = f"SELECT checksum, {COLUMNS[table]} FROM {table} {chosen}"
    for checksum, *row in connection.execute(query, parameters or {}):
        if row_checksum(*row) != checksum:
            raise DamageError(path, f"a row of {table} does not match its checksum")
        yield tuple(row)


def row_checksum(*values: Any) -> int:
    """Of the values of a row, types and all."""
    data = [value if isinstance(value, bytes) else repr(value).encode() for value in values]
    return zlib.crc32(b"".join([b"%d:%b" % (len(part), part) for part in data]))


def _total(path: Path, connection: sqlite3.Connection, table: str) -> int:
    return sum(row_checksum(*row) for row in checked_rows(path, connection, table))


def _definitions(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()


def _target(path: Path) -> Path:
    """Where a name leads; SQLite keeps its other files beside that."""
    try:
        target = path.resolve()
        target.exists()
    except (OSError, RuntimeError, ValueError) as error:  # no permission, a circle of links, a zero byte
        raise StreamCcsdError(f"{str(path)!r} cannot be a state file: {error}") from error
    return target


@contextmanager
def explained(path: Path, what: FileKind = STATE) -> Iterator[None]:
    """SQLite's errors in words that say what to do."""
    try:
        yield
    except (sqlite3.Error, UnicodeError) as error:
        # The lowest byte is the kind of error, the others say more of it. Without a code it is Python that cannot read
        # what SQLite hands it.
        kind = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if kind == sqlite3.SQLITE_NOTADB:
            raise StreamCcsdError(f"{path} is not a {what.name} of stream-ccsd") from error
        if kind in _DISK:
            advice = f"the disk is full or failing. What was recorded is whole; make room, then {what.again}"
        elif kind in _IN_USE:
            advice = "another process is writing to it. Wait for it, or stop it"
        elif kind in _FORBIDDEN:
            advice = "check that the folder exists and may be written to"
        else:
            raise DamageError(path, str(error), what) from error
        raise StreamCcsdError(f"{path}: {error}: {advice}") from error
