"""Messages of several topics into one order: what may be written next, and from where to read after a kill.

A score and its alert are written together, under one arrival number, so that who follows alerts by number misses none.
They come on two topics, in any order: a score that says it is an alert waits for it, with those behind it on its
partition, and an alert waits for its score. Neither waits for ever: a partner that is not there when its topic has been
read to the end, some seconds later, is not waited for any longer, and gets a number of its own should it still come.

Nothing here is asynchronous or knows Kafka's client; what waits in memory is read again after a kill.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, NamedTuple

from replay.mirror.messages import Message, parse_alert, parse_letter, parse_score
from replay.mirror.offsets import Seen
from stream_ccsd.calendar import Calendar
from stream_ccsd.kafka.codec import parse_verdict
from stream_ccsd.stores import Record
from stream_ccsd.transaction import Refusal
from stream_ccsd.verdict import Verdict

log = logging.getLogger(__name__)

Kind = Literal["scores", "alerts", "dead_letters", "verdicts"]
Place = tuple[str, int]
"""A topic's partition."""

# Seconds that a score and its alert may be apart: a worker sends them together.
_APART = 5.0
# Messages of a partition that may wait: then it is not read until some have gone.
_SCORES_AHEAD, _ALERTS_AHEAD = 5000, 1000
# Seconds without anything to write after which full partitions are not waited for.
_STUCK = 5.0


class Arrival(NamedTuple):
    """What gets one arrival number: a score with its alert, either without the other, or a dead letter."""

    stamp: float  # seconds since 1970, by the broker or the producer
    score: Record | None = None
    alert: Record | None = None
    letter: Record | None = None
    source: tuple[Place, int] = (("", 0), 0)  # where it was read, and its offset there


class _Waiting(NamedTuple):
    place: Place
    offset: int
    stamp: float
    due: float
    record: Record


_Head = tuple[float, Place, int, _Waiting]
_Origin = tuple[int, int, str, str]


@dataclass
class _Partition:
    kind: Kind
    position: int | None = None  # the next offset to read; None: the beginning
    queue: deque[_Waiting] = field(default_factory=deque)
    latest: float = -inf  # stamp: within a partition, order is by offset
    open: set[int] = field(default_factory=set)  # alerts that were read and not written
    again: set[int] = field(default_factory=set)  # of those that were read before a kill, those to be read again
    until: int = 0  # the others before this offset were written


