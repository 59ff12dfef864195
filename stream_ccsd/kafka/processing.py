"""What a worker does with a batch: score, confirm outputs, confirm states, store them, let offsets be committed.

The order is the guarantee. Whatever dies in between, the messages are read again and either passed over, because their
state was stored (and so their outputs confirmed), or scored again from the same state, to the same bits.

Scoring a batch while the states of the one before are on their way was tried: no more transactions a second, and each
waits longer, because batches get smaller and each has its price.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from stream_ccsd.kafka.consumer import Batch
from stream_ccsd.kafka.drift import DriftWatch
from stream_ccsd.kafka.messages import OutgoingRecord
from stream_ccsd.kafka.metrics import Metrics
from stream_ccsd.kafka.scoring import TOPIC, PartitionScorer, Scored, check_topic
from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.kafka.table import AccountStore, store_is_ahead
from stream_ccsd.library.model import Model
from stream_ccsd.status import Status
from stream_ccsd.transaction import Schema

log = logging.getLogger(__name__)


class Partitions(Protocol):
    """What the processor asks about the partitions of this worker."""

    async def log_end(self, partition: int) -> int:
        """Where the transactions' partition ends."""

    def changelog_end(self, partition: int) -> int | None:
        """The last offset of its changelog that was recovered."""

    def finished(self, partition: int, next_offset: int) -> None:
        """Offsets before this one may be committed."""


