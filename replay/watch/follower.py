"""A thread that follows a state file and its book as they grow, and wakes whoever waits for news."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from replay.book import book_beside
from replay.database import stamps
from replay.desk import Desk
from replay.watch.gathered import MOST_ALERTS, SCORE_COLUMNS, Alerts, Minutes, Scores
from replay.watch.reading import StateReader
from stream_ccsd.calendar import Calendar
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.stores import DeadLetterCount, Totals
from stream_ccsd.verdict import Reached

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

    def __init__(self, reader: StateReader, desk: Desk) -> None:
        self._reader, self._desk = reader, desk
        self.lock = threading.RLock()
        self.alerts, self.minutes = Alerts(), Minutes()
        self.scores = Scores(float(reader.facts["threshold"]))
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
                found = stamps(self._reader.path) + stamps(book_beside(self._reader.path))
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
