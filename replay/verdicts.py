"""Verdicts in the book beside a replay's state: each is a line of it, and a later one overrules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay.book import BOOK, Book, Line, Said, book_beside
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.transaction import Refusal
from stream_ccsd.verdict import ANY_TIME, Key, Reached, Standing, Verdict

__all__ = ["BOOK", "Entry", "VerdictBook", "book_beside", "open_beside"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A verdict in the book: the number of its line, when that was recorded, and the chain up to it."""

    sequence: int
    recorded: float
    verdict: Verdict
    hash: str

    @classmethod
    def of(cls, line: Line) -> Entry:
        """A line that is a verdict."""
        said = line.said
        verdict = Verdict(said.transaction, said.account, who=said.who, time=said.time, **said.body)
        return cls(line.sequence, line.recorded, verdict, line.hash)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; ``recorded`` is a date."""
        line = Line(self.sequence, self.recorded, _said(self.verdict), self.hash)
        return {"sequence": self.sequence, "recorded": line.moment, **self.verdict.to_dict()}


class VerdictBook(Book):
    """The book, as far as it is about verdicts."""

    def append(self, verdicts: Iterable[Verdict]) -> list[Entry]:
        """Record verdicts, all or none of them; gives the new entries, without those that were recorded before.

        Raises
        ------
        StreamCcsdError
            If one was made by hand and is not sound, or the book cannot be written.
        """
        sound = dict.fromkeys(_sound(verdict) for verdict in verdicts)
        with self.writing():
            said = [*map(_said, sound)]
            known = self.known(said)
            return [Entry.of(line) for line in self.add(each for each in said if each.row not in known)]

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """Verdicts behind a number, in order; each is compared with its hash as it is read."""
        return self._entries("WHERE e.sequence > ? ORDER BY e.sequence", after)

    def of(self, account: str, transaction: str) -> list[Entry]:
        """All that was said of one transaction, in the order of its recording."""
        where = "WHERE e.account = ? AND e.transaction_id = ? ORDER BY e.sequence"
        return [*self._entries(where, account, transaction)]

    def history(self, account: str | None = None, transaction: str | None = None) -> dict[Key, list[Entry]]:
        """Entries by transaction, those first that were judged first: of an account, of an id, or all."""
        given = {"e.account": account, "e.transaction_id": transaction}
        chosen = {column: value for column, value in given.items() if value is not None}
        where = "WHERE " + " AND ".join(f"{column} = ?" for column in chosen) if chosen else ""
        found: dict[Key, list[Entry]] = {}
        for entry in self._entries(f"{where} ORDER BY e.sequence", *chosen.values()):
            found.setdefault(entry.verdict.key, []).append(entry)
        return found

    def standing(self, account: str, transaction: str, reached: Reached = ANY_TIME) -> Standing | None:
        """What counts of one transaction where the stream has come as far; None where nothing does."""
        return reached.standing(entry.verdict for entry in self.of(account, transaction))

    def _entries(self, chosen: str, *values: Any) -> Iterator[Entry]:
        return (Entry.of(line) for line in self._lines(chosen, *values) if line.said.kind == "verdict")


def open_beside(state: Path) -> VerdictBook | None:
    """The book of a state file, to be read; None where nothing was ever recorded."""
    path = book_beside(state)
    return VerdictBook.open(path, read_only=True) if path.exists() else None


def _said(verdict: Verdict) -> Said:
    body = {"verdict": verdict.verdict, "why": verdict.why, "source": verdict.source}
    return Said("verdict", verdict.who, verdict.account, verdict.transaction, verdict.time, body)


def _sound(verdict: Verdict) -> Verdict:
    parsed = Verdict.parse(verdict.to_dict())
    if isinstance(parsed, Refusal):
        raise StreamCcsdError(f"a verdict cannot be recorded: {parsed.reason}")
    return parsed
