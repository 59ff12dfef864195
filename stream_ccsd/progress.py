"""How long work says how far it is."""

from __future__ import annotations

from collections.abc import Callable

# So many are done, of so many.
Progress = Callable[[int, int], None]
