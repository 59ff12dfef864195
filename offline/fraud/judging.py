"""Figures of scores over a stream: overall, by week, and over days of one's choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offline.fraud.days import Days
from offline.fraud.desk import Worked
from offline.fraud.metrics import Figures, card_precisions, ranking
from stream_ccsd.numeric import AnyArray, FloatArray

CARDS = 100
"""Of CP@100."""


@dataclass(frozen=True, eq=False)
class Judged:
    """Scores of the same stream by name, and what came of the queue that each of them had."""

    days: Days
    scores: Mapping[str, FloatArray]
    worked: Mapping[str, Sequence[Worked]]
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
