"""A replay's memory in one SQLite file: account states, position, alerts, dead letters, scores.

Each batch is one SQLite transaction, so that position, states and outputs can never disagree: whatever stops the
process, the file holds a number of whole batches, and a resumed replay goes on behind the last of them.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from replay.harvest import SCORES, Harvest
from replay.outputs import alert_line
from stream_ccsd.errors import StreamCcsdError

# "ccsd": tells this file from any other SQLite database.
_APPLICATION = 0x63637364
_VERSION = 2

# Account states kept in memory besides the file: at 4 KB each, some 200 MB.
_CACHED_ACCOUNTS = 50_000

_TABLES = """
CREATE TABLE progress (position INTEGER NOT NULL, facts TEXT NOT NULL);
CREATE TABLE states (account TEXT PRIMARY KEY, state BLOB NOT NULL);
CREATE TABLE accounts (account TEXT PRIMARY KEY, transactions INTEGER NOT NULL, last_time REAL NOT NULL,
    maximum REAL NOT NULL, alerts INTEGER NOT NULL);
CREATE TABLE alerts (position INTEGER PRIMARY KEY, id TEXT NOT NULL, account TEXT NOT NULL, time REAL NOT NULL,
    score REAL NOT NULL, tail_rate REAL NOT NULL, headline TEXT NOT NULL, json TEXT NOT NULL);
CREATE INDEX alerts_by_account ON alerts (account, time);
CREATE TABLE dead_letters (position INTEGER PRIMARY KEY, line TEXT NOT NULL, reason TEXT NOT NULL,
    json TEXT NOT NULL);
CREATE TABLE scores (position INTEGER PRIMARY KEY, rows BLOB NOT NULL);
"""

_ADD_TO_ACCOUNT = """
INSERT INTO accounts VALUES (?, ?, ?, ?, ?) ON CONFLICT (account) DO UPDATE SET
    transactions = transactions + excluded.transactions, last_time = max(last_time, excluded.last_time),
    maximum = excluded.maximum, alerts = alerts + excluded.alerts
