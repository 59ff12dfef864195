"""A replay's memory in one SQLite file: account states, position, alerts, dead letters, scores.

Each batch is one SQLite transaction, so that position, states and outputs can never disagree: whatever stops the
process, the file holds a number of whole batches, and a resumed replay goes on behind the last of them.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from replay import database
from replay.database import COLUMNS, checked_rows, explained, row_checksum
from replay.harvest import Harvest, alert_line
from replay.source import Place
from stream_ccsd.errors import StreamCcsdError

# Account states kept in memory besides the file: at 4 KB each, some 200 MB.
_CACHED_ACCOUNTS = 50_000


class StateFile:
    """The file of one replay. ``states`` is what an engine reads and writes; ``record`` completes a batch."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        with explained(path):
            ((position, records, self._total, facts),) = checked_rows(path, connection, "progress")
            self._identity = _identity(path)
        self.reached = Place(position, records)
        self.facts: dict[str, Any] = json.loads(facts)
        self._facts = facts  # as it is stored
        self._added = 0  # to the sum of all checksums, by the batch at hand
        self.states = _States(self)

    @classmethod
    def create(cls, path: Path, facts: dict[str, Any]) -> StateFile:
        """A new file; ``facts`` say what is replayed, and a resumed replay must agree with them."""
        database.create(path, facts)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, read_only: bool = False) -> StateFile:
        """An existing file, checked as a whole: a damaged one is refused and not touched."""
        database.check_exists(path)
        database.check(path)
        with explained(path):
            return cls(path, database.connect(path, read_only))

    @property
    def position(self) -> int:
        """Records that are behind us."""
        return self.reached.position

    def record(self, harvest: Harvest) -> None:
        """Everything of a batch, with the states the engine has written for it, or nothing."""
        with self.batch():
            self._forget_unfinished()
            self._insert(
                "alerts",
                [
                    (p, a.id, a.account, a.time, a.score, a.tail_rate, a.headline, alert_line(p, a))
                    for p, a in harvest.alerts
                ],
            )
            self._insert(
                "dead_letters",
                [(d.position, d.line, _printable(d.reason), d.to_json()) for d in harvest.dead_letters],
            )
            if harvest.scores.num_rows:
                self._insert("scores", [(harvest.reached.position, _packed(harvest.scores))])
                self._add_to_accounts(harvest.scores)
            total = self._move(harvest.reached)
            self.check_in_place()
            self._connection.execute("COMMIT")
        self.reached, self._total, self._added = harvest.reached, total, 0

    def check_in_place(self) -> None:
        """Refuse to go on when the file is no longer there: what is written then is lost when the process ends.

        Raises
        ------
        StreamCcsdError
            If it was deleted, or another one put in its place.
        """
        if _identity(self.path) != self._identity:
            raise StreamCcsdError(
                f"{self.path} was deleted or replaced while a replay was writing to it: what it held is lost. Start "
                "anew with another --state, or put a copy back and --resume"
            )

    def _insert(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        """New rows, with their checksums."""
        columns = COLUMNS[table]
        marks = ", ".join("?" * (columns.count(",") + 2))
        with_checksums = [(row_checksum(*row), *row) for row in rows]
        self._connection.executemany(
            f"INSERT OR REPLACE INTO {table} (checksum, {columns}) VALUES ({marks})", with_checksums
        )
        self._added += sum(row[0] for row in with_checksums)

    def _replace(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        """Rows of accounts, new or in the place of older ones."""
        for row in rows:
            for (old,) in self._connection.execute(f"SELECT checksum FROM {table} WHERE account = ?", row[:1]):
                self._added -= old
        self._insert(table, rows)

    def _forget_unfinished(self) -> None:
        """A record that was not counted as read is read again, so what was said of it then goes."""
        behind = (self.position,)
        for (old,) in self._connection.execute("SELECT checksum FROM dead_letters WHERE position > ?", behind):
            self._added -= old
        self._connection.execute("DELETE FROM dead_letters WHERE position > ?", behind)

    def _add_to_accounts(self, scores: pa.RecordBatch) -> None:
        rows = []
        for account, transactions, time, maximum, alerts in _by_account(scores):
            known = self._connection.execute(
                "SELECT transactions, last_time, alerts FROM accounts WHERE account = ?", (account,)
            ).fetchone() or (0, time, 0)
            rows.append((account, known[0] + transactions, max(known[1], time), maximum, known[2] + alerts))
        self._replace("accounts", rows)

    def _move(self, reached: Place) -> int:
        """Write how far the stream was read; returns the sum of all checksums."""
        total = self._total + self._added
        row = (reached.position, reached.checksum, total, self._facts)
        moved = self._connection.execute(
            "UPDATE progress SET checksum = ?, position = ?, records = ?, total = ? WHERE position = ? AND total = ?",
            (row_checksum(*row), *row[:3], self.position, self._total),
        ).rowcount
        if moved != 1:
            raise StreamCcsdError(f"another replay is writing to {self.path}: this one stops, that one goes on")
        return total

    @contextmanager
    def batch(self) -> Iterator[None]:
        """What happens inside, or nothing of it; states written before it in the same batch belong to it."""
        with explained(self.path):
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
        self._added = 0
        self.states.forget_recent()

    def close(self) -> None:
        """Close the file; it can be copied and resumed elsewhere."""
        with explained(self.path):
            self._connection.close()

    def query(self, sql: str, parameters: tuple[Any, ...] | dict[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a query."""
        with explained(self.path):
            return self._connection.execute(sql, parameters).fetchall()

    def scores(self) -> Iterator[pa.RecordBatch]:
        """All scores in order, a batch at a time."""
        with explained(self.path):
            for _, rows in checked_rows(self.path, self._connection, "scores"):
                yield from pa.ipc.open_stream(pa.py_buffer(rows))

    def lines(self, table: str) -> Iterator[str]:
        """All alerts or dead letters in order, as JSON."""
        with explained(self.path):
            for row in checked_rows(self.path, self._connection, table):
                yield row[-1]

    def read_state(self, account: str) -> bytes | None:
        """The stored state of an account."""
        with explained(self.path):
            row = self._connection.execute("SELECT state FROM states WHERE account = ?", (account,)).fetchone()
        return None if row is None else row[0]

    def write_states(self, states: Mapping[str, bytes]) -> None:
        """Store states as part of the batch; ``record`` completes it."""
        with explained(self.path):
            self.begin()
            self._replace("states", list(states.items()))


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


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file it is that has this name."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


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
    with pa.ipc.new_stream(sink, scores.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(scores)
    return sink.getvalue().to_pybytes()


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
