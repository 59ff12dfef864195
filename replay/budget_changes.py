"""Budgets that people set while a replay runs: the next batch alerts by them.

They are lines of the book, so who set one, when and why stays known. A replay looks for them between batches; one that
is resumed goes on with the newest. What was alerted before stays as it was.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from replay.book import book_beside
from replay.database import stamps
from replay.verdicts import open_beside
from stream_ccsd.errors import StreamCcsdError

log = logging.getLogger(__name__)

BEGUN_BEHIND = "book_at_begin"
"""The note of a state file that says how many lines its book had when it was made."""


def _last_line(state: Path | None) -> int:
    book = None if state is None else open_beside(state)
    if book is None:
        return 0
    with book:
        last = book.last()
    return 0 if last is None else last.sequence


class BudgetChanges:
    """Thresholds in the book beside a state file, as far as they are new."""

    def __init__(self, state: Path | None, notes: dict[str, Any]) -> None:
        self._state = state
        self._seen: tuple[tuple[int, int], ...] = ()
        # A book may be older than the state file: what was set for an older replay is not for this one.
        self._read = int(notes.setdefault(BEGUN_BEHIND, _last_line(state)))

    def newest(self) -> float | None:
        """The threshold that was set last since this was asked before; None if there is none."""
        if self._state is None:
            return None
        found = stamps(book_beside(self._state))
        if found == self._seen:
            return None
        self._seen = found
        threshold = None
        try:
            book = open_beside(self._state)
            if book is not None:
                with book:
                    for line in book.lines(after=self._read):
                        self._read = line.sequence
                        if line.said.kind == "budget":
                            threshold = float(line.said.body["to"])
        except StreamCcsdError as error:  # a replay goes on by the threshold it has
            log.warning("budgets that people set cannot be read: %s", error)
        return threshold
