"""Whether the chain of the book is whole, for a page: checked in the background, from its first line."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from replay.book import Book
from stream_ccsd.errors import StreamCcsdError

# Seconds that a check holds, at least; one that took long holds for longer.
_FRESH = 10.0
_SHARE = 20.0


class Inspection:
    """The newest check; asking begins the next one when it is time for it."""

    def __init__(self, book: Path) -> None:
        self._book = book
        self._lock = threading.Lock()
        self._found: dict[str, Any] = {"whole": None, "checked": 0, "at": None, "head": None, "problem": None}
        self._due, self._busy = 0.0, False

    def newest(self, patience: float = 0.15) -> dict[str, Any]:
        """What was found; a short book is checked at once."""
        with self._lock:
            begin = not self._busy and time.monotonic() >= self._due
            self._busy = self._busy or begin
        if begin:
            thread = threading.Thread(target=self._check, name="inspection", daemon=True)
            thread.start()
            thread.join(patience)
        with self._lock:
            return dict(self._found)

    def _check(self) -> None:
        begun = time.monotonic()
        try:
            with Book.open(self._book, read_only=True) as book:
                last = book.check()
            found = {"whole": True, "checked": last.sequence if last else 0, "head": last.hash if last else None}
        except StreamCcsdError as error:
            found = {"whole": False, "problem": str(error)}
        except Exception as error:  # not looked at is not whole
            found = {"problem": f"the chain could not be checked: {error!r}"}
        with self._lock:
            nothing = {"whole": None, "checked": 0, "head": None, "problem": None}
            self._found = nothing | found | {"at": time.time()}
            self._busy = False
            self._due = time.monotonic() + max(_FRESH, _SHARE * (time.monotonic() - begun))
