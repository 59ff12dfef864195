"""When lessons are: at whole multiples of a length of the stream's own time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stream_ccsd.errors import StreamCcsdError

OFTEN = {"hourly": "1h", "daily": "1d", "weekly": "7d"}
"""Words for how often lessons are, as lengths of time (``Calendar.duration``)."""


@dataclass(frozen=True)
class Schedule:
    """All in units of the stream's time.

    >>> schedule = Schedule(every=24.0, delay=7 * 24.0)
    >>> schedule.first_after(100.0), schedule.first_after(96.0)
    (120.0, 120.0)
    """

    every: float
    """A lesson each so much of it: it comes before transactions of that moment."""
    delay: float
    """Silence about a transaction counts as normal after this long."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.every) and self.every > 0):
            raise StreamCcsdError(f"lessons come every so much of the stream's time, more than 0: got {self.every!r}")
        if not (math.isfinite(self.delay) and self.delay >= 0):
            raise StreamCcsdError(f"the delay of verdicts is 0 or more of the stream's time, got {self.delay!r}")

    def first_after(self, time: float) -> float:
        """The first moment of a lesson that is later than this."""
        return (math.floor(time / self.every) + 1) * self.every
