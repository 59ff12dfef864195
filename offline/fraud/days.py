"""A stream's transactions as columns, day by day: what is fitted on, what is streamed, what is judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from offline.fraud.data import LabelledData
from replay.run.fitting import FIRST_PART, time_at
from stream_ccsd.calendar import Calendar
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, IntArray
from stream_ccsd.settings import Settings

# Share of a file's time after which results count: by then a learner has run for a while.
JUDGED_FROM = 0.5
WEEK = 7


@dataclass(frozen=True, eq=False)
class Days:
    """Transactions in time order with the number of their day; day 0 is the file's first.

    Where time has no unit, a unit is a day.
    """

    data: LabelledData
    time: FloatArray
    length: float
    """Of a day, in the stream's own unit."""
    fitted_until: float
    judged_from: int
    """The first day that counts."""

    @classmethod
    def of(cls, data: LabelledData, settings: Settings) -> Days:
        """A file's days; what is fitted on ends as in a replay, what counts is the second half of the time."""
        time = np.array([t.time for t in data.transactions])
        calendar = Calendar.choose(settings.time_unit, settings.time_origin, time.tolist())
        length = calendar.of_days(1.0) or 1.0
        if time[-1] - time[0] < length:
            raise StreamCcsdError(
                f"{data.name} holds no more than a day, and verdicts come days later: does --time-unit say what its "
                "times are?"
            )
        days = cls(data, time, length, time_at(FIRST_PART, time), 0)
        # Whole days: a card's day is judged as a whole.
        return replace(days, judged_from=int(np.ceil(time_at(JUDGED_FROM, time) / length)) - days.first)

    def until(self, day: int) -> Days:
        """The same without anything later than this day."""
        kept = int(np.searchsorted(self.day, day, side="right"))
        kinds = None if self.data.kinds is None else self.data.kinds[:kept]
        data = replace(self.data, transactions=self.data.transactions[:kept], fraud=self.data.fraud[:kept], kinds=kinds)
        return replace(self, data=data, time=self.time[:kept])

    def judged_since(self, day: int) -> Days:
        """The same, but for the first day that counts."""
        return replace(self, judged_from=day)

    @cached_property
    def first(self) -> int:
        """What is day 0, in days of the stream's own time."""
        return int(np.floor(self.time[0] / self.length))

    @cached_property
    def day(self) -> IntArray:
        """The day of each transaction."""
        return np.floor(self.time / self.length).astype(np.int64) - self.first

    @cached_property
    def account(self) -> IntArray:
        """Accounts as numbers, in the order in which they come."""
        return codes_of(t.account for t in self.data.transactions)

    @cached_property
    def merchant(self) -> IntArray:
        """Merchants as numbers."""
        return codes_of(t.merchant for t in self.data.transactions)

    @property
    def fraud(self) -> AnyArray:
        """The labels."""
        return self.data.fraud

    @property
    def begin(self) -> int:
        """The first transaction that is streamed."""
        return int(np.searchsorted(self.time, self.fitted_until))

    @property
    def judged(self) -> AnyArray:
        """Which transactions count."""
        return self.day >= self.judged_from

    @property
    def last(self) -> int:
        """The last day."""
        return int(self.day[-1])

    def starts(self, day: int) -> float:
        """When a day begins, in the stream's own time."""
        return (day + self.first) * self.length

    def __iter__(self) -> Iterator[tuple[int, slice]]:
        """Every day that has transactions, with them."""
        days, edges = np.unique(self.day, return_index=True)
        for day, begin, end in zip(days.tolist(), edges, [*edges[1:], len(self.day)], strict=True):
            yield day, slice(int(begin), int(end))

    @cached_property
    def week(self) -> IntArray:
        """By transaction the first day of its week; what counts begins with a week."""
        return (self.day - self.judged_from) // WEEK * WEEK + self.judged_from


def codes_of(texts: Iterable[str]) -> IntArray:
    """Texts as numbers, in the order in which they come."""
    return np.asarray(pd.factorize(np.array(list(texts), object))[0], np.int64)
