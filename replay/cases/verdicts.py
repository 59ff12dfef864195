"""Verdicts of people: in the audit log beside a replay's state, from files, and pending until their time has come.

A later verdict on a transaction overrules an earlier one. Files are CSV and JSON lines (plain, .gz, .xz) or Parquet;
each row is a verdict or is refused. A pending verdict waits until the stream reaches its time, because a model must not
learn from what is not known yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from replay.cases.audit_log import BOOK, Action, AuditLog, LogEntry, audit_log_beside
from replay.sources.files import Reading, Row, listed
from replay.sources.source import Item
from stream_ccsd.calendar import Calendar
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.transaction import Refusal, Transaction
from stream_ccsd.verdict import ANY_TIME, NEEDED, EffectiveVerdict, Key, Reached, Verdict

__all__ = ["BOOK", "VerdictEntry", "VerdictLog", "audit_log_beside", "open_beside"]


@dataclass(frozen=True, slots=True)
class VerdictEntry:
    """A verdict in the audit log: the number of its entry, when that was recorded, and the chain up to it."""

    sequence: int
    recorded: float
    verdict: Verdict
    hash: str

    @classmethod
    def of(cls, log_entry: LogEntry) -> VerdictEntry:
        """An entry that is a verdict."""
        action = log_entry.said
        verdict = Verdict(action.transaction, action.account, who=action.who, time=action.time, **action.body)
        return cls(log_entry.sequence, log_entry.recorded, verdict, log_entry.hash)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; ``recorded`` is a date."""
        log_entry = LogEntry(self.sequence, self.recorded, _said(self.verdict), self.hash)
        return {"sequence": self.sequence, "recorded": log_entry.moment, **self.verdict.to_dict()}


class VerdictLog(AuditLog):
    """The audit log, as far as it is about verdicts."""

    def append(self, verdicts: Iterable[Verdict]) -> list[VerdictEntry]:
        """Record verdicts, all or none of them; gives the new entries, without those that were recorded before.

        Raises
        ------
        StreamCcsdError
            If one was made by hand and is not sound, or the audit log cannot be written.
        """
        sound = dict.fromkeys(_sound(verdict) for verdict in verdicts)
        with self.writing():
            actions = [*map(_said, sound)]
            known = self.known(actions)
            return [
                VerdictEntry.of(log_entry) for log_entry in self.add(each for each in actions if each.row not in known)
            ]

    def entries(self, after: int = 0) -> Iterator[VerdictEntry]:
        """Verdicts behind a number, in order; each is compared with its hash as it is read."""
        return self._entries("WHERE e.sequence > ? ORDER BY e.sequence", after)

    def of(self, account: str, transaction: str) -> list[VerdictEntry]:
        """All verdicts on one transaction, in the order they were recorded."""
        where = "WHERE e.account = ? AND e.transaction_id = ? ORDER BY e.sequence"
        return [*self._entries(where, account, transaction)]

    def history(self, account: str | None = None, transaction: str | None = None) -> dict[Key, list[VerdictEntry]]:
        """Entries by transaction, those with the earliest verdict first: of an account, of an id, or all."""
        given = {"e.account": account, "e.transaction_id": transaction}
        chosen = {column: value for column, value in given.items() if value is not None}
        where = "WHERE " + " AND ".join(f"{column} = ?" for column in chosen) if chosen else ""
        found: dict[Key, list[VerdictEntry]] = {}
        for entry in self._entries(f"{where} ORDER BY e.sequence", *chosen.values()):
            found.setdefault(entry.verdict.key, []).append(entry)
        return found

    def standing(self, account: str, transaction: str, reached: Reached = ANY_TIME) -> EffectiveVerdict | None:
        """The effective verdict on one transaction when the stream has come as far; None where there is none."""
        return reached.standing(entry.verdict for entry in self.of(account, transaction))

    def _entries(self, chosen: str, *values: Any) -> Iterator[VerdictEntry]:
        return (
            VerdictEntry.of(log_entry) for log_entry in self._lines(chosen, *values) if log_entry.said.kind == "verdict"
        )


