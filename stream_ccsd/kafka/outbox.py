"""The worker's producer: sends messages and returns when the broker has them, however long that takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
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

from stream_ccsd.kafka.connection import BrokerError, explain, start_client
from stream_ccsd.kafka.messages import OutgoingRecord, fitted, shortened
from stream_ccsd.kafka.settings import WorkerSettings

log = logging.getLogger(__name__)

_LARGEST = 64 << 20
# Kafka's own default, where a topic does not say what it takes.
_USUAL = 1_048_588
_PAUSE = 1.0
# The client gives up, but a new one may well succeed.
_FOR_A_NEW_CLIENT = (KafkaTimeoutError, OutOfOrderSequenceNumber, ProducerClosed, UnknownProducerId)


class Outbox:
    """An idempotent producer: a message that had to be sent again by the client is in its topic once, in its place."""

    def __init__(self, settings: WorkerSettings, largest_letter: int | None = None) -> None:
        self._settings = settings
        self._largest_letter = largest_letter or _USUAL
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

    async def confirm(self, outputs: Sequence[OutgoingRecord], partition: int | None = None) -> list[int]:
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
            for sent, output in zip(await _send(producer, outputs, partition), outputs, strict=True):
                if isinstance(sent, MessageSizeTooLargeError) and self._can_be_shorter(output, len(outputs)):
                    offsets += await self.confirm([shortened(output)], partition)
                elif isinstance(sent, BaseException):
                    failed = failed or sent
                else:
                    offsets.append(sent.offset)
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


async def _send(producer: Any, outputs: Iterable[OutgoingRecord], partition: int | None) -> list[Any]:
    """Offsets or errors, in the order of the messages."""
    waiting = []
    for topic, key, value, headers in outputs:
        try:
            waiting.append(await producer.send(topic, value, key=key, headers=headers, partition=partition))
        except KafkaError as error:
            waiting.append(_failed(error))
    return await asyncio.gather(*waiting, return_exceptions=True)


def _failed(error: KafkaError) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future
