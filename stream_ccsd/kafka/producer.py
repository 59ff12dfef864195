"""The worker's producer: sends messages and returns when the broker has them, however long that takes."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerClosed,
    UnknownProducerId,
)
from aiokafka.partitioner import DefaultPartitioner

from stream_ccsd.kafka.client import BrokerError, explain, start_client
from stream_ccsd.kafka.codec import OutgoingRecord, fitted, shortened
from stream_ccsd.kafka.settings import WorkerSettings

log = logging.getLogger(__name__)

_LARGEST = 64 << 20
# Kafka's own default, where a topic does not say what it takes.
_USUAL = 1_048_588
_PAUSE = 1.0
# The client gives up, but a new one may well succeed.
_FOR_A_NEW_CLIENT = (KafkaTimeoutError, OutOfOrderSequenceNumber, ProducerClosed, UnknownProducerId)
_choose = DefaultPartitioner()


@lru_cache(1 << 16)
def _partition(key: bytes, count: int) -> int:
    """Cached for the accounts that were last seen: the hash is written in Python."""
    return int(_choose(key, range(count), ()))


class Producer:
    """An idempotent producer: a message that had to be sent again by the client is in its topic once, in its place."""

    def __init__(self, settings: WorkerSettings, largest_letter: int | None = None) -> None:
        self._settings = settings
        self._largest_letter = min(largest_letter or _USUAL, _LARGEST)
        self._producer: Any = None
        self._changing = asyncio.Lock()

    async def start(self) -> None:
        """Connect."""
        careful = self._settings.guarantee == "effectively-once"
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self._settings.brokers,
            client_id=f"{self._settings.group}-outbox",
            acks="all" if careful else 1,
            enable_idempotence=careful,
            max_batch_size=1 << 18,
            max_request_size=_LARGEST,  # what is too large is for the broker to say: it knows its topics
            **self._settings.security().client_options(),
        )
        await start_client(self._producer, self._settings.brokers)

    async def stop(self) -> None:
        """Disconnect; what was confirmed is confirmed."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.stop()

    async def confirm(self, outputs: Sequence[OutgoingRecord]) -> list[int]:
        """Send messages in order; returns their offsets when the broker has all of them.

        Where the client gives up (no leader for long, a sequence lost), all of them are sent again by a new one.

        Raises
        ------
        BrokerError
            If the broker will never take them: no rights, no such topic.
        """
        letters = self._settings.dead_letters
        outputs = [fitted(o, self._largest_letter) if o.topic == letters else o for o in outputs]
        while True:
            async with self._changing:
                producer = self._producer
            failed: BaseException | None = None
            offsets: list[int] = []
            for sent, output in zip(await _send(producer, outputs), outputs, strict=True):
                if isinstance(sent, int):
                    offsets.append(sent)
                elif isinstance(sent, MessageSizeTooLargeError) and self._can_be_shorter(output, len(outputs)):
                    offsets += await self.confirm([shortened(output)])
                else:
                    failed = failed or sent
            if failed is None:
                return offsets
            if not isinstance(failed, _FOR_A_NEW_CLIENT) and not getattr(failed, "retriable", False):
                raise BrokerError(explain(self._settings.brokers, failed)) from failed
            log.warning("sending again", extra={"error": repr(failed), "messages": len(outputs)})
            await self._replace(producer)

    async def _replace(self, failed: Any) -> None:
        """A new client in the failed one's place, as soon as the broker answers; others may have seen to it."""
        async with self._changing:
            while self._producer is failed or self._producer is None:
                await self.stop()
                await asyncio.sleep(_PAUSE)
                try:
                    await self.start()
                except BrokerError as error:
                    self._producer = None
                    log.warning("waiting for the broker", extra={"error": str(error)})

    def _can_be_shorter(self, output: OutgoingRecord, together: int) -> bool:
        """Whether a smaller request may pass: the broker refuses all messages of one that is too large."""
        shorter = together > 1 or shortened(output) is not output
        return shorter and output.topic == self._settings.dead_letters


async def _send(producer: Any, outputs: Sequence[OutgoingRecord]) -> list[int | BaseException]:
    """Offsets or errors, in the order of the messages.

    They are put into batches here, one confirmation each: a message given to the client by itself costs a future, a
    look at the topic and a hash of its key, more than all else that is done with it on its way out.
    """
    numbers: dict[tuple[str, int], list[int]] = defaultdict(list)
    sent: list[int | BaseException] = [KafkaError()] * len(outputs)
    placing = {topic: await _placing(producer, topic) for topic in {output.topic for output in outputs}}
    for number, (topic, key, _, _, partition) in enumerate(outputs):
        place = placing[topic]
        if isinstance(place, KafkaError):
            sent[number] = place
        else:
            numbers[topic, place(key) if partition is None else partition].append(number)
    parts = [_send_to(producer, *place, [outputs[n] for n in part]) for place, part in numbers.items()]
    for part, results in zip(numbers.values(), await asyncio.gather(*parts), strict=True):
        for number, result in zip(part, results, strict=True):
            sent[number] = result
    return sent


async def _send_to(
    producer: Any, topic: str, partition: int, outputs: Sequence[OutgoingRecord]
) -> list[int | BaseException]:
    """The same for one partition. A batch that fails has failed for each of its messages."""
    waiting: list[tuple[int, asyncio.Future[Any]]] = []
    first = 0
    try:
        while first < len(outputs):
            batch = producer.create_batch()
            for _, key, value, headers, _ in outputs[first:] if first else outputs:
                if batch.append(timestamp=None, key=key, value=value, headers=headers) is None:
                    break  # it is full; an empty one takes any message
            batch.close()
            waiting.append((batch.record_count(), await producer.send_batch(batch, topic, partition=partition)))
            first += batch.record_count()
        error: BaseException | None = None
    except KafkaError as failed:
        error = failed
    results: list[int | BaseException] = []
    done = await asyncio.gather(*(future for _, future in waiting), return_exceptions=True)
    for (count, _), of in zip(waiting, done, strict=True):
        results += [of] * count if isinstance(of, BaseException) else range(of.offset, of.offset + count)
    return results if error is None else results + [error] * (len(outputs) - len(results))


async def _placing(producer: Any, topic: str) -> Callable[[bytes | None], int] | KafkaError:
    """Which partition a key belongs to, as every client of Kafka has it; or why that cannot be said."""
    try:
        known = sorted(await producer.partitions_for(topic))
    except KafkaError as error:
        return error
    there = list(producer.client.cluster.available_partitions_for_topic(topic))
    return lambda key: _choose(None, known, there) if key is None else known[_partition(key, len(known))]
