"""The Faust app of a worker: consumer group, account table, recovery. What is done with a batch is the processor's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import faust
from faust.types import TP

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.faust.consumer import BatchConsumer, Handler
from stream_ccsd.kafka.faust.internals import FaustRecovery, crashed, is_ahead
from stream_ccsd.kafka.faust.table import AccountTable, store_is_ahead
from stream_ccsd.kafka.settings import WorkerSettings


class WorkerApp:
    """A Faust app around one topic and one table, with the few of its parts that a worker asks for."""

    def __init__(
        self,
        settings: WorkerSettings,
        partitions: int,
        handler: Handler,
        on_rebalance: Callable[[], None],
    ) -> None:
        self.settings = settings
        self._recovery_total = 0
        self.faust = _make_app(settings)
        self._recovery = FaustRecovery(self.faust)
        self.table = AccountTable.declare(self.faust, settings, partitions)
        topic = self.faust.topic(settings.transactions, key_type=bytes, value_type=bytes, partitions=partitions)
        self.faust.topics.add(topic)
        self.faust.transport.Consumer = partial(BatchConsumer, topic=settings.transactions, handler=handler)

        async def revoked(sender: Any, partitions: Any, **kwargs: Any) -> None:
            self._recovery_total = 0
            on_rebalance()

        self.faust.on_partitions_revoked.connect(revoked, weak=False)

    @property
    def crashed(self) -> asyncio.Event:
        """Set when Faust cannot go on."""
        return crashed(self.faust)

    def failure(self) -> BaseException | None:
        """Why Faust cannot go on, in our words where there are any; None if it can."""
        error: BaseException | None = self.table.failure or self.faust.crash_reason
        if error is None and self.crashed.is_set():
            error = StreamCcsdError("Faust ended without saying why")
        return store_is_ahead(self.settings) if error is not None and is_ahead(error) else error

    @property
    def consumer(self) -> BatchConsumer:
        """The consumer of this app."""
        consumer: BatchConsumer = self.faust.consumer
        return consumer

    def assigned(self) -> list[int]:
        """Partitions of the transactions this worker has now."""
        try:
            places = self.consumer.assignment()
        except Exception:  # before the consumer has started there is no assignment
            return []
        return sorted(tp.partition for tp in places if tp.topic == self.settings.transactions)

    def ready(self) -> bool:
        """Whether this worker has its partitions, and their states."""
        recovered = self._recovery.completed
        return recovered and not self.faust.rebalancing and not self.faust.in_recovery and not self.faust.should_stop

    def check(self) -> None:
        """Raise what has ended a part without which nothing is scored, and which nobody else tells of."""
        self.consumer.check()
        ended = self._recovery.failure()
        if self.table.failure is not None or ended is not None:
            raise self.failure() or StreamCcsdError(
                f"the recovery of account states has ended ({ended!r}): the broker was away for too long. Nothing is "
                "lost: start the worker again"
            )

    def recovery(self) -> tuple[int, float]:
        """Changelog records still to be read, and the share that is done."""
        if not self.faust.in_recovery:
            return 0, 1.0 if self._recovery.completed else 0.0
        remaining = self._recovery.remaining()
        total = max(self._recovery_total, remaining)
        self._recovery_total = total
        return remaining, 1.0 - remaining / total if total else 1.0

    def lag(self) -> dict[int, int]:
        """Messages between what was handled and the end of those that are committed, by partition."""
        behind = {}
        for partition in self.assigned():
            end = self.consumer.highwater(TP(self.settings.transactions, partition))
            if end is not None:
                behind[partition] = max(0, end - self.consumer.handled(partition))
        return behind

    async def log_end(self, partition: int) -> int:
        """Where a partition of the transactions ends."""
        place = TP(self.settings.transactions, partition)
        return int((await self.consumer.highwaters(place))[place])

    def changelog_end(self, partition: int) -> int | None:
        """The last offset of a changelog that was recovered."""
        return self._recovery.end(self.table.changelog_partition(partition))

    def finished(self, partition: int, next_offset: int) -> None:
        """Offsets before this one may be committed."""
        self.consumer.finished(partition, next_offset)


def _make_app(settings: WorkerSettings) -> faust.App:
    security = settings.security()
    credentials: Any = None
    context = security.ssl_context()
    if security.sasl_mechanism:
        credentials = faust.SASLCredentials(
            mechanism=security.sasl_mechanism,
            username=security.sasl_username,
            password=security.sasl_password,
            ssl_context=context,
        )
    elif context is not None:
        credentials = faust.SSLCredentials(context=context)
    session = settings.session_timeout
    return faust.App(
        settings.group,
        broker=[f"kafka://{address}" for address in settings.brokers.split(",")],
        broker_credentials=credentials,
        broker_commit_interval=settings.commit_interval,
        broker_session_timeout=session,
        broker_heartbeat_interval=settings.heartbeat_interval,
        broker_request_timeout=max(40.0, 2 * session),
        broker_rebalance_timeout=max(30.0, 2 * session),
        broker_max_poll_records=settings.batch,
        consumer_max_fetch_size=1 << 20,
        consumer_auto_offset_reset="earliest",
        datadir=str(settings.state_dir),
        store=f"{settings.store}://",
        table_standby_replicas=settings.standby_replicas,
        topic_allow_declare=False,  # they exist: the worker made them before
        topic_disable_leader=True,
        web_enabled=False,
        autodiscover=False,
    )