"""


class StateFile:
    """The file of one replay. ``states`` is what an engine reads and writes; ``record`` completes a batch."""

    def __init__(self, path: Path, connection: sqlite3.Connection, facts: dict[str, Any], position: int) -> None:
        self.path, self.facts, self.position = path, facts, position
        self._connection = connection
        self.states = _States(self)

    @classmethod
    def create(cls, path: Path, facts: dict[str, Any]) -> StateFile:
        """A new file; ``facts`` say what is replayed, and a resumed replay must agree with them."""
        if path.exists() and path.stat().st_size:
            raise StreamCcsdError(
                f"{path} exists: go on with --resume, or name another file with --state, or remove it to start anew"
            )
        # Made under another name: whatever happens, a file of this name is a whole one.
        temporary = path.with_name(path.name + ".new")
        temporary.unlink(missing_ok=True)
        with _explained(path):
            with closing(sqlite3.connect(temporary)) as made:
                made.execute(f"PRAGMA application_id = {_APPLICATION}")
                made.execute(f"PRAGMA user_version = {_VERSION}")
                made.executescript(_TABLES)
                made.execute("INSERT INTO progress VALUES (0, ?)", (json.dumps(facts),))
                made.commit()
            temporary.replace(path)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, read_only: bool = False) -> StateFile:
        """An existing file, checked as a whole: a damaged one is refused and not touched."""
        if not path.is_file():
            raise StreamCcsdError(f"there is no state file {path}")
        with _explained(path):
            # Checked through a read-only connection first: nothing is written to a file that is not ours, or damaged.
            with closing(_connect(path, read_only=True)) as looking:
                _check(path, looking)
            connection = _connect(path, read_only)
            position, facts = connection.execute("SELECT position, facts FROM progress").fetchone()
        return cls(path, connection, json.loads(facts), position)

    def record(self, harvest: Harvest) -> None:
        """Everything of a batch, with the states the engine has written for it, or nothing."""
        execute = self._connection.execute
        with self.batch():
            moved = execute(
                "UPDATE progress SET position = ? WHERE position = ?", (harvest.position, self.position)
            ).rowcount
            if moved != 1:
                raise StreamCcsdError(f"another replay is writing to {self.path}: this one stops, that one goes on")
            self._connection.executemany(
                "INSERT INTO alerts VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (p, a.id, a.account, a.time, a.score, a.tail_rate, a.headline, alert_line(p, a))
                    for p, a in harvest.alerts
                ],
            )
            self._connection.executemany(
                "INSERT INTO dead_letters VALUES (?, ?, ?, ?)",
                [(d.position, d.line, _printable(d.reason), d.to_json()) for d in harvest.dead_letters],
            )
            if harvest.scores.num_rows:
                execute("INSERT INTO scores VALUES (?, ?)", (harvest.position, _packed(harvest.scores)))
                self._connection.executemany(_ADD_TO_ACCOUNT, _by_account(harvest.scores))
            execute("COMMIT")
        self.position = harvest.position

    @contextmanager
    def batch(self) -> Iterator[None]:
        """What happens inside, or nothing of it; states written before it in the same batch belong to it."""
        with _explained(self.path):
            try:
                self.begin()
                yield
            except BaseException:
                self.undo()
                raise

    def begin(self) -> None:
        """Open the transaction of a batch, unless it is open."""
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")

    def undo(self) -> None:
        """Forget what was written since the last batch."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self.states.forget_recent()

    def close(self) -> None:
        """Close the file; it can be copied and resumed elsewhere."""
        with _explained(self.path):
            self._connection.close()

    def query(self, sql: str, parameters: tuple[Any, ...] | dict[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a query."""
        with _explained(self.path):
            return self._connection.execute(sql, parameters).fetchall()

    def scores(self) -> Iterator[pa.RecordBatch]:
        """All scores in order, a batch at a time."""
        with _explained(self.path):
            for (rows,) in self._connection.execute("SELECT rows FROM scores ORDER BY position"):
                yield from _unpacked(rows)

    def lines(self, table: str) -> Iterator[str]:
        """All alerts or dead letters in order, as JSON."""
        with _explained(self.path):
            for (line,) in self._connection.execute(f"SELECT json FROM {table} ORDER BY position"):
                yield line

    def read_state(self, account: str) -> bytes | None:
        """The stored state of an account."""
        with _explained(self.path):
            row = self._connection.execute("SELECT state FROM states WHERE account = ?", (account,)).fetchone()
        return None if row is None else row[0]

    def write_states(self, states: Mapping[str, bytes]) -> None:
        """Store states as part of the batch; ``record`` completes it."""
        with _explained(self.path):
            self.begin()
            self._connection.executemany("INSERT OR REPLACE INTO states VALUES (?, ?)", states.items())


class _States(MutableMapping[str, bytes]):
    """Account states as the engine sees them: the most recent ones in memory, all of them in the file."""

    def __init__(self, file: StateFile) -> None:
        self._file = file
        self._recent: OrderedDict[str, bytes] = OrderedDict()

    def __getitem__(self, account: str) -> bytes:
        found = self._recent.get(account)
        if found is None:
            found = self._file.read_state(account)
            if found is None:
                raise KeyError(account)
            self._keep({account: found})
        return found

    def update(self, states: Mapping[str, bytes]) -> None:  # type: ignore[override]
        """All at once: the engine hands over a whole batch."""
        self._file.write_states(states)
        self._keep(states)

    def __setitem__(self, account: str, state: bytes) -> None:
        self.update({account: state})

    def __delitem__(self, account: str) -> None:
        raise NotImplementedError("accounts are not forgotten")

    def __iter__(self) -> Iterator[str]:
        return iter(row[0] for row in self._file.query("SELECT account FROM states"))

    def __len__(self) -> int:
        return int(self._file.query("SELECT count(*) FROM states")[0][0])

    def forget_recent(self) -> None:
        """What is in memory may not be in the file: read again what is needed."""
        self._recent.clear()

    def _keep(self, states: Mapping[str, bytes]) -> None:
        for account, state in states.items():
            self._recent[account] = state
            self._recent.move_to_end(account)
        while len(self._recent) > _CACHED_ACCOUNTS:
            self._recent.popitem(last=False)


def _connect(path: Path, read_only: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}", uri=True, timeout=5)
    connection.isolation_level = None  # transactions begin and end where this module says
    if not read_only:
        connection.execute("PRAGMA journal_mode = WAL")  # readers may look while a replay runs
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -65536")
    return connection


def _check(path: Path, connection: sqlite3.Connection) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise StreamCcsdError(f"{path} is not a state file of stream-ccsd")
    if version != _VERSION:
        raise StreamCcsdError(f"{path} was written by another version (format {version}, expected {_VERSION})")
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """SQLite's errors in words that say what to do."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error)
        if "full" in text or "disk I/O" in text:
            advice = "the disk is full or failing. What was recorded is whole; make room, then --resume"
        elif "locked" in text:
            advice = "another process is writing to it. Wait for it, or stop it"
        elif "unable to open" in text or "readonly" in text:
            advice = "check that the folder exists and may be written to"
        else:
            advice = "the file is damaged. It was left as it is: put a copy back, or start anew with another --state"
        raise StreamCcsdError(f"{path}: {text}: {advice}") from error


def _by_account(scores: pa.RecordBatch) -> list[tuple[str, int, float, float, int]]:
    """Transactions, newest time, maximum and alerts of each account in a batch."""
    found: dict[str, list[Any]] = {}
    columns = (scores.column(name).to_pylist() for name in ("account", "time", "maximum", "alert"))
    for account, time, maximum, alert in zip(*columns, strict=True):
        row = found.setdefault(account, [0, time, maximum, 0])
        row[0] += 1
        row[1] = max(row[1], time)
        row[2] = maximum
        row[3] += alert
    return [(account, *row) for account, row in found.items()]


def _packed(scores: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCORES, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(scores)
    data = sink.getvalue().to_pybytes()
    return zlib.crc32(data).to_bytes(4, "little") + data


def _unpacked(rows: bytes) -> Iterator[pa.RecordBatch]:
    if zlib.crc32(rows[4:]) != int.from_bytes(rows[:4], "little"):
        raise sqlite3.DatabaseError("a batch of scores does not match its checksum")
    yield from pa.ipc.open_stream(pa.py_buffer(rows[4:]))


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
