"""A replay's memory in one SQLite file: account states, position, alerts, dead letters, scores.

Each batch is one SQLite transaction, so that position, states and outputs can never disagree: whatever stops the
process, the file holds a number of whole batches, and a resumed replay goes on behind the last of them.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from replay import database
from replay.database import COLUMNS, checked_rows, explained, row_checksum
from replay.harvest import Harvest, alert_line
from replay.source import Place
from replay.store import SqliteRecords, packed_scores
from replay.timeline import Timeline
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.records import DeadLetter

# Account states kept in memory besides the file: at 4 KB each, some 200 MB.
_CACHED_ACCOUNTS = 50_000
# Bins of the timeline in the file: more are merged into wider ones.
_MOST_BINS = 4096


class StateFile:
    """The file of one replay: ``states`` for its engine, ``record`` to complete a batch, ``records`` to ask."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        with explained(path):
            ((position, checksum, *stored),) = checked_rows(path, connection, "progress")
            self._identity = _identity(path)
        self.reached = Place(position, checksum)
        *progress, self._facts = stored
        self.facts: dict[str, Any] = json.loads(self._facts)
        self._stored = _Progress(*progress)
        self._pending = replace(self._stored)  # with what the batch at hand changes
        self.states = _States(self)
        self.records = SqliteRecords(path, connection, self.facts)

    @classmethod
    def create(cls, path: Path, facts: dict[str, Any], states: Mapping[str, bytes] | None = None) -> StateFile:
        """A new file; ``facts`` say what is replayed, and a resumed replay must agree with them.

        Accounts that have a past begin with their ``states``.
        """
        database.create(path, facts, states)
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
                    (p, a.id, a.account, a.time, a.score, a.expected_loss, a.tail_rate, a.headline, alert_line(p, a))
                    for p, a in harvest.alerts
                ],
            )
            self._insert("dead_letters", [_letter_row(letter) for letter in harvest.dead_letters])
            if harvest.scores.num_rows:
                self._insert_scores(harvest.scores, harvest.reached.position)
                self._add_to_timeline(harvest.scores)
            self._move(harvest.reached)
            self.check_in_place()
            self._connection.execute("COMMIT")
        self.reached, self._stored = harvest.reached, replace(self._pending)

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
        self._pending.total += sum(row[0] for row in with_checksums)

    def _replace(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        """Rows by their first column, new or in the place of older ones."""
        key = COLUMNS[table].partition(",")[0]
        for row in rows:
            for (old,) in self._connection.execute(f"SELECT checksum FROM {table} WHERE {key} = ?", row[:1]):
                self._pending.total -= old
        self._insert(table, rows)

    def _delete(self, table: str, condition: str) -> None:
        for (old,) in self._connection.execute(f"SELECT checksum FROM {table} WHERE {condition}"):
            self._pending.total -= old
        self._connection.execute(f"DELETE FROM {table} WHERE {condition}")

    def _forget_unfinished(self) -> None:
        """A record that was not counted as read is read again, so what was said of it then goes."""
        self._delete("dead_letters", f"position > {self.position}")

    def _insert_scores(self, scores: pa.RecordBatch, batch: int) -> None:
        """Scores under the batch's own number, and what they add to their accounts."""
        rows, previous = [], {}
        for account, transactions, time, maximum, alerts in _by_account(scores):
            known = self._connection.execute(
                "SELECT transactions, last_time, alerts, newest FROM accounts WHERE account = ?", (account,)
            ).fetchone() or (0, time, 0, None)
            rows.append((account, known[0] + transactions, max(known[1], time), maximum, known[2] + alerts, batch))
            previous[account] = known[3]
        self._replace("accounts", rows)
        self._insert("scores", [(batch, packed_scores(scores, previous))])

    def _add_to_timeline(self, scores: pa.RecordBatch) -> None:
        """Count a batch in its bins; should there be too many by then, all become wider."""
        timeline = Timeline(self.records.calendar, self._pending.bin_width)
        timeline.add(scores)
        for place in list(timeline.bins):
            for known in self._connection.execute(
                f"SELECT {COLUMNS['timeline']} FROM timeline WHERE bin = ?", (place,)
            ):
                timeline.put(place, np.array(known[1:]))
        self._replace("timeline", _timeline_rows(timeline))
        ((bins,),) = self._connection.execute("SELECT count(*) FROM timeline")
        if bins > _MOST_BINS:
            for place, *counts in checked_rows(self.path, self._connection, "timeline"):
                timeline.bins[place] = np.array(counts)
            while len(timeline.bins) > _MOST_BINS:
                timeline.widen()
            self._delete("timeline", "true")
            self._insert("timeline", _timeline_rows(timeline))
            self._pending.bin_width = timeline.width

    def _move(self, reached: Place) -> None:
        """Write how far the stream was read."""
        row = (reached.position, reached.checksum, *astuple(self._pending), self._facts)
        moved = self._connection.execute(
            "UPDATE progress SET checksum = ?, position = ?, records = ?, total = ?, alert_cap = ?, bin_width = ? "
            "WHERE position = ? AND total = ?",
            (row_checksum(*row), *row[:-1], self.position, self._stored.total),
        ).rowcount
        if moved != 1:
            raise StreamCcsdError(f"another replay is writing to {self.path}: this one stops, that one goes on")

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
        self._pending = replace(self._stored)
        self.states.forget_recent()

    def close(self) -> None:
        """Close the file; it can be copied and resumed elsewhere."""
        with explained(self.path):
            self._connection.close()

    def read_state(self, account: str) -> bytes | None:
        """The stored state of an account."""
        with explained(self.path):
            row = self._connection.execute("SELECT state FROM states WHERE account = ?", (account,)).fetchone()
        return None if row is None else row[0]

    def read_alert_cap(self) -> bytes | None:
        """As the batch at hand has left it."""
        return self._pending.alert_cap

    def write_states(self, states: Mapping[str, bytes], alert_cap: bytes | None) -> None:
        """Store states as part of the batch; ``record`` completes it."""
        with explained(self.path):
            self.begin()
            self._replace("states", list(states.items()))
        if alert_cap is not None:
            self._pending.alert_cap = alert_cap


@dataclass
class _Progress:
    """What the file's one row of progress holds besides the place and the facts."""

    total: int  # of all checksums
    alert_cap: bytes | None
    bin_width: int  # of the timeline


class _States:
    """Account states as the engine sees them: the most recent ones in memory, all of them in the file."""

    def __init__(self, file: StateFile) -> None:
        self._file = file
        self._recent: OrderedDict[str, bytes] = OrderedDict()

    def read(self, account: str) -> bytes | None:
        state = self._recent.get(account)
        if state is None:
            state = self._file.read_state(account)
            if state is not None:
                self._keep({account: state})
        return state

    def read_alert_cap(self) -> bytes | None:
        return self._file.read_alert_cap()

    def write(self, states: Mapping[str, bytes], alert_cap: bytes | None) -> None:
        self._file.write_states(states, alert_cap)
        self._keep(states)

    def forget_recent(self) -> None:
        """What is in memory may not be in the file: read again what is needed."""
        self._recent.clear()

    def _keep(self, states: Mapping[str, bytes]) -> None:
        for account, state in states.items():
            self._recent[account] = state
            self._recent.move_to_end(account)
        while len(self._recent) > _CACHED_ACCOUNTS:
            self._recent.popitem(last=False)


def model_beside(path: Path) -> Path:
    """Where the model is that a replay without one has fitted; it is whole before the state file is there."""
    return path.with_name(path.name + ".model")


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file it is that has this name."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _by_account(scores: pa.RecordBatch) -> list[tuple[str, int, float, float, int]]:
    """Transactions, newest time, maximum and alerts of each account in a batch."""
    sums: dict[str, list[Any]] = {}
    columns = (scores.column(name).to_pylist() for name in ("account", "time", "maximum", "alert"))
    for account, time, maximum, alert in zip(*columns, strict=True):
        row = sums.setdefault(account, [0, time, maximum, 0])
        row[0] += 1
        row[1] = max(row[1], time)
        row[2] = maximum
        row[3] += alert
    return [(account, *row) for account, row in sums.items()]


def _timeline_rows(timeline: Timeline) -> list[tuple[Any, ...]]:
    return [(place, *counts.tolist()) for place, counts in timeline.bins.items()]


def _letter_row(letter: DeadLetter) -> tuple[Any, ...]:
    field = None if letter.field is None else _printable(letter.field)
    return letter.position, letter.line, letter.kind.value, field, _printable(letter.reason), letter.to_json()


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
