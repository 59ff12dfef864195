"""When Python looks for circles of objects that nothing else refers to: between batches.

By itself it looks whenever some hundred objects were made that are still there. Of a batch all of them are, until it is
recorded, so it looks through the same thousands again and again and finds nothing: a tenth of a replay's time.
"""

from __future__ import annotations

import gc
from types import TracebackType

# Batches between two looks at all objects there are; the young ones are looked at after each.
_ALL_EVERY = 25


class Tidying:
    """Inside it, only :meth:`between_batches` looks."""

    def __init__(self) -> None:
        self._was_enabled = False
        self._batches = 0

    def __enter__(self) -> Tidying:
        self._was_enabled = gc.isenabled()
        gc.disable()
        return self

    def between_batches(self) -> None:
        """A batch is recorded, and what it was made of is gone."""
        self._batches += 1
        gc.collect(1 if self._batches % _ALL_EVERY else 2)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._was_enabled:
            gc.enable()
