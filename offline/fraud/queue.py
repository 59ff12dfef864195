"""What investigators look at: each day so many cards, and none twice while its fraud is being dealt with."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from offline.fraud.metrics import highest_by_card
from stream_ccsd.numeric import AnyArray, FloatArray, IntArray

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

        ``worth`` is what a verdict on each transaction would teach: a share of the budget goes by its sum.
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
