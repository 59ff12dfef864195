"""A source into a Kafka topic: each transaction as JSON, keyed by its account, in order, at the chosen pace."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from replay.harvest import DeadLetter
from replay.pace import Pace
from replay.source import Source
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.transaction import Refusal, Transaction

# Messages on their way that nobody has confirmed yet: enough for full speed, few enough for any memory.
_UNCONFIRMED = 10_000
_SLEEP = 0.2


@dataclass(frozen=True)
class KafkaTarget:
    """Where to: brokers and a topic."""

    brokers: str
    topic: str

    @classmethod
    def parse(cls, url: str) -> KafkaTarget:
        """From ``kafka://host:port/topic``; several brokers are separated by commas.

        >>> KafkaTarget.parse("kafka://localhost:9092/transactions")
        KafkaTarget(brokers='localhost:9092', topic='transactions')
        """
        found = re.fullmatch(r"kafka://([^/\s]+:\d+(?:,[^/\s]+:\d+)*)/([A-Za-z0-9._-]{1,249})", url)
        if not found:
            raise StreamCcsdError(f"expected kafka://host:port/topic, got {url!r}")
        return cls(found[1], found[2])


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


def message(transaction: Transaction) -> bytes:
    """The documented JSON of one transaction."""
    values = {name: getattr(transaction, name) for name in Transaction.__dataclass_fields__}
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()


def produce(
    source: Source,
    target: KafkaTarget,
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
    StreamCcsdError
        If the broker cannot be reached, or refuses or does not confirm a message.
    """
    try:
        from aiokafka import AIOKafkaProducer  # noqa: PLC0415  (an extra)
        from aiokafka.errors import KafkaError  # noqa: PLC0415
    except ImportError as error:
        raise StreamCcsdError("sending to Kafka needs aiokafka: pip install 'stream-ccsd[kafka]'") from error

    async def run() -> Produced:
        producer = AIOKafkaProducer(
            bootstrap_servers=target.brokers, acks="all", enable_idempotence=True, linger_ms=2, max_batch_size=1 << 18
        )
        try:
            await producer.start()
            return await _send_all(producer, source, target.topic, pace or Pace(), stop, progress, bury)
        except KafkaError as error:
            raise StreamCcsdError(
                f"{target.brokers}: {error}: is the broker running, and may topic {target.topic!r} be written to?"
            ) from error
        finally:
            await producer.stop()

    return asyncio.run(run())


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
        if isinstance(item.found, Refusal):
            refusal = item.found
            bury(DeadLetter(item.position, item.line, refusal.reason, refusal.field, refusal.value, item.raw))
            done.dead_letters += 1
            continue
        delay = pace.delay(item.found.time)
        while delay > 0 and not stop():
            await asyncio.sleep(min(delay, _SLEEP))
            delay -= _SLEEP
        if stop():
            done.complete = False
            break
        waiting.append(await producer.send(topic, message(item.found), key=item.found.account.encode()))
        done.sent += 1
        while len(waiting) > _UNCONFIRMED:
            await waiting.popleft()
        if not done.sent % 1000:
            progress()
    for sent in waiting:
        await sent
    done.seconds = time.perf_counter() - begun
    return done
