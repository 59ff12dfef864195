"""Verdicts to their topic, from where learner and workers take them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from stream_ccsd.kafka.connection import BrokerError, admin_client, explain, start_client
from stream_ccsd.kafka.messages import verdict_message
from stream_ccsd.kafka.metadata import describe
from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.verdict import Verdict

# Somebody is waiting in front of a page: seconds, and milliseconds for the client.
PATIENCE = 10.0
_UNANSWERED = 5_000


class Sender:
    """An idempotent producer that is made when it is needed, and anew after a failure. One asyncio loop's."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._producer: Any = None
        self._one = asyncio.Lock()

    async def send(self, verdicts: Sequence[Verdict]) -> None:
        """Return when the broker has all of them, on all replicas that are in sync.

        Raises
        ------
        BrokerError
            If that is not certain; those that came through may be sent again, and count once.
        """
        brokers = self._settings.brokers
        async with self._one:
            try:
                async with asyncio.timeout(PATIENCE):
                    producer = await self._started()
                    waiting = [
                        await producer.send(self._settings.verdicts, verdict_message(v), key=v.account.encode())
                        for v in verdicts
                    ]
                    await asyncio.gather(*waiting)
            except BrokerError as error:  # it did not even begin
                raise BrokerError(f"not sent, try again: {error}") from error
            except (KafkaError, OSError, TimeoutError) as error:
                await self.close()
                raise BrokerError(f"not confirmed, try again: {explain(brokers, error)}") from error

    async def _started(self) -> Any:
        if self._producer is not None:
            return self._producer
        settings, security = self._settings, self._settings.security()
        async with admin_client(settings.brokers, security) as admin:
            if settings.verdicts not in (await describe(admin, [settings.verdicts])).topics:
                raise BrokerError(
                    f"{settings.brokers} has no topic {settings.verdicts!r}: start a worker or 'stream-ccsd learn', "
                    "which make it"
                )
        producer = AIOKafkaProducer(
            bootstrap_servers=settings.brokers,
            acks="all",
            enable_idempotence=True,
            request_timeout_ms=_UNANSWERED,
            **security.client_options(),
        )
        await start_client(producer, settings.brokers)
        self._producer = producer
        return producer

    async def close(self) -> None:
        """Forget the client; the next verdict gets a new one."""
        producer, self._producer = self._producer, None
        if producer is not None:
            # Without a broker it would wait for ever, and raises a cancellation of its own.
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await asyncio.wait_for(producer.stop(), timeout=2.0)
