"""Audit: every line of the book, in words, whether its chain is whole, and whose verdicts stand out."""

from __future__ import annotations

from typing import Any

from replay.watch.known import Known, Query, whole
from replay.watch.sentences import shown
from stream_ccsd.errors import StreamCcsdError

_PAGE = 100


def audit(known: Known, query: Query) -> dict[str, Any]:
    """The values of the page. Where a line is damaged, those behind it are shown, and what is wrong."""
    before = whole(query, "before", 0) or None
    found, entries = dict(known.inspection.newest()), []
    try:
        for line in known.desk.newest(_PAGE, before):
            entries.append(shown(line, known.calendar))
    except StreamCcsdError as error:
        found |= {"whole": False, "problem": str(error)}
    oldest = entries[-1]["sequence"] if entries else 0
    return {"entries": entries, "before": oldest if oldest > 1 else None, **found, **known.reviewing.newest()}
