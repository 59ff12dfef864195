"""Follow a topic of alerts: each alert is shown once, as it comes.

This is the consumer's half of the guarantee. :class:`Progress` says how far partitions were read, and what a broker had
deleted before that: retention does not wait for readers.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from stream_ccsd.kafka.client import BrokerError, Security, admin_client, explain, start_client
from stream_ccsd.kafka.faust.metadata import describe
from stream_ccsd.transaction import MAX_NUMBER

# After a failure a worker repeats at most what one commit interval held; this is many times that.
_REMEMBERED = 100_000


class Once:
    """Whether an id is new; the newest ids are remembered.

    >>> once = Once(2)
    >>> [once.is_new(i) for i in "aabac"]
    [True, False, True, False, True]
    """

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self._remembered = remembered
        self._seen: OrderedDict[str, None] = OrderedDict()

    def is_new(self, identity: str) -> bool:
        """True the first time."""
        if identity in self._seen:
            self._seen.move_to_end(identity)
            return False
        self._seen[identity] = None
        if len(self._seen) > self._remembered:
            self._seen.popitem(last=False)
        return True


@dataclass
class Followed:
    """What came by."""

    shown: int = 0
    foreign: int = 0
    """Messages that are no alerts."""


async def follow_alerts(
    brokers: str,
    topic: str,
    security: Security,
    show: Callable[[dict[str, Any]], None],
    *,
    wanted: Callable[[dict[str, Any]], bool] = lambda alert: True,
    from_beginning: bool = False,
    limit: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Followed:
    """Show each alert once, as it comes, until stopped or the limit is reached; returns how many there were.

    Raises
    ------
    BrokerError
        If the broker cannot be reached or entered, or has no such topic; none is created by asking.
    """
    async with admin_client(brokers, security) as admin:
        if topic not in (await describe(admin, [topic])).topics:
            raise BrokerError(f"{brokers} has no topic {topic!r}: check its name; has a worker been started?")
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=brokers,
        auto_offset_reset="earliest" if from_beginning else "latest",
        isolation_level="read_committed",
        **security.client_options(),
    )
    once, followed = Once(), Followed()
    try:
        await start_client(consumer, brokers)
        while not stop():
            batches = await consumer.getmany(timeout_ms=200)
            for record in (record for batch in batches.values() for record in batch):
                alert = parse_alert(record.value)
                if alert is None:
                    followed.foreign += 1
                    continue
                if not once.is_new(f"{alert['partition']}/{alert['position']}") or not wanted(alert):
                    continue
                show(alert)
                followed.shown += 1
                if limit is not None and followed.shown >= limit:
                    return followed
            await asyncio.sleep(0)
    except KafkaError as error:
        raise BrokerError(explain(brokers, error)) from error
    finally:
        await consumer.stop()
    return followed


def parse_alert(value: bytes | None) -> dict[str, Any] | None:
    """An alert with everything that is asked of one; None for what is none, which a topic may hold too."""
    try:
        alert = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(alert, dict):
        return None
    texts = all(isinstance(alert.get(name), str) for name in ("headline", "account"))
    numbers = [alert.get(name) for name in ("partition", "position", "time")]
    if not texts or any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
        return None
    partition, position, time = numbers
    whole = isinstance(partition, int) and isinstance(position, int)
    return alert if whole and abs(time) <= MAX_NUMBER else None  # type: ignore[arg-type]


Place = tuple[str, int]
"""Topic and partition."""


class Progress:
    """The next offset of each partition, and stretches that were passed over.

    Such a stretch may hold ends of Kafka's transactions, which are no messages; what of it lies before the first offset
    that the broker still has is lost. ``missed`` counts what of a stretch is not known already: all of it, unless
    reading began before what is known.

    >>> progress = Progress({("scores", 0): 5})
    >>> for offset in (5, 6, 9, 20):
    ...     progress.read(("scores", 0), offset)
    >>> progress.gaps(), progress.lost({("scores", 0): 18})
    ({('scores', 0)}, {('scores', 0): 10})
    >>> progress.gaps()
    set()
    """

    def __init__(
        self,
        positions: Mapping[Place, int],
        missed: Callable[[Place, int, int], int] = lambda place, first, end: end - first,
    ) -> None:
        self._next = dict(positions)  # those that are not there begin with whatever comes
        self._missed = missed
        self._passed: list[tuple[Place, int, int]] = []

    def read(self, place: Place, offset: int) -> None:
        """A message."""
        self.reach(place, offset)
        self._next[place] = max(self._next[place], offset + 1)

    def reach(self, place: Place, position: int) -> None:
        """Whatever lies before this was read, or is not there."""
        before = self._next.setdefault(place, position)
        if position > before:
            self._passed.append((place, before, position))
            self._next[place] = position

    def is_past(self, ends: Mapping[Place, int]) -> set[str]:
        """Topics that end before what was read of them: made anew, or their brokers have lost data."""
        return {place[0] for place, end in ends.items() if self._next.get(place, 0) > end}

    def gaps(self) -> set[Place]:
        """Partitions of which something was passed over."""
        return {place for place, _, _ in self._passed}

    def lost(self, beginnings: Mapping[Place, int]) -> dict[Place, int]:
        """How many messages were deleted in front of us, by the first offsets there are; each is reported once."""
        found: dict[Place, int] = {}
        for place, first, end in self._passed:
            end = min(end, beginnings.get(place, 0))
            if end > first and (count := self._missed(place, first, end)):
                found[place] = found.get(place, 0) + count
        self._passed.clear()
        return found


def by_topic(lost: Mapping[Place, int], topics: Iterable[str]) -> dict[str, int]:
    """The same by topic."""
    counts = {topic: sum(count for (name, _), count in lost.items() if name == topic) for topic in topics}
    return {topic: count for topic, count in counts.items() if count}
