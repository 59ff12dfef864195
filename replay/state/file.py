"""The state file of a replay, one SQLite file: account states, position, alerts, dead letters, scores.

Each batch is one SQLite transaction, so that position, states and outputs can never disagree: whatever stops the
process, the file holds a number of whole batches, and a resumed replay goes on behind the last of them.

:class:`RowCache` holds rows that are written again and again: states, accounts, bins.

Whoever replaces a row needs the old one's checksum, to take it out of the file's sum, and mostly its values, to add to
them. Asking SQLite for one row at a time takes longer than writing does. So the newest rows stay in memory, because
nobody else writes to the file (a replay that finds out otherwise stops). Other rows are read many at once.
"""

from __future__ import annotations

import json
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from replay.sources.source import Position
from replay.state import schema
from replay.state.batch_output import BatchOutput, alert_line
from replay.state.records import SqliteRecords, packed_scores
from replay.state.schema import COLUMNS, checked_rows, explained, row_checksum
from replay.state.statistics import Timeline
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.records import DeadLetter

Row = tuple[Any, ...]

# Rows read by one question: SQLite takes no more than 999 parameters where it is old.
_TOGETHER = 500


class RowCache:
    """Rows of one table by their first column; ``most`` of them in memory, all of them in the file."""

    def __init__(self, path: Path, connection: sqlite3.Connection, table: str, most: int) -> None:
        self._path, self._connection, self._most = path, connection, most
        key, *others = names = COLUMNS[table].split(", ")
        marks = ", ".join("?" * (1 + len(names)))
        changed = ", ".join(f"{name} = excluded.{name}" for name in ("checksum", *others))
        # In its place, where a REPLACE would take the row and its entries in all indices away and put in new ones.
        self._write = (
            f"INSERT INTO {table} (checksum, {COLUMNS[table]}) VALUES ({marks}) "
            f"ON CONFLICT ({key}) DO UPDATE SET {changed}"
        )
        self._read = f"SELECT checksum, {COLUMNS[table]} FROM {table} WHERE {key}"
        self._remove = f"DELETE FROM {table} WHERE {key} = ?"
        self._rows: OrderedDict[Any, Row | None] = OrderedDict()  # with their checksums; None: there is no such row

    def get(self, key: Any) -> Row | None:
        """The row of this key; None if there is none."""
        found = self._rows.get(key) or self._found([key])[key]
        return None if found is None else found[1:]

    def get_all(self, keys: Iterable[Any]) -> dict[Any, Row | None]:
        """The rows of these keys."""
        return {key: None if row is None else row[1:] for key, row in self._found(keys).items()}

    def put(self, rows: Iterable[Row]) -> int:
        """Write rows, each key once; returns what that adds to the sum of all checksums."""
        new = {row[0]: (row_checksum(*row), *row) for row in rows}
        added = sum(row[0] for row in new.values()) - _sum(self._found(new))
        self._connection.executemany(self._write, new.values())
        self._keep(new)
        return added

    def remove(self, keys: Iterable[Any]) -> int:
        """Take rows out; returns what that adds to the sum of all checksums."""
        old = self._found(keys)
        self._connection.executemany(self._remove, [(key,) for key in old])
        for key in old:
            self._rows.pop(key, None)
        return -_sum(old)

    def forget(self) -> None:
        """What is in memory may not be in the file: read again what is needed."""
        self._rows.clear()

    def _found(self, keys: Iterable[Any]) -> dict[Any, Row | None]:
        """Rows with their checksums."""
        known = self._rows
        found = {key: known.get(key) for key in keys}
        unknown = [key for key, row in found.items() if row is None and key not in known]
        for first in range(0, len(unknown), _TOGETHER):
            some = unknown[first : first + _TOGETHER]
            with explained(self._path):
                read = self._connection.execute(f"{self._read} IN ({', '.join('?' * len(some))})", some).fetchall()
            found.update((row[1], row) for row in read)
        self._keep({key: found[key] for key in unknown})
        return found

    def _keep(self, rows: Mapping[Any, Row | None]) -> None:
        for key, row in rows.items():
            self._rows[key] = row
            self._rows.move_to_end(key)
        while len(self._rows) > self._most:
            self._rows.popitem(last=False)


