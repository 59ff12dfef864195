"""Who says what about which transaction, and when: labels that come late, and investigators' daily verdicts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from offline.fraud.days import Days
from offline.fraud.queue import Queue
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.numeric import AnyArray, FloatArray, IntArray


@dataclass(frozen=True)
class Mistakes:
    """How wrong verdicts are: a share of them at random, and all about one merchant in the stream's first half."""

    share: float = 0.0
    merchant: str | None = None
    seed: int = 0

    def by_row(self, days: Days) -> tuple[AnyArray, AnyArray]:
        """Which labels are told wrong when they come late, and which when a person looked.

        Late labels speak of frauds, silence is normal: so that ``share`` of what is said is wrong, as many frauds are
        called normal as normal ones are called fraud.
        """
        draw = np.random.default_rng(self.seed).random(len(days.time))
        rare = days.fraud.sum() / max(int((~days.fraud).sum()), 1)
        late = draw < self.share * np.where(days.fraud, 1.0, rare)
        looked = draw < self.share
        if self.merchant is not None:
            own = np.array([t.merchant == self.merchant for t in days.data.transactions])
            if not own.any():
                raise StreamCcsdError(f"{days.data.name} has no merchant {self.merchant!r} (--wrong-merchant)")
            middle = (days.fitted_until + days.time[-1]) / 2
            own &= (days.time >= days.fitted_until) & (days.time < middle)
            late, looked = late | own, looked | own
        return late, looked


@dataclass(frozen=True)
class Worked:
    """What came of a day's queue: cards that were looked at, and those of them with fraud that day."""

    day: int
    cards: int
    fraud: int


@dataclass(eq=False)
class Desk:
    """Answers come ``delay`` after a transaction, or, where a queue chose its card, at the end of its day.

    What is true stays in here: others are told what has come up to a moment, and no more.
    """

    days: Days
    delay: float
    """In the stream's own unit."""
    queue: Queue | None = None
    mistakes: Mistakes = field(default_factory=Mistakes)

    def __post_init__(self) -> None:
        late, looked = self.mistakes.by_row(self.days)
        self.told = self.days.fraud ^ late
        self.looked_at = np.zeros(len(self.told), bool)
        self._known_late = self.days.time + self.delay
        self.known = self._known_late.copy()
        self.worked: list[Worked] = []
        self._when_looked = self.days.fraud ^ looked
        self._late = self._early = 0  # how far late answers were given out, and how many days' investigations
        self._investigated: list[tuple[float, IntArray]] = []

    def news(self, moment: float) -> IntArray:
        """Transactions that are known by now and were not before, in the order in which that came."""
        until = max(int(np.searchsorted(self._known_late, moment, side="right")), self._late)
        late = np.arange(self._late, until)
        self._late = until
        parts = [late[~self.looked_at[late]]]
        while self._early < len(self._investigated) and self._investigated[self._early][0] <= moment:
            parts.append(self._investigated[self._early][1])
            self._early += 1
        rows = np.concatenate(parts)
        return rows[np.argsort(self.known[rows], kind="stable")]

    def close(self, day: int, rows: slice, scores: FloatArray, worth: FloatArray | None = None) -> None:
        """The end of a day: investigators look at all that its most suspicious cards did."""
        if self.queue is None:
            return
        cards, fraud = self.days.account[rows], self.days.fraud[rows]
        chosen = self.queue.choose(day, cards, scores, worth)
        mine = np.isin(cards, chosen)
        seen = np.flatnonzero(mine) + rows.start
        end = self.days.starts(day + 1)
        self.looked_at[seen], self.known[seen] = True, end
        self.told[seen] = self._when_looked[seen]
        self._investigated.append((end, seen))
        self.queue.found(day, np.unique(self.days.account[seen[self.told[seen]]]))
        self.worked.append(Worked(day, len(chosen), len(np.unique(cards[mine & fraud]))))

    def spoken(self, rows: IntArray) -> IntArray:
        """Those of them about which somebody says something; of the others silence is all there is."""
        return rows[self.told[rows] | self.looked_at[rows] | (self.days.fraud[rows] & ~self.told[rows])]
