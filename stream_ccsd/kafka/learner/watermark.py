"""Which scores and verdicts each model update learns from: a pure function of what the topics hold, in broker order.

Every message has its broker's timestamp. Scores and verdicts of all partitions are merged in the order of these. A
model update is made at the first moment of *that* time at which every partition has come as far. So a learner that
reads the topics again years later decides as the one that was there.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from stream_ccsd.kafka.follow import Once
from stream_ccsd.learning.learner import CONFIRMED, LEAP
from stream_ccsd.learning.schedule import Schedule
from stream_ccsd.verdict import Verdict


class ArrivedRecord(NamedTuple):
    """A message and when its broker got it, in seconds; arrivals are in order."""

    time: float
    topic: str
    partition: int
    offset: int
    number: int  # no two are the same: what was found is never compared
    found: Any


Place = tuple[str, int]
"""Topic and partition."""


class EventTimeMerge:
    """Messages of several partitions, in the order of their timestamps.

    Within a partition a timestamp counts as no earlier than the one before it: producers may give their own.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        self._newest: dict[Place, float] = dict.fromkeys(places, -inf)
        self._waiting: list[ArrivedRecord] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, place: Place, offset: int, time: float, found: Any) -> None:
        """A message as it was read; those of a partition come in their order."""
        self._newest[place] = time = max(time, self._newest[place])
        heapq.heappush(self._waiting, ArrivedRecord(time, *place, offset, self._number, found))
        self._number += 1

    def reached(self, ends: Mapping[Place, float]) -> float:
        """The time before which nothing more can come; ``ends`` are partitions of which everything was read by then."""
        return min((max(ends.get(place, -inf), newest) for place, newest in self._newest.items()), default=-inf)

    def behind(self) -> list[Place]:
        """Partitions to be read first when others are far ahead of them."""
        furthest = min(self._newest.values(), default=-inf)
        return [place for place, newest in self._newest.items() if newest <= furthest]

    def until(self, time: float) -> Iterator[ArrivedRecord]:
        """Those before this time, in order."""
        while self._waiting and self._waiting[0].time < time:
            yield heapq.heappop(self._waiting)


@dataclass(frozen=True)
class UpdateBatch:
    """What one model update learns from."""

    moment: float
    scores: list[dict[str, Any]]
    verdicts: list[Verdict]


class Watermark:
    """Scores and verdicts that no model update has seen yet, and when the next one is due; fed in order of arrival.

    A model update of moment M sees the scores of times before M and the verdicts of times up to M that have arrived
    when every partition that anything came on has reached M, or nothing has come on it for ``idle`` seconds. What comes
    later is for the next model update. Copies count once.
    """

    def __init__(self, schedule: Schedule, idle: float) -> None:
        self.schedule, self._idle = schedule, idle
        self._newest: dict[int, float] = {}  # of the stream's time, by partition
        self._ahead: dict[int, int] = {}  # scores in a row that are much later than the next model update, by partition
        self._heard: dict[int, float] = {}  # arrival of the last message, by partition
        self._earliest, self._latest = inf, -inf
        self._held: float | None = None
        self._scores: list[dict[str, Any]] = []
        self._verdicts: list[Verdict] = []
        self._once, self._said = Once(), Once()

    @property
    def moment(self) -> float | None:
        """Of the next model update; None before anything has come."""
        if self._held is not None:
            return self._held + self.schedule.every
        return None if self._earliest == inf else self.schedule.first_after(self._earliest)

    @property
    def pending(self) -> int:
        """Scores and verdicts that no model update has seen."""
        return len(self._scores) + len(self._verdicts)

    def enter_score(self, arrived: float, partition: int, record: dict[str, Any]) -> bool:
        """A score off a partition of its topic; whether it is new."""
        self._heard[partition] = arrived
        # With whose it is: a forged one of a place to come must not take the place of the one that will be there.
        if not self._once.is_new(f"{record['partition']}/{record['position']}/{record['account']}/{record['id']}"):
            return False
        time = record["time"]
        self._earliest = min(time, self._earliest)
        if not self._is_mistaken(partition, time):
            self._newest[partition] = max(time, self._newest.get(partition, -inf))
            self._latest = max(time, self._latest)
        if record["inputs"] is not None:
            self._scores.append(record)
        return True

    def _is_mistaken(self, partition: int, time: float) -> bool:
        """Whether a date looks like a mistake, as a learner has it: no update follows it, unless others agree."""
        moment = self.moment
        leaps = moment is not None and time >= moment + LEAP * self.schedule.every
        self._ahead[partition] = self._ahead.get(partition, 0) + 1 if leaps else 0
        return 0 < self._ahead[partition] < CONFIRMED

    def enter_verdict(self, verdict: Verdict) -> bool:
        """A verdict; whether it is new."""
        if not self._said.is_new(json.dumps(verdict.to_dict())):
            return False
        self._verdicts.append(verdict)
        return True

    def next(self, now: float) -> UpdateBatch | None:
        """The model update that is due by this time of arrival, before whatever arrives then; None if there is none."""
        moment = self.moment
        if moment is None or self._latest < moment:
            return None
        for partition, newest in self._newest.items():
            if newest < moment and self._heard[partition] + self._idle > now:
                return None
        self._held = moment
        scores = [record for record in self._scores if record["time"] < moment]
        verdicts = [verdict for verdict in self._verdicts if verdict.time <= moment]
        self._scores = [record for record in self._scores if record["time"] >= moment]
        self._verdicts = [verdict for verdict in self._verdicts if verdict.time > moment]
        scores.sort(key=lambda record: (record["time"], record["partition"], record["position"]))
        verdicts.sort(key=lambda verdict: (verdict.time, *verdict.key))  # of one key, the order of arrival stays
        return UpdateBatch(moment, scores, verdicts)
