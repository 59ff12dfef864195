"""Open cases: alerts without a verdict, which no suppression hides and the budget still asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

from replay.cases.cases import EffectiveVerdicts, Suppression
from replay.watch.live.follower import Follower
from stream_ccsd.alerts.alert import EXPLORATION
from stream_ccsd.stores import Record

Made = TypeVar("Made")
_CHOICES = 200


class Stream(Protocol):
    """What open cases are found from: the alerts of a stream, its audit log, and the budget that holds."""

    @property
    def follower(self) -> Follower:
        """Knows the alerts."""

    @property
    def threshold(self) -> float:
        """Of the budget."""

    def looking(self) -> AbstractContextManager[EffectiveVerdicts]:
        """Nothing changes meanwhile."""

    def active(self, effective: EffectiveVerdicts) -> list[Suppression]:
        """Suppressions that nobody lifted."""


@dataclass
class OpenAlert:
    """Open alerts by account, and how many are kept out of sight by what."""

    cases: dict[str, list[Record]] = field(default_factory=dict)
    hidden: dict[str, list[Record]] = field(default_factory=dict)
    suppressed: int = 0
    below: int = 0
    _ranked: dict[str, list[tuple[str, list[Record]]]] = field(default_factory=dict)

    def ranked(self, by: str) -> list[tuple[str, list[Record]]]:
        """Cases with the highest alerts by a column first, of equal ones the earlier."""
        if by not in self._ranked:
            self._ranked[by] = rank(self.cases.items(), by)
        return self._ranked[by]

    def all(self) -> dict[str, list[Record]]:
        """Open alerts by account, also those that a suppression hides."""
        accounts = {**self.cases, **self.hidden}
        both = {name: [*self.cases.get(name, ()), *self.hidden.get(name, ())] for name in accounts}
        return {name: sorted(rows, key=lambda row: row["position"]) for name, rows in both.items()}

    @cached_property
    def choices(self) -> dict[str, list[str]]:
        """What alerts can be chosen by."""
        rows = [row for rows in self.cases.values() for row in rows]
        names = {"categories": "category", "merchants": "merchant"}
        found = {many: sorted({row[one] for row in rows if row[one]})[:_CHOICES] for many, one in names.items()}
        return found | {"fields": sorted({name for row in rows for name in row["fields"] or {}})}


def rank(cases: Iterable[tuple[str, list[Record]]], by: str) -> list[tuple[str, list[Record]]]:
    """In the order in which people should work on them."""
    return sorted(cases, key=lambda case: (-max(row[by] for row in case[1]), case[1][0]["position"]))


class OpenCases:
    """Remembers what is open, and what else follows from alerts and the audit log, until one of those is new."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Any, Any]] = {}

    def of(self, known: Stream) -> OpenAlert:
        """As of now."""
        with known.looking() as effective:
            threshold = known.threshold

            def make() -> OpenAlert:
                rows, judged = known.follower.alerts.rows, effective.stands
                left = (row for row in rows if (row["account"], row["transaction"]) not in judged)
                return _opened(left, known.active(effective), threshold)

            return self.made("open", known, make, threshold)

    def made(self, name: str, known: Stream, make: Callable[[], Made], *further: Any) -> Made:
        """What ``make`` gives, made anew if an alert, an entry of the audit log or something further is new."""
        with known.looking() as effective:
            of = (known.follower.alerts.version, effective.version, *further)
            if name not in self._made or self._made[name][0] != of:
                self._made[name] = of, make()
            found: Made = self._made[name][1]
            return found


def is_hidden(row: Record, active: list[Suppression]) -> bool:
    """Whether a suppression keeps an alert out of sight."""
    return any(each.hides(row) for each in active)


def _opened(rows: Iterable[Record], active: list[Suppression], threshold: float) -> OpenAlert:
    opened = OpenAlert()
    for row in rows:
        if row["score"] < threshold and row["raised_by"] != EXPLORATION:
            opened.below += 1
        elif active and is_hidden(row, active):
            opened.suppressed += 1
            opened.hidden.setdefault(row["account"], []).append(row)
        else:
            opened.cases.setdefault(row["account"], []).append(row)
    return opened