def _sum(rows: Mapping[Any, Row | None]) -> int:
    return sum(row[0] for row in rows.values() if row is not None)


# Account states kept in memory besides the file: at 4 KB each, some 200 MB.
_CACHED_ACCOUNTS = 50_000
# Scores in a row of the file: whoever asks for an account's history reads rows as a whole.
_MOST_ROWS = 2000
# Bins of the timeline in the file: more are merged into wider ones.
_MOST_BINS = 4096


class StateFile:
    """The file of one replay: ``states`` for its engine, ``record`` to complete a batch, ``records`` to ask."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        with explained(path):
            ((position, checksum, *stored),) = checked_rows(path, connection, "progress")
            self._identity = schema.identity(path)
        self.reached = Position(position, checksum)
        *progress, self._facts, notes = stored
        self.facts: dict[str, Any] = json.loads(self._facts)
        self.notes: dict[str, Any] = json.loads(notes)
        """How it goes, for whoever looks: written with each batch. Nothing that is computed depends on it."""
        self._stored = _Progress(*progress)
        self._pending = replace(self._stored)  # with what the batch at hand changes
        most = {"states": _CACHED_ACCOUNTS, "accounts": _CACHED_ACCOUNTS, "timeline": _MOST_BINS}
        self._kept = {table: RowCache(path, connection, table, rows) for table, rows in most.items()}
        self.states = _States(self)
        self.records = SqliteRecords(path, connection, self.facts)

    @classmethod
    def create(cls, path: Path, facts: dict[str, Any], states: Mapping[str, bytes] | None = None) -> StateFile:
        """A new file; ``facts`` say what is replayed, and a resumed replay must agree with them.

        Accounts that have a past begin with their ``states``.
        """
        schema.create(path, facts, states)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, read_only: bool = False) -> StateFile:
        """An existing file, checked as a whole: a damaged one is refused and not touched."""
        schema.check_exists(path)
        schema.check(path)
        with explained(path):
            return cls(path, schema.connect(path, read_only))

    @property
    def position(self) -> int:
        """Records that are behind us."""
        return self.reached.position

    def record(self, batch_output: BatchOutput) -> None:
        """Everything of a batch, with the states the engine has written for it, or nothing."""
        with self.batch():
            self._forget_unfinished()
            self._insert(
                "alerts",
                [
                    (p, a.id, a.account, a.time, a.score, a.expected_loss, a.tail_rate, a.headline, alert_line(p, a))
                    for p, a in batch_output.alerts
                ],
            )
            self._insert("dead_letters", [_letter_row(letter) for letter in batch_output.dead_letters])
            if batch_output.scores.num_rows:
                self._insert_scores(batch_output.scores, batch_output.reached.position)
                self._add_to_timeline(batch_output.scores)
            self._move(batch_output.reached)
            self.check_in_place()
            self._connection.execute("COMMIT")
        self.reached, self._stored = batch_output.reached, replace(self._pending)

    def write_notes(self) -> None:
        """How it goes, between batches."""
        with self.batch():
            self._move(self.reached)
            self._connection.execute("COMMIT")

    def check_in_place(self) -> None:
        """Refuse to go on when the file is no longer there: what is written then is lost when the process ends.

        Raises
        ------
        StreamCcsdError
            If it was deleted, or another one put in its place.
        """
        if schema.identity(self.path) != self._identity:
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

    def _replace(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Rows by their first column, new or in the place of older ones."""
        self._pending.total += self._kept[table].put(rows)

    def _delete(self, table: str, condition: str) -> None:
        for (old,) in self._connection.execute(f"SELECT checksum FROM {table} WHERE {condition}"):
            self._pending.total -= old
        self._connection.execute(f"DELETE FROM {table} WHERE {condition}")
        if table in self._kept:
            self._kept[table].forget()

    def _forget_unfinished(self) -> None:
        """A record that was not counted as read is read again, so what was said of it then goes."""
        self._delete("dead_letters", f"position > {self.position}")

    def _insert_scores(self, scores: pa.RecordBatch, batch: int) -> None:
        """Scores under the batch's own number, and what they add to their accounts.

        Parts of a large one have numbers before that: as many as there are rows behind them, so none is taken.
        """
        sums = by_account(scores)
        known = self._kept["accounts"].get_all(row[0] for row in sums)
        newest = {account: None if row is None else row[-1] for account, row in known.items()}
        for first in range(0, scores.num_rows, _MOST_ROWS):
            part = scores.slice(first, _MOST_ROWS)
            place = batch - (scores.num_rows - first - part.num_rows)
            self._insert("scores", [(place, packed_scores(part, newest))])
            newest.update(dict.fromkeys(part.column("account").to_pylist(), place))
        rows = []
        for account, transactions, time, maximum, alerts in sums:
            _, earlier, last, _, alerted, _ = known[account] or (account, 0, time, maximum, 0, None)
            counts = (earlier + transactions, max(last, time), maximum, alerted + alerts)
            rows.append((account, *counts, newest[account]))
        self._replace("accounts", rows)

    def _add_to_timeline(self, scores: pa.RecordBatch) -> None:
        """Count a batch in its bins; should there be too many by then, all become wider."""
        timeline = Timeline(self.records.calendar, self._pending.bin_width)
        timeline.add(scores)
        for place, known in self._kept["timeline"].get_all(list(timeline.bins)).items():
            if known is not None:
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

    def _move(self, reached: Position) -> None:
        """Write how far the stream was read."""
        row = (reached.position, reached.checksum, *astuple(self._pending), self._facts, json.dumps(self.notes))
        moved = self._connection.execute(
            "UPDATE progress SET checksum = ?, position = ?, records = ?, total = ?, alert_cap = ?, bin_width = ?, "
            "facts = ?, notes = ? WHERE position = ? AND total = ?",
            (row_checksum(*row), *row, self.position, self._stored.total),
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
        for kept in self._kept.values():
            kept.forget()

    def close(self) -> None:
        """Close the file; it can be copied and resumed elsewhere."""
        with explained(self.path):
            self._connection.close()

    def read_state(self, account: str) -> bytes | None:
        """The stored state of an account."""
        row = self._kept["states"].get(account)
        return None if row is None else row[1]

    def read_alert_cap(self) -> bytes | None:
        """As the batch at hand has left it."""
        return self._pending.alert_cap

    def write_states(self, states: Mapping[str, bytes], alert_cap: bytes | None) -> None:
        """Store states as part of the batch; ``record`` completes it."""
        with explained(self.path):
            self.begin()
            self._replace("states", states.items())
        if alert_cap is not None:
            self._pending.alert_cap = alert_cap


@dataclass
class _Progress:
    """What the file's one row of progress holds besides the place and the facts."""

    total: int  # of all checksums
    alert_cap: bytes | None
    bin_width: int  # of the timeline


class _States:
    """Account states as the engine sees them."""

    def __init__(self, file: StateFile) -> None:
        self._file = file

    def read(self, account: str) -> bytes | None:
        return self._file.read_state(account)

    def read_alert_cap(self) -> bytes | None:
        return self._file.read_alert_cap()

    def write(self, states: Mapping[str, bytes], alert_cap: bytes | None) -> None:
        self._file.write_states(states, alert_cap)


def model_beside(path: Path) -> Path:
    """Where the model is that a replay without one has fitted; it is whole before the state file is there."""
    return path.with_name(path.name + ".model")


def by_account(scores: pa.RecordBatch) -> list[tuple[str, int, float, float, int]]:
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
