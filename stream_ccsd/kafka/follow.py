"""Alerts off a topic as they come, each once: the consumer's half of the guarantee."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from stream_ccsd.kafka.connection import BrokerError, Security, explain, start_client

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
) -> int:
    """Show each alert once, as it comes, until stopped or the limit is reached; returns how many there were."""
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=brokers,
        auto_offset_reset="earliest" if from_beginning else "latest",
        isolation_level="read_committed",
        **security.client_options(),
    )
    once, shown = Once(), 0
    try:
        await start_client(consumer, brokers)
        if topic not in await consumer.topics():
            raise BrokerError(f"{brokers} has no topic {topic!r}: has a worker been started?")
        while not stop():
            batches = await consumer.getmany(timeout_ms=200)
            for record in (record for batch in batches.values() for record in batch):
                alert = _parse(record.value)
                if alert is None or not once.is_new(f"{alert['partition']}/{alert['offset']}") or not wanted(alert):
                    continue
                show(alert)
                shown += 1
                if limit is not None and shown >= limit:
                    return shown
            await asyncio.sleep(0)
    except KafkaError as error:
        raise BrokerError(explain(brokers, error)) from error
    finally:
        await consumer.stop()
    return shown


def _parse(value: bytes | None) -> dict[str, Any] | None:
    """An alert; None for what is none, which a topic may hold too."""
    try:
        found = json.loads(value or b"")
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"headline", "partition", "offset"} <= set(found) else None
