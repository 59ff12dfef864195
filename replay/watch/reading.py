"""A state file as a page reads it: many readers, while somebody else writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from replay import database
from replay.database import STATE, checked_rows, explained
from replay.store import SqliteRecords, unpacked
from stream_ccsd.errors import StreamCcsdError

# Connections that are kept for the next question.
_IDLE = 8


class StateReader:
    """Connections to one state file, each for one question at a time.

    The file is not looked through as a whole, as a replay does: every row is compared with its checksum when it is
    read, and a page that opens at once is worth more than one that has read rows which nobody asks for.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        database.check_exists(path)
        self._identity = database.identity(path)
        self._idle: list[tuple[Any, SqliteRecords]] = []
        self._lock = threading.Lock()
        with explained(path), closing(database.connect(path, read_only=True)) as connection:
            database.check_format(path, connection, STATE)
            self.facts = self._progress(connection)[0]

    @contextmanager
    def records(self) -> Iterator[SqliteRecords]:
        """To ask, all of one moment."""
        with self.connected() as (_, records), records.at_one_moment():
            yield records

    @contextmanager
    def connected(self) -> Iterator[tuple[Any, SqliteRecords]]:
        """A connection, and the questions it answers."""
        with self._lock:
            found = self._idle.pop() if self._idle else None
        connection, records = found or self._connect()
        try:
            yield connection, records
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if len(self._idle) < _IDLE:
                self._idle.append((connection, records))
                return
        connection.close()

    def notes(self) -> dict[str, Any]:
        """How the replay goes; what it is about may have become known meanwhile, where it is a mirror's."""
        with self.connected() as (connection, _):
            self.facts, notes = self._progress(connection)
        return notes

    def batches(self, after: int, limit: int, columns: tuple[str, ...]) -> list[tuple[int, pa.RecordBatch]]:
        """The next batches of scores behind a position, of each these columns only."""
        found = []
        with self.connected() as (connection, _), explained(self.path):
            chosen = "WHERE position > :after ORDER BY position LIMIT :limit"
            for position, packed in checked_rows(
                self.path, connection, "scores", chosen, {"after": after, "limit": limit}
            ):
                found += [(position, batch) for batch in unpacked(packed, columns)]
        return found

    def position_before_newest(self, alerts: int) -> int:
        """Behind which position there are so many alerts, or all of them."""
        query = "SELECT position FROM alerts ORDER BY position DESC LIMIT 1 OFFSET ?"
        with self.connected() as (connection, _), explained(self.path):
            found = connection.execute(query, (alerts,)).fetchone()
        return 0 if found is None else int(found[0])

    def check_in_place(self) -> None:
        """Refuse to go on with a file that is no longer there: connections would show the old one for ever.

        Raises
        ------
        StreamCcsdError
            If it was deleted, or another one put in its place.
        """
        if database.identity(self.path) != self._identity:
            raise StreamCcsdError(
                f"{self.path} was deleted or replaced: what is shown is the old one. Start the page anew"
            )

    def close(self) -> None:
        """Close what is idle."""
        with self._lock:
            for connection, _ in self._idle:
                connection.close()
            self._idle.clear()

    def _connect(self) -> tuple[Any, SqliteRecords]:
        with explained(self.path):
            connection = database.connect(self.path, read_only=True, shared=True)
            facts, _ = self._progress(connection)
        return connection, SqliteRecords(self.path, connection, facts)

    def _progress(self, connection: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        with explained(self.path):
            ((*_, facts, notes),) = checked_rows(self.path, connection, "progress")
        return json.loads(facts), json.loads(notes)