class Intake:
    """What was read and not yet written. ``to_notes`` goes into each batch, and a new intake begins with that."""

    def __init__(
        self,
        topics: Mapping[Kind, str],
        notes: Mapping[str, Any] | None = None,
        is_recorded: Callable[[Record], bool] = lambda alert: False,
        is_stored: Callable[[Record], bool] = lambda score: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._kinds: dict[str, Kind] = {name: kind for kind, name in topics.items()}
        self._is_recorded, self._is_stored, self._clock = is_recorded, is_stored, clock
        notes = notes or {}
        self._seen = Seen(notes.get("seen"))
        self.foreign: Counter[str] = Counter(notes.get("foreign", {}))
        """Messages that are none of ours, by the kind of their topic."""
        self.lost: Counter[str] = Counter(notes.get("lost", {}))
        """Messages that were deleted before they were read here, by topic."""
        self.verdicts: list[Verdict] = []
        self._alerts: dict[_Origin, _Waiting] = {}  # by their transaction
        self._partitions: dict[Place, _Partition] = {}
        self._complete: dict[Kind, float] = {"scores": -inf, "alerts": -inf}
        self._moved = clock()
        for topic, partitions in notes.get("offsets", {}).items():
            for number, position in partitions.items():
                waiting = notes.get("open", {}).get(topic, {}).get(number, [])
                if topic in self._kinds:
                    self._resume((topic, int(number)), position, waiting)

    def _resume(self, place: Place, position: int, waiting: list[int]) -> None:
        partition = self._partition(place)
        partition.again, partition.until = set(waiting), position
        partition.position = min([position, *waiting])

    def _partition(self, place: Place) -> _Partition:
        return self._partitions.setdefault(place, _Partition(self._kinds[place[0]]))

    def start(self, place: Place) -> int | None:
        """Where to read on; None: from the beginning."""
        return self._partition(place).position

    def missed(self, place: Place, first: int, end: int) -> int:
        """How many of these offsets were not written before a kill."""
        partition = self._partition(place)
        again = sum(first <= offset < min(end, partition.until) for offset in partition.again)
        return again + max(0, end - max(first, partition.until))

    def wants(self, place: Place) -> bool:
        """Whether to read on now."""
        partition = self._partition(place)
        return len(partition.queue) < _SCORES_AHEAD and len(partition.open) < _ALERTS_AHEAD

    @property
    def pending(self) -> int:
        """Messages that were read and wait."""
        return sum(len(p.queue) + len(p.open) for p in self._partitions.values())

    def take(self, message: Message, calendar: Calendar | None = None) -> None:
        """A message, whatever it is; those of a partition in order."""
        place = message.topic, message.partition
        partition = self._partition(place)
        if partition.position is not None and message.offset < partition.position:
            return
        partition.position = message.offset + 1
        if message.offset < partition.until and message.offset not in partition.again:
            return
        now = self._clock()
        stamp = partition.latest = max(partition.latest, min(message.timestamp / 1000, now))
        try:
            found = self._parsed(partition.kind, message, calendar)
        except Exception:  # whatever it is, its neighbours go on
            log.exception("a message could not be read: %s/%s/%s", *place, message.offset)
            found = None
        if found is None:
            self.foreign[partition.kind] += 1
        elif isinstance(found, Verdict):
            self.verdicts.append(found)
        else:
            waiting = _Waiting(place, message.offset, stamp, stamp + _APART, found)
            if partition.kind != "alerts":
                partition.queue.append(waiting)
            elif _origin(found) not in self._alerts and not self._is_recorded(found):
                self._alerts[_origin(found)] = waiting
                partition.open.add(message.offset)

    def _parsed(self, kind: Kind, message: Message, calendar: Calendar | None) -> Record | Verdict | None:
        if kind == "scores":
            return parse_score(message.value)
        if kind == "alerts":
            return parse_alert(message.value)
        if kind == "dead_letters":
            return parse_letter(message)
        verdict = parse_verdict(message, calendar)
        return None if isinstance(verdict, Refusal) else verdict

    def pass_to(self, place: Place, position: int) -> None:
        """What lies before is no message: ends of transactions, and what was aborted or deleted."""
        partition = self._partition(place)
        partition.position = max(position, partition.position or 0)

    def complete(self, kind: Kind, at: float) -> None:
        """All that its topic held at this time was read."""
        self._complete[kind] = max(self._complete[kind], at)

    def ready(self, most: int) -> list[Arrival]:
        """What can be written now, the oldest first as far as partitions allow that; it is then behind us."""
        arrivals: list[Arrival] = []
        heads: list[_Head] = []
        for place, partition in self._partitions.items():
            self._offer(heads, place, partition)
        for lonely in self._lonely():
            heapq.heappush(heads, (lonely.stamp, lonely.place, lonely.offset, lonely))
        while heads and len(arrivals) < most:
            _, place, _, waiting = heapq.heappop(heads)
            if self._partitions[place].kind == "alerts":
                self._finish_alert(waiting)
                source = waiting.place, waiting.offset
                arrivals.append(Arrival(waiting.stamp, alert=waiting.record, source=source))
                continue
            self._partitions[place].queue.popleft()
            arrivals.append(self._written(waiting))
            self._offer(heads, place, self._partitions[place])
        if arrivals or not self.pending:
            self._moved = self._clock()
        elif self._clock() - self._moved > _STUCK and not all(map(self.wants, self._partitions)):
            arrivals = self._forced()
        return arrivals

    def _offer(self, heads: list[_Head], place: Place, partition: _Partition) -> None:
        """The next of a partition that can be written, if it can; copies of what was written are left behind."""
        while partition.queue:
            head = partition.queue[0]
            if self._is_copy(head):
                partition.queue.popleft()
                continue
            if partition.kind != "scores" or self._may_go(head):
                heapq.heappush(heads, (head.stamp, place, head.offset, head))
            return

    def _is_copy(self, head: _Waiting) -> bool:
        known = self._seen.has(_key(head), _offset(head), _said(head.record))
        if known is None:  # after a kill
            return self._kinds[head.place[0]] != "scores" or self._is_stored(head.record)
        return known

    def _may_go(self, head: _Waiting) -> bool:
        waits = head.record["alert"] and _origin(head.record) not in self._alerts
        return not waits or self._complete["alerts"] >= head.due

    def _lonely(self) -> list[_Waiting]:
        """Alerts whose score does not come; one that is read already may stand behind another that waits."""
        due = {o: w for o, w in self._alerts.items() if self._complete["scores"] >= w.due}
        if due:
            queued = (w for p in self._partitions.values() if p.kind == "scores" for w in p.queue)
            for waiting in queued:
                due.pop(_origin(waiting.record), None)
        return list(due.values())

    def _finish_alert(self, waiting: _Waiting) -> None:
        del self._alerts[_origin(waiting.record)]
        self._partitions[waiting.place].open.discard(waiting.offset)

    def _written(self, head: _Waiting) -> Arrival:
        self._seen.add(_key(head), _offset(head), _said(head.record))
        source = head.place, head.offset
        if self._kinds[head.place[0]] == "dead_letters":
            return Arrival(head.stamp, letter=head.record, source=source)
        alert = self._alerts.get(_origin(head.record))
        if alert is not None:
            self._finish_alert(alert)
        return Arrival(head.stamp, head.record, None if alert is None else alert.record, source=source)

    def _forced(self) -> list[Arrival]:
        """Scores and alerts wait for each other behind so many others that no more are read: one goes on alone."""
        blocked = [p.queue[0] for p in self._partitions.values() if p.queue]
        if not blocked:
            return []
        oldest = min(blocked, key=lambda head: head.stamp)
        self._partitions[oldest.place].queue.popleft()
        return [self._written(oldest)]

    def to_notes(self) -> dict[str, Any]:
        """From where to read on, were everything lost but what has been written."""
        offsets: dict[str, dict[str, int]] = {}
        waiting: dict[str, dict[str, list[int]]] = {}
        for (topic, number), partition in self._partitions.items():
            position = partition.queue[0].offset if partition.queue else partition.position
            if position is None:
                continue
            # What is to be read again after an earlier kill, and was not reached yet, is still to be read.
            unread = {o for o in partition.again if o >= (partition.position or 0)}
            is_behind = (partition.position or 0) < partition.until
            offsets.setdefault(topic, {})[str(number)] = partition.until if is_behind else position
            if partition.open or unread:
                waiting.setdefault(topic, {})[str(number)] = sorted(partition.open | unread)
        counts = {"foreign": dict(self.foreign), "lost": dict(self.lost)}
        return {"offsets": offsets, "open": waiting, "seen": self._seen.to_dict(), **counts}


def _origin(record: Record) -> _Origin:
    """The transaction that a score or an alert is about: its partition, offset, account and id."""
    identity: str = record["transaction" if "transaction" in record else "id"]
    return record["partition"], record["position"], record["account"], identity


def _said(record: Record) -> int:
    """Stands for the transaction behind a score or a dead letter: copies of it may be scored by another model."""
    names = ("raw",) if "raw" in record else ("id", "account", "time", "amount", "category", "merchant")
    return hash(tuple(record[name] for name in names))


def _offset(waiting: _Waiting) -> int:
    """The offset of what a score or a dead letter is about."""
    record = waiting.record
    offset: int = record["offset" if "offset" in record else "position"]
    return offset


def _key(waiting: _Waiting) -> str:
    """Under which places of transactions are remembered: on one partition of ours they come in their order."""
    (topic, number), record = waiting.place, waiting.record
    return f"{topic}/{number}/{record.get('topic', '')}/{record['partition']}"
