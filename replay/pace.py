"""How fast a stream is replayed: as fast as it goes, so many events a second, or so many times its own pace."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from stream_ccsd.errors import StreamCcsdError


@dataclass
class Pace:
    """``events`` a second, or ``factor`` units of the stream's time a second; neither: no waiting."""

    events: float | None = None
    factor: float | None = None
    clock: Callable[[], float] = time.monotonic
    _begun: float | None = field(default=None, init=False)
    _first: float = field(default=0.0, init=False)
    _count: int = field(default=0, init=False)

    @classmethod
    def parse(cls, text: str) -> Pace:
        """``max``, ``10x`` (units of the stream's time a second) or ``500`` (events a second).

        >>> Pace.parse("10x").factor, Pace.parse("500").events, Pace.parse("max") == Pace()
        (10.0, 500.0, True)
        """
        if text == "max":
            return cls()
        match = re.fullmatch(r"(\d+\.?\d*|\.\d+)(x|/s)?", text.strip())
        if not match or not float(match[1]) > 0:
            raise StreamCcsdError(
                f"the speed {text!r} is none of: max, 10x (times the stream's own pace), 500 (events/s)"
            )
        return cls(factor=float(match[1])) if match[2] == "x" else cls(events=float(match[1]))

    @property
    def waits(self) -> bool:
        """Whether there is a pace to keep."""
        return self.events is not None or self.factor is not None

    def delay(self, event_time: float) -> float:
        """Seconds to wait before the next event, which happened at that time of the stream."""
        if not self.waits:
            return 0.0
        now = self.clock()
        if self._begun is None:
            self._begun, self._first = now, event_time
        self._count += 1
        if self.events is not None:
            due = (self._count - 1) / self.events
        else:
            assert self.factor is not None
            due = (event_time - self._first) / self.factor
        return max(0.0, self._begun + due - now)
