"""A source into a Kafka topic: each transaction as JSON, keyed by its account, in order, at the chosen pace."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, KafkaTimeoutError

from replay.sources.source import Pace, Source
from replay.state.batch_output import dead_letter
from stream_ccsd.kafka.client import BrokerError, Security, explain, start_client
from stream_ccsd.kafka.codec import transaction_message
from stream_ccsd.records import DeadLetter
from stream_ccsd.transaction import Refusal

# Messages on their way that nobody has confirmed yet: enough for full speed, few enough for any memory.
_UNCONFIRMED = 10_000
_SLEEP = 0.2
_PATIENCE, _PATIENCE_WHEN_STOPPED = 60.0, 5.0


@dataclass
class Produced:
    """What went out, and what could not."""

    sent: int = 0
    seconds: float = 0.0
    complete: bool = True
    dead_letters: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return {
            "sent": self.sent,
            "events_per_s": self.sent / self.seconds if self.seconds else None,
            "dead_letters": self.dead_letters,
            "complete": self.complete,
        }


def produce(
    source: Source,
    brokers: str,
    topic: str,
    security: Security | None = None,
    pace: Pace | None = None,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[], None] = lambda: None,
    bury: Callable[[DeadLetter], None] = lambda letter: None,
) -> Produced:
    """Send every transaction of a source; returns when the broker has confirmed the last one.

    Records that are no transactions are handed to ``bury``.

    The producer is idempotent: a message that had to be sent again is in the topic once, and in its place.

    Raises
    ------
    BrokerError
        If the broker cannot be reached, or refuses or does not confirm a message.
    """

    async def run() -> Produced:
        async with _producer(brokers, security) as producer:
            return await _send_all(producer, source, topic, pace or Pace(), stop, progress, bury)

    return asyncio.run(run())


def produce_messages(
    messages: Iterable[tuple[bytes, bytes]], brokers: str, topic: str, security: Security | None = None
) -> None:
    """Send keys and values in their order; returns when the broker has confirmed the last one.

    Raises
    ------
    BrokerError
        If the broker cannot be reached, or refuses or does not confirm one.
    """

    async def run() -> None:
        async with _producer(brokers, security) as producer:
            sent = [await producer.send(topic, value, key=key) for key, value in messages]
            for confirmation in sent:
                await _confirmed(confirmation, lambda: False)

    asyncio.run(run())


@contextlib.asynccontextmanager
async def _producer(brokers: str, security: Security | None) -> AsyncIterator[Any]:
    producer = AIOKafkaProducer(
        bootstrap_servers=brokers,
        acks="all",
        enable_idempotence=True,
        linger_ms=2,
        max_batch_size=1 << 18,
        **(security or Security()).client_options(),
    )
    try:
        await start_client(producer, brokers)
        yield producer
    except KafkaError as error:
        raise BrokerError(explain(brokers, error)) from error
    finally:
        # It would wait for ever for a broker that has gone.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(producer.stop(), timeout=5.0)


async def _send_all(
    producer: Any,
    source: Source,
    topic: str,
    pace: Pace,
    stop: Callable[[], bool],
    progress: Callable[[], None],
    bury: Callable[[DeadLetter], None],
) -> Produced:
    done, waiting = Produced(), deque[Any]()
    begun = time.perf_counter()
    for item in source.items():
        if isinstance(item.parsed, Refusal):
            bury(dead_letter(item, item.parsed))
            done.dead_letters += 1
            continue
        delay = pace.delay(item.parsed.time)
        while delay > 0 and not stop():
            await asyncio.sleep(min(delay, _SLEEP))
            delay -= _SLEEP
        if stop():
            done.complete = False
            break
        waiting.append(await producer.send(topic, transaction_message(item.parsed), key=item.parsed.account.encode()))
        done.sent += 1
        while len(waiting) > _UNCONFIRMED:
            await _confirmed(waiting.popleft(), stop)
        if not done.sent % 1000:
            progress()
    for sent in waiting:
        await _confirmed(sent, stop)
    done.seconds = time.perf_counter() - begun
    return done


async def _confirmed(sent: Any, stop: Callable[[], bool]) -> None:
    """Wait until the broker has a message, as long as that is of any use."""
    begun = time.monotonic()
    while not sent.done():
        await asyncio.wait([sent], timeout=_SLEEP)
        if not sent.done() and time.monotonic() - begun > (_PATIENCE_WHEN_STOPPED if stop() else _PATIENCE):
            raise KafkaTimeoutError("messages were not confirmed")
    sent.result()
