"""Investigators: who finds what about which transaction, and when; and figures of scores by what they found.

Labels come late, or investigators look at so many cards each day and give verdicts. They look at no card twice while
its fraud is being dealt with. Figures are overall, by week, and over days of one's choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offline.fraud.days import Days
from offline.fraud.metrics import Figures, card_precisions, highest_by_card, ranking
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, IntArray

REST = 14
"""Days for which a card that was found leaves the queue."""


@dataclass
class Queue:
    """Each day the cards with the highest scores, without those that were found to have fraud lately.

    >>> queue = Queue(budget=1)
    >>> cards, scores = np.array([7, 8, 7]), np.array([1.0, 2.0, 3.0])
    >>> queue.choose(0, cards, scores).tolist()
    [7]
    >>> queue.found(0, [7])
    >>> queue.choose(14, cards, scores).tolist(), queue.choose(15, cards, scores).tolist()
    ([8], [7])
    """

    budget: int
    explore: float = 0.0
    """Share of the budget for cards that would teach most, whatever they score."""
    rest: int = REST
    _away_until: dict[int, int] = field(default_factory=dict)

    def choose(self, day: int, cards: IntArray, scores: FloatArray, worth: FloatArray | None = None) -> IntArray:
        """The cards to look at, of a day's transactions; each by its highest score, the first come first at a tie.

        ``worth`` is how much can be learnt from a verdict on each transaction: a share of the budget goes by its sum.
        """
        names, highest = highest_by_card(cards, scores)
        waiting = np.array([self._away_until.get(name, day - 1) < day for name in names.tolist()], bool)
        ranked = names[waiting][np.argsort(-highest[waiting], kind="stable")]
        explored = 0 if worth is None else round(self.explore * self.budget)
        best, others = ranked[: self.budget - explored], ranked[self.budget - explored :]
        if not explored or worth is None:
            return best
        known, place = np.unique(cards, return_inverse=True)
        teaches = np.bincount(place, worth, len(known))[np.searchsorted(known, others)]
        return np.concatenate([best, others[np.argsort(-teaches, kind="stable")[:explored]]])

    def found(self, day: int, cards: AnyArray | list[int]) -> None:
        """These turned out to have fraud: they come back after their rest."""
        self._away_until |= dict.fromkeys(np.asarray(cards, int).tolist(), day + self.rest)


@dataclass(frozen=True)
class Mistakes:
    """How wrong verdicts are: a share of them at random, and all about one merchant in the stream's first half."""

    share: float = 0.0
    merchant: str | None = None
    seed: int = 0

    def by_row(self, days: Days) -> tuple[AnyArray, AnyArray]:
        """Which labels are wrong when they come late, and which when a person looked.

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
class DayWorked:
    """What came of a day's queue: cards that were looked at, and those of them with fraud that day."""

    day: int
    cards: int
    fraud: int


@dataclass(eq=False)
class Investigators:
    """Answers come ``delay`` after a transaction, or, where a queue chose its card, at the end of its day.

    What is true stays in here: others learn what has come up to a moment, and no more.
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
        self.worked: list[DayWorked] = []
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
        self.worked.append(DayWorked(day, len(chosen), len(np.unique(cards[mine & fraud]))))

    def spoken(self, rows: IntArray) -> IntArray:
        """Those of them about which somebody says something; of the others silence is all there is."""
        return rows[self.told[rows] | self.looked_at[rows] | (self.days.fraud[rows] & ~self.told[rows])]


CARDS = 100
"""Of CP@100."""


@dataclass(frozen=True, eq=False)
class Judged:
    """Scores of the same stream by name, and what came of the queue that each of them had."""

    days: Days
    scores: Mapping[str, FloatArray]
    worked: Mapping[str, Sequence[DayWorked]]
    own: str
    """The score whose figures come first; the others are baselines."""

    def over(self, rows: AnyArray) -> dict[str, Any]:
        """Figures over some of the transactions."""
        named = {name: self._figures(rows, name) for name in self.scores}
        return {**named.pop(self.own), "baselines": named}

    def over_days(self, first: int, last: int) -> dict[str, Any]:
        """Figures over these days, both included."""
        rows = self._streamed & (self.days.day >= first) & (self.days.day <= last)
        return {"from": first, "to": last, **self.over(rows)}

    def by_week(self) -> list[dict[str, Any]]:
        """Figures of the weeks of what was streamed; from which day on they count is told."""
        weeks = []
        for number, begin in enumerate(np.unique(self.days.week[self._streamed]).tolist(), start=1):
            rows = self._streamed & (self.days.week == begin)
            weeks.append(
                {
                    "week": number,
                    "from": begin,
                    "days": len(np.unique(self.days.day[rows])),
                    "judged": begin >= self.days.judged_from,
                    "transactions": int(rows.sum()),
                    "frauds": int(self.days.fraud[rows].sum()),
                    **self.over(rows),
                }
            )
        return weeks

    @property
    def _streamed(self) -> AnyArray:
        return np.arange(len(self.days.time)) >= self.days.begin

    def _figures(self, rows: AnyArray, name: str) -> Figures:
        own = set(self.days.day[rows].tolist())
        shares = [day.fraud / day.cards for day in self.worked[name] if day.day in own and day.cards]
        return {
            **ranking(self.days.fraud[rows], self.scores[name][rows]),
            "cp100": _mean(self._card_precisions(rows, name)),
            "precision": _mean(shares),
        }

    def _card_precisions(self, rows: AnyArray, name: str) -> list[float]:
        """By day; cards that were found come back with the next week."""
        days = self.days
        precisions: list[float] = []
        for begin in np.unique(days.week[rows]).tolist():
            own = rows & (days.week == begin)
            columns = days.day[own], days.account[own], days.fraud[own], self.scores[name][own]
            precisions += card_precisions(*columns, CARDS).values()
        return precisions


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None
