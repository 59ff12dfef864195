"""What takes a while, for a page: made in a thread, and the newest that there is is shown meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")

# A result holds for so many times as long as it took.
_SHARE = 20.0


class Background(Generic[_T]):
    """The newest result; asking begins the next one when it is time for it. ``make`` raises nothing."""

    def __init__(self, name: str, make: Callable[[], _T], first: _T, fresh: float = 0.0) -> None:
        self._name, self._make, self._found, self._fresh = name, make, first, fresh
        self._lock = threading.Lock()
        self._due, self._busy = 0.0, False

    def newest(self, patience: float = 0.15) -> _T:
        """What is known by now; what is quickly made is made at once."""
        with self._lock:
            begin = not self._busy and time.monotonic() >= self._due
            self._busy = self._busy or begin
        if begin:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            thread.join(patience)
        with self._lock:
            return self._found

    def _run(self) -> None:
        begun = time.monotonic()
        found = self._make()
        with self._lock:
            self._found, self._busy = found, False
            self._due = time.monotonic() + max(self._fresh, _SHARE * (time.monotonic() - begun))
