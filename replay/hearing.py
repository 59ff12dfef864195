"""Verdicts that are heard when the stream's time has come to them: nobody learns from what is not known yet."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from replay.source import Item
from stream_ccsd.transaction import Transaction
from stream_ccsd.verdict import Verdict


class PendingVerdicts:
    """Verdicts from anywhere, in any order, each given once when its time has come.

    >>> pending = PendingVerdicts([Verdict("x1", "C1", "fraud", "ann", 9.0), Verdict("x2", "C1", "normal", "ann", 3.0)])
    >>> [v.transaction for v in pending.audible(5.0)], [v.transaction for v in pending.audible(9.0)]
    (['x2'], ['x1'])
    """

    def __init__(self, verdicts: Iterable[Verdict] = ()) -> None:
        self._waiting: list[tuple[float, int, Verdict]] = []
        self._arrived = 0
        self.add(verdicts)

    def add(self, verdicts: Iterable[Verdict]) -> None:
        """More of them; one whose time is over is heard next."""
        for verdict in verdicts:
            heappush(self._waiting, (verdict.time, self._arrived, verdict))
            self._arrived += 1

    def audible(self, moment: float) -> list[Verdict]:
        """Those whose time has come by this moment, and that were not given before, by time and arrival."""
        heard = []
        while self._waiting and self._waiting[0][0] <= moment:
            heard.append(heappop(self._waiting)[2])
        return heard

    def waiting(self) -> list[Verdict]:
        """Those still to come, by time and arrival: what has to be remembered where a replay is stopped."""
        return [verdict for _, _, verdict in sorted(self._waiting, key=lambda entry: entry[:2])]


class ColumnVerdicts(PendingVerdicts):
    """A source's labels as verdicts, for evaluation: each fraud is found so long after it happened.

    A label that says no fraud is no verdict: it is silence, as it would be in life.
    """

    def __init__(self, delay: float, waiting: Iterable[Verdict] = ()) -> None:
        super().__init__(waiting)
        self.delay = delay

    def see(self, items: Iterable[Item]) -> None:
        """Items of the stream as they come by."""
        for item in items:
            t = item.parsed
            if item.label and isinstance(t, Transaction):
                self.add([Verdict(t.id, t.account, "fraud", "label", t.time + self.delay, source="label")])