class Processor:
    """Handles batches one after the other; one thread scores them, so that the event loop stays free."""

    def __init__(
        self,
        settings: WorkerSettings,
        schema: Schema,
        model: Model,
        store: Callable[[], AccountStore],
        confirm: Callable[[Sequence[OutgoingRecord], int | None], Coroutine[Any, Any, list[int]]],
        metrics: Metrics,
        topic_id: str | None = None,
    ) -> None:
        self.partitions: Partitions
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()
        self.begun: float | None = None
        self.model = model
        self._next_model = model
        self._settings, self._schema, self._store, self._confirm = settings, schema, store, confirm
        self._metrics, self._topic_id = metrics, topic_id
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scoring")
        self._scorers: dict[int, PartitionScorer] = {}
        self._log_ends: dict[int, int] = {}
        self._changelog_ends: dict[int, int | None] = {}
        self._drift = DriftWatch(metrics)

    def use(self, model: Model) -> None:
        """Score with another model from the next batch on; states stay."""
        self._next_model = model

    def forget_partitions(self) -> None:
        """After a rebalance: nothing that was known of a partition holds any longer."""
        for known in (self._scorers, self._log_ends, self._changelog_ends):
            known.clear()
        self._drift.forget()

    def close(self) -> None:
        """End the scoring thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def fail(self, error: BaseException) -> None:
        """The worker cannot go on."""
        self.failure = self.failure or error
        self.failed.set()

    async def handle(self, batch: Batch) -> None:
        """One batch, from scores to committable offsets. A failure ends the worker: it is never passed over."""
        self.begun = time.monotonic()
        try:
            await self._handle(batch)
        except Exception as error:
            # A group's only failure is what there is to say.
            alone = error.exceptions[0] if isinstance(error, ExceptionGroup) and len(error.exceptions) == 1 else error
            self.fail(alone)
            raise
        finally:
            self.begun = None

    async def _handle(self, batch: Batch) -> None:
        if self._next_model is not self.model:
            self.model = self._next_model
            self._scorers.clear()
        for partition in batch:
            if partition not in self._log_ends:
                await self._begin(partition)
        begun = time.perf_counter()
        scored = await asyncio.get_running_loop().run_in_executor(self._thread, self._score, batch)
        scored_at = time.perf_counter()
        outputs = [output for done in scored.values() for output in done.outputs]
        async with asyncio.TaskGroup() as sending:
            confirmed = sending.create_task(self._confirm(outputs, None))
            if self._settings.guarantee == "effectively-once":
                await confirmed
                self._note_latency(batch)
            for partition, done in scored.items():
                sending.create_task(self._keep(partition, done))
        if self._settings.guarantee != "effectively-once":
            self._note_latency(batch)
        for partition, records in batch.items():
            after = records[-1].offset + 1
            self._log_ends[partition] = max(after, self._log_ends[partition])
            self.partitions.finished(partition, after)
        self._metrics.scoring.observe(1000 * (scored_at - begun))
        self._metrics.confirming.observe(1000 * (time.perf_counter() - scored_at))
        self._count(batch, scored)

    async def _begin(self, partition: int) -> None:
        """Before the first batch of a partition that was assigned."""
        store, end = self._store(), self.partitions.changelog_end(partition)
        seen = store.changelog_seen(partition)
        if end is not None and seen is not None and seen > end:
            raise store_is_ahead(self._settings)
        mark: dict[bytes, bytes] = {}
        if self._topic_id is not None:
            mark = check_topic(self._settings.transactions, self._topic_id, store.read(partition, TOPIC))
        self._changelog_ends[partition] = end
        newer = {account: store.read(partition, account) for account in store.outdated(partition)}
        states = {account: state for account, state in newer.items() if state is not None}
        if states:
            log.warning("writing newer states behind older ones", extra={"partition": partition, "states": len(states)})
        if states or mark:
            await self._keep(partition, Scored(states=states | mark))
        self._log_ends[partition] = await self.partitions.log_end(partition)

    def _score(self, batch: Batch) -> dict[int, Scored]:
        scored = {p: self._scorer(p).score(records, self._log_ends[p]) for p, records in batch.items()}
        for partition, done in scored.items():
            self._drift.see(partition, self.model, done.results)
            done.results = []
        return scored

    def _scorer(self, partition: int) -> PartitionScorer:
        if partition not in self._scorers:
            store = self._store()
            self._scorers[partition] = PartitionScorer(
                self.model, self._settings, self._schema, lambda account: store.read(partition, account)
            )
        return self._scorers[partition]

    async def _keep(self, partition: int, done: Scored) -> None:
        """States to the changelog, then to the store."""
        if not done.states:
            return
        changes = [
            OutgoingRecord(self._settings.changelog, account, state, []) for account, state in done.states.items()
        ]
        offsets = await self._confirm(changes, partition)
        end = self._advanced(partition, offsets)
        await asyncio.get_running_loop().run_in_executor(
            self._thread, self._store().write, partition, done.states, done.created, end
        )

    def _advanced(self, partition: int, offsets: list[int]) -> int | None:
        """The changelog's new end, as far as this worker knows what is in it.

        It is the only writer, so offsets have no gaps. Where they do, another worker was taken for dead and woke up, or
        this one was. Then the store keeps its old mark, and the next recovery reads both workers' records and keeps of
        each account the state that has seen more.
        """
        before = self._changelog_ends[partition]
        if before is None:
            return None
        if offsets != list(range(before + 1, before + 1 + len(offsets))):
            log.warning("another worker wrote to the changelog", extra={"partition": partition, "expected": before + 1})
            self._metrics.foreign_writes.inc()
            self._changelog_ends[partition] = None
            return None
        self._changelog_ends[partition] = offsets[-1]
        return offsets[-1]

    def _note_latency(self, batch: Batch) -> None:
        now = 1000 * time.time()
        for records in batch.values():
            for record in records:
                self._metrics.end_to_end.observe(max(0.0, now - record.timestamp))

    def _count(self, batch: Batch, scored: dict[int, Scored]) -> None:
        self._metrics.batch_size.observe(sum(map(len, batch.values())))
        for done in scored.values():
            self._metrics.events.inc(done.entered)
            self._metrics.alerts.inc(done.alerts)
            self._metrics.passed_over.inc(done.passed_over)
            self._metrics.internal_errors.inc(done.rejects[Status.FAILED])
            for kind, count in done.rejects.items():
                self._metrics.rejects.labels(kind).inc(count)