def open_beside(state: Path) -> VerdictLog | None:
    """The audit log of a state file, to be read; None where nothing was ever recorded."""
    path = audit_log_beside(state)
    return VerdictLog.open(path, read_only=True) if path.exists() else None


def _said(verdict: Verdict) -> Action:
    body = {"verdict": verdict.verdict, "why": verdict.why, "source": verdict.source}
    return Action("verdict", verdict.who, verdict.account, verdict.transaction, verdict.time, body)


def _sound(verdict: Verdict) -> Verdict:
    parsed = Verdict.parse(verdict.to_dict())
    if isinstance(parsed, Refusal):
        raise StreamCcsdError(f"a verdict cannot be recorded: {parsed.reason}")
    return parsed


def read_verdicts(
    path: Path,
    calendar: Calendar | None = None,
    given: Mapping[str, Any] | None = None,
    encoding: str | None = None,
    latest: float = math.inf,
) -> Iterator[tuple[Row, Verdict | Refusal]]:
    """Every row of a file in its order, with the verdict in it or the refusal that says what is wrong.

    Columns are named as the fields of a verdict; ``given`` says what stands for those that a row leaves out. Dates
    are understood by the calendar, and none may be beyond the ``latest`` that the stream's model takes.

    Raises
    ------
    StreamCcsdError
        If the file cannot be read, has no known format, or is a table that lacks a column.
    """
    given = dict(given or {})
    for row in Reading(path, encoding, "verdict").rows():
        if row.values is None:
            yield row, row.refusal()
            continue
        missing = [name for name in NEEDED if name not in row.values and name not in given]
        if missing and row.is_table:
            raise StreamCcsdError(
                f"{path} has no column named {listed(missing)}: it has {listed(row.values)}. A file of verdicts has "
                f"{', '.join(NEEDED)}, and may have why and source"
            )
        stated = {name: value for name, value in row.values.items() if name not in given or value not in (None, "")}
        yield row, Verdict.parse({**given, **stated}, calendar, row.line, latest)


class PendingVerdicts:
    """Verdicts from anywhere, in any order, each given once when its time has come.

    >>> pending = PendingVerdicts([Verdict("x1", "C1", "fraud", "ann", 9.0), Verdict("x2", "C1", "normal", "ann", 3.0)])
    >>> [v.transaction for v in pending.audible(5.0)], [v.transaction for v in pending.audible(9.0)]
    (['x2'], ['x1'])
    """

    def __init__(self, verdicts: Iterable[Verdict] = ()) -> None:
        self._waiting: list[tuple[float, int, Verdict]] = []
        self._arrived = 0
        self.add(verdicts)

    def add(self, verdicts: Iterable[Verdict]) -> None:
        """More of them; one whose time is over is given next."""
        for verdict in verdicts:
            heappush(self._waiting, (verdict.time, self._arrived, verdict))
            self._arrived += 1

    def audible(self, moment: float) -> list[Verdict]:
        """Those whose time has come by this moment, and that were not given before, by time and arrival."""
        heard = []
        while self._waiting and self._waiting[0][0] <= moment:
            heard.append(heappop(self._waiting)[2])
        return heard

    def waiting(self) -> list[Verdict]:
        """Those still to come, by time and arrival: what has to be remembered where a replay is stopped."""
        return [verdict for _, _, verdict in sorted(self._waiting, key=lambda entry: entry[:2])]


class ColumnVerdicts(PendingVerdicts):
    """A source's labels as verdicts, for evaluation: each fraud is found so long after it happened.

    A label that says no fraud is no verdict: it is silence, as it would be in life.
    """

    def __init__(self, delay: float, waiting: Iterable[Verdict] = ()) -> None:
        super().__init__(waiting)
        self.delay = delay

    def see(self, items: Iterable[Item]) -> None:
        """Items of the stream as they come by."""
        for item in items:
            t = item.parsed
            if item.label and isinstance(t, Transaction):
                self.add([Verdict(t.id, t.account, "fraud", "label", t.time + self.delay, source="label")])
