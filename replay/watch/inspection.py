"""Whether the chain of the book is whole, for a page: checked in the background, from its first line."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from replay.book import Book
from replay.watch.background import Background
from stream_ccsd.errors import StreamCcsdError

# Seconds that a check holds, at least.
_FRESH = 10.0
_NOTHING: dict[str, Any] = {"whole": None, "checked": 0, "at": None, "head": None, "problem": None}


def inspection(book: Path) -> Background[dict[str, Any]]:
    """What the newest check has found."""
    return Background("inspection", lambda: _checked(book), _NOTHING, _FRESH)


def _checked(path: Path) -> dict[str, Any]:
    try:
        with Book.open(path, read_only=True) as book:
            last = book.check()
        found = {"whole": True, "checked": last.sequence if last else 0, "head": last.hash if last else None}
    except StreamCcsdError as error:
        found = {"whole": False, "problem": str(error)}
    except Exception as error:  # not looked at is not whole
        found = {"problem": f"the chain could not be checked: {error!r}"}
    return _NOTHING | found | {"at": time.time()}
