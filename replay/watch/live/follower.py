"""Follow a state file and its audit log while somebody else writes them, and wake whoever waits for news.

:class:`StateReader` reads a state file for many readers at once. :class:`Follower` is the thread that takes in what is
new.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from replay.cases.audit_log import audit_log_beside
from replay.cases.cases import Cases
from replay.state import schema
from replay.state.records import SqliteRecords, unpacked
from replay.state.schema import STATE, checked_rows, explained, stamps
from replay.watch.live.index import MOST_ALERTS, SCORE_COLUMNS, AlertIndex, MinuteCounts, ScoreIndex
from stream_ccsd.calendar import Calendar
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.stores import DeadLetterCount, Totals
from stream_ccsd.verdict import Reached

# Connections that are kept for the next question.
_IDLE = 8


class StateReader:
    """Connections to one state file, each for one question at a time.

    The file is not looked through as a whole, as a replay does: every row is compared with its checksum when it is
    read, and a page that opens at once is worth more than one that has read rows which nobody asks for.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        schema.check_exists(path)
        self._identity = schema.identity(path)
        self._idle: list[tuple[Any, SqliteRecords]] = []
        self._lock = threading.Lock()
        with explained(path), closing(schema.connect(path, read_only=True)) as connection:
            schema.check_format(path, connection, STATE)
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
        if schema.identity(self.path) != self._identity:
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
            connection = schema.connect(self.path, read_only=True, shared=True)
            facts, _ = self._progress(connection)
        return connection, SqliteRecords(self.path, connection, facts)

    def _progress(self, connection: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        with explained(self.path):
            ((*_, facts, notes),) = checked_rows(self.path, connection, "progress")
        return json.loads(facts), json.loads(notes)


log = logging.getLogger(__name__)

# Seconds between looks; files that did not change are not opened.
_PAUSE = 0.25
_RETRY = 2.0  # after a failure
# Batches and alerts that are taken in at once: a page that is opened over a long history shows it growing.
_BATCHES, _ALERTS = 50, 2000
# A replay that has not written for so many seconds is waiting, or gone.
_QUIET = 10.0


class Follower:
    """What is known by now. ``lock`` is held while it is looked at or changed."""

    def __init__(self, reader: StateReader, cases: Cases) -> None:
        self._reader, self._desk = reader, cases
        self.lock = threading.RLock()
        self.alerts, self.minutes = AlertIndex(), MinuteCounts()
        self.scores = ScoreIndex(float(reader.facts["threshold"]))
        self.totals = Totals(0, 0, 0, 0, 0, 0)
        self.dead_letters: list[DeadLetterCount] = []
        self.notes: dict[str, Any] = {}
        self.problem: str | None = None
        self._news = threading.Condition()
        self._changes = 0
        self._stamps: tuple[Any, ...] = ()
        self._moved = 0.0  # when the stream last went on
        self._running = True
        self._caught_up = threading.Event()
        self.alerts.position = reader.position_before_newest(MOST_ALERTS)
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._thread.start()

    @property
    def changes(self) -> int:
        """A number that grows with each change."""
        return self._changes

    def wait(self, seen: int, seconds: float) -> int:
        """Until there is a change since, or the seconds have passed; returns the number by then."""
        with self._news:
            self._news.wait_for(lambda: self._changes != seen or not self._running, seconds)
            return self._changes

    def caught_up(self, seconds: float) -> bool:
        """Wait until everything that was in the file is known."""
        return self._caught_up.wait(seconds)

    def wake(self) -> None:
        """Somebody did something here: others need not wait for the next look."""
        with self._news:
            self._changes += 1
            self._news.notify_all()

    def close(self) -> None:
        """Stop following."""
        self._running = False
        self.wake()
        self._thread.join(5.0)

    @property
    def state(self) -> str:
        """Whether the stream moves: running, waiting or finished."""
        if self.notes.get("finished"):
            return "finished"
        newest = max(self.notes.get("updated", 0.0), self._moved)
        return "running" if time.time() - newest < _QUIET else "waiting"

    @property
    def trouble(self) -> str | None:
        """What people should know: a file that cannot be read, a broker that is away."""
        mirror = self.notes.get("mirror") or {}
        if self.problem is None and mirror.get("state") in ("reconnecting", "closed"):
            return f"Kafka is not read at the moment: {mirror.get('error') or 'the broker does not answer'}"
        lost = sum((self.notes.get("lost") or {}).values())
        if self.problem is None and lost:
            return (
                f"{lost:,} messages of Kafka's topics were deleted before this page read them, and are not shown: keep "
                "topics for longer"
            )
        return self.problem

    def _run(self) -> None:
        while self._running:
            problem = self.problem
            try:
                self._reader.check_in_place()
                found = stamps(self._reader.path) + stamps(audit_log_beside(self._reader.path))
                if found != self._stamps and self._look():
                    self._stamps = found  # only now: what could not be read, or not all of it, is tried again
                    self._caught_up.set()
                self.problem = None
            except StreamCcsdError as error:  # a damaged row, a file that was taken away: said on the page
                self.problem = str(error)
            except Exception:
                if problem is None:
                    log.exception("the page cannot follow the state file")
                self.problem = "the state file cannot be followed: see the log of the server"
            if self.problem is not None:
                self._caught_up.set()  # nobody waits for what cannot be read
            if self.problem != problem:
                log.warning("%s", self.problem or "the state file can be followed again")
                self.wake()
            if self.problem is not None or found == self._stamps:
                time.sleep(_PAUSE if self.problem is None else _RETRY)

    def _look(self) -> bool:
        """Take in what is new, a part of it where there is much; whether that was all."""
        with self._reader.connected() as (_, records):
            alerts = [*records.alerts(after=self.alerts.position, limit=_ALERTS)]
            totals, dead_letters = records.totals(), [*records.dead_letter_counts()]
        batches = self._reader.batches(self.scores.position, _BATCHES, SCORE_COLUMNS)
        notes = self._reader.notes()
        with self.lock:
            before = self.totals
            self.alerts.add(alerts)
            for position, batch in batches:
                self.scores.add(batch, position)
            self.totals, self.dead_letters, self.notes = totals, dead_letters, notes
            if before.position:
                self._moved = time.time() if totals.position != before.position else self._moved
                new = totals.transactions - before.transactions, totals.alerts - before.alerts
                self.minutes.add(time.time(), *(max(count, 0) for count in new))
            else:
                self.minutes.add(time.time(), 0, 0)
        self._desk.refresh()
        is_all = len(alerts) < _ALERTS and len(batches) < _BATCHES
        if is_all and self.scores.transactions:  # before that nobody knows what a verdict is ahead of
            calendar = Calendar.from_dict(self._reader.facts["calendar"])
            self._desk.reach(Reached.of(self.scores.last_time, calendar, bool(notes.get("finished"))))
        self.wake()
        return is_all
