"""What views are made of: everything that is known of a stream at the moment of one request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay.budget_changes import BEGUN_BEHIND
from replay.desk import Desk, Person, Standings, Suppression
from replay.watch.background import Background
from replay.watch.follower import Follower
from replay.watch.openings import Openings
from replay.watch.reading import StateReader
from replay.watch.rivalry import Rivalry
from replay.watch.shelf import Shelf
from stream_ccsd.calendar import Calendar
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.stores import Record
from stream_ccsd.verdict import Standing

Query = Mapping[str, str]


@dataclass(frozen=True)
class Known:
    """A stream, its book, and who asks."""

    reader: StateReader
    follower: Follower
    desk: Desk
    shelf: Shelf
    openings: Openings
    rivalry: Rivalry
    inspection: Background[dict[str, Any]]
    reviewing: Background[dict[str, Any]]
    calendar: Calendar
    person: Person

    @property
    def path(self) -> Path:
        """The state file."""
        return self.reader.path

    @contextmanager
    def looking(self) -> Iterator[Standings]:
        """Nothing that was gathered changes meanwhile."""
        with self.follower.lock, self.desk.reading() as standings:
            yield standings

    @property
    def threshold(self) -> float:
        """The budget that holds: the newest that was set, else the replay's own."""
        notes = self.follower.notes
        begun = notes.get(BEGUN_BEHIND, 0)  # a book may hold budgets of an older replay
        for line in reversed(self.desk.refresh().budgets):
            if line.sequence > begun:
                return float(line.said.body["to"])
        return float(notes.get("threshold") or self.reader.facts["threshold"])

    def when(self, time: float | None) -> str | None:
        """A time of the stream for people."""
        return None if time is None else self.calendar.show(time)

    def days(self, number: float) -> float:
        """So many days in the stream's own time; where it has no unit, so many of its units."""
        length = self.calendar.of_days(number)
        return number if length is None else length

    def active(self, standings: Standings) -> list[Suppression]:
        """Suppressions that nobody lifted."""
        return [each for each in standings.suppressions.values() if each.lifted is None]

    def shown(self, row: Record, standings: Standings, hidden: bool = False) -> Record:
        """An alert in short as every list of them shows it."""
        stands = standings.stands.get((row["account"], row["transaction"]))
        own = {name: value for name, value in row.items() if name not in ("terms", "best_term", "model")}
        return own | {"when": self.when(row["time"])} | verdict_of(stands) | {"suppressed": hidden}


def verdict_of(stands: Standing | None) -> dict[str, Any]:
    """What counts of the verdicts on an alert."""
    if stands is None:
        return {"verdict": None, "disputed": False}
    return {"verdict": stands.verdict.verdict, "disputed": stands.disputed}


def number(query: Query, name: str) -> float | None:
    """A number of a query; None where it is not given.

    Raises
    ------
    StreamCcsdError
        If it is no number.
    """
    text = query.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e300:
        raise StreamCcsdError(f"{name}: expected a number, got {text[:40]!r}")
    return value


def whole(query: Query, name: str, default: int) -> int:
    """A whole number of a query, not below 0."""
    value = number(query, name)
    return default if value is None else int(min(max(0.0, value), 2.0**53))
