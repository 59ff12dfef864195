"""When the model is updated: at whole multiples of a length of the stream's own time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stream_ccsd.errors import StreamCcsdError

if TYPE_CHECKING:  # commands import this, and --help answers at once
    from stream_ccsd.model.model import Model

OFTEN = {"hourly": "1h", "daily": "1d", "weekly": "7d"}
"""Words for how often the model is updated, as lengths of time (``Calendar.duration``)."""
# The most updates in a day, where time has a unit.
_A_DAY = 24 * 60


@dataclass(frozen=True)
class Schedule:
    """All in units of the stream's time.

    >>> schedule = Schedule(every=24.0, delay=7 * 24.0)
    >>> schedule.first_after(100.0), schedule.first_after(96.0)
    (120.0, 120.0)
    """

    every: float
    """Time between two model updates; an update comes before transactions of its time."""
    delay: float
    """A transaction without a verdict counts as normal after this long."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.every) and self.every > 0):
            raise StreamCcsdError(f"lessons come every so much of the stream's time, more than 0: got {self.every!r}")
        if not (math.isfinite(self.delay) and self.delay >= 0):
            raise StreamCcsdError(f"the delay of verdicts is 0 or more of the stream's time, got {self.delay!r}")

    def first_after(self, time: float) -> float:
        """The time of the first update that is later than this."""
        return (math.floor(time / self.every) + 1) * self.every

    def check(self, model: Model) -> None:
        """Refuse a schedule that no stream like that of the fit can need.

        Raises
        ------
        StreamCcsdError
            If there were more updates than transactions, or than minutes; or none in all the time the model is for.
        """
        calendar, first, last = model.calendar, model.facts.get("first_time"), model.facts.get("last_time")
        least = calendar.of_days(1.0 / _A_DAY) or 0.0
        if first is not None and last is not None:
            least = max(least, (last - first) / max(model.facts.get("transactions", 1), 1))
            if last + self.every > model.latest_time:
                raise StreamCcsdError(
                    f"a lesson each {calendar.length(self.every)}: the first would come after "
                    f"{calendar.show(model.latest_time)}, the latest that the model takes: choose a shorter interval"
                )
        if self.every < least:
            raise StreamCcsdError(
                f"a lesson each {calendar.length(self.every)} is more than there can be to learn: expected "
                f"{calendar.length(least)} or more, as transactions of the fit come no more often, or a minute"
            )
