"""What a worker does with a batch: score, confirm outputs, confirm states, store them, let offsets be committed.

The order is the guarantee. Whatever dies in between, the messages are read again and either passed over, because their
state was stored (and so their outputs confirmed), or scored again from the same state, to the same bits.

Up to three batches are under way, each in another step: one is scored, from states that may not be stored yet, while
the outputs of the one before and the states of the one before that are on their way. In each step they take turns.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Protocol

from stream_ccsd.kafka.codec import TOPIC, OutgoingRecord
from stream_ccsd.kafka.faust.consumer import Batch
from stream_ccsd.kafka.faust.table import AccountStore, store_is_ahead
from stream_ccsd.kafka.ops.metrics import Metrics
from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.kafka.worker.model_watch import DriftWatch
from stream_ccsd.kafka.worker.scoring import PartitionScorer, ScoredBatch, check_topic
from stream_ccsd.model.model import Model
from stream_ccsd.transaction import Schema, Status

log = logging.getLogger(__name__)

# A batch of this share of the most there may be has a backlog behind it: then the next is scored at once. Without one,
# batches would only get smaller, and each has its price.
_BACKLOG = 0.5


class Partitions(Protocol):
    """What the processor asks about the partitions of this worker."""

    async def log_end(self, partition: int) -> int:
        """Where the transactions' partition ends."""

    def changelog_end(self, partition: int) -> int | None:
        """The last offset of its changelog that was recovered."""

    def finished(self, partition: int, next_offset: int) -> None:
        """Offsets before this one may be committed."""


class Processor:
    """Handles batches in order; one thread scores and another stores, so that the event loop stays free."""

    def __init__(
        self,
        settings: WorkerSettings,
        schema: Schema,
        model: Model,
        store: Callable[[], AccountStore],
        confirm: Callable[[Sequence[OutgoingRecord]], Coroutine[Any, Any, list[int]]],
        metrics: Metrics,
        topic_id: str | None = None,
    ) -> None:
        self.partitions: Partitions
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()
        self.model = model
        self._next_model = model
        self._settings, self._schema, self._store, self._confirm = settings, schema, store, confirm
        self._metrics, self._topic_id = metrics, topic_id
        self._scoring = ThreadPoolExecutor(1, thread_name_prefix="scoring")
        self._storing = ThreadPoolExecutor(1, thread_name_prefix="storing")
        self._under_way: dict[asyncio.Task[None], float] = {}  # batches, and when each was begun
        self._sending, self._keeping = asyncio.Lock(), asyncio.Lock()
        self._scorers: dict[int, PartitionScorer] = {}
        self._log_ends: dict[int, int] = {}
        self._changelog_ends: dict[int, int | None] = {}
        self._unstored: dict[int, dict[bytes, bytes]] = {}  # states by partition that the store does not have yet
        self._changing = threading.Lock()  # these: two threads do
        self._drift = DriftWatch(metrics)

    def use(self, model: Model) -> None:
        """Score with another model from the next batch on; states stay."""
        self._next_model = model

    def forget_partitions(self) -> None:
        """After a rebalance: nothing that was known of a partition holds any longer."""
        for known in (self._scorers, self._log_ends, self._changelog_ends, self._unstored):
            known.clear()
        self._drift.forget()

    def close(self) -> None:
        """End the threads."""
        for thread in (self._scoring, self._storing):
            thread.shutdown(wait=False, cancel_futures=True)

    def fail(self, error: BaseException) -> None:
        """The worker cannot go on."""
        self.failure = self.failure or error
        self.failed.set()

    @property
    def begun(self) -> float | None:
        """When the oldest batch that is under way was begun."""
        return min(self._under_way.values(), default=None)

    async def settled(self) -> None:
        """Returns when no batch is under way."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def handle(self, batch: Batch) -> None:
        """Begin a batch; returns when the next may be begun. A failure ends the worker: it is never passed over."""
        if self.failure is None:
            next_may_begin = asyncio.Event()
            task = asyncio.create_task(self._carry(batch, next_may_begin))
            self._under_way[task] = time.monotonic()
            task.add_done_callback(self._under_way.pop)
            await next_may_begin.wait()
        if self.failure is not None:
            raise self.failure

    async def _carry(self, batch: Batch, next_may_begin: asyncio.Event) -> None:
        """One batch, from scores to committable offsets."""
        try:
            for partition in batch:
                if partition not in self._log_ends:
                    await self._begin(partition)
            begun = time.perf_counter()
            scored = await asyncio.get_running_loop().run_in_executor(self._scoring, self._score, batch)
            scored_at = time.perf_counter()
            async with self._sending:
                self._go_on()
                if sum(map(len, batch.values())) >= _BACKLOG * self._settings.batch:
                    next_may_begin.set()
                if self._settings.guarantee == "effectively-once":
                    await self._send(batch, scored)
                else:
                    await asyncio.gather(self._send(batch, scored), self._keep(scored))
            next_may_begin.set()
            if self._settings.guarantee == "effectively-once":
                async with self._keeping:
                    self._go_on()
                    await self._keep(scored)
            for partition, records in batch.items():
                self.partitions.finished(partition, records[-1].offset + 1)
            self._metrics.scoring.observe(1000 * (scored_at - begun))
            self._metrics.confirming.observe(1000 * (time.perf_counter() - scored_at))
            self._count(batch, scored)
        except Exception as error:
            self.fail(error)
        finally:
            next_may_begin.set()

    def _go_on(self) -> None:
        """Nothing may be sent behind a batch that was not: its messages will be read again, and come first."""
        if self.failure is not None:
            raise self.failure

    async def _begin(self, partition: int) -> None:
        """Before the first batch of a partition that was assigned."""
        before = self._under_way.keys() - {asyncio.current_task()}
        if before:  # what was begun before partitions changed hands has reached the store
            await asyncio.wait(before)
            self._go_on()
        store, end = self._store(), self.partitions.changelog_end(partition)
        seen = store.changelog_seen(partition)
        if end is not None and seen is not None and seen > end:
            raise store_is_ahead(self._settings)
        mark: dict[bytes, bytes] = {}
        if self._topic_id is not None:
            mark = check_topic(self._settings.transactions, self._topic_id, store.read(partition, TOPIC))
        self._changelog_ends[partition], self._unstored[partition] = end, {}
        newer = {account: store.read(partition, account) for account in store.outdated(partition)}
        states = {account: state for account, state in newer.items() if state is not None}
        if states:
            log.warning("writing newer states behind older ones", extra={"partition": partition, "states": len(states)})
        if states or mark:
            await self._keep({partition: ScoredBatch(states=states | mark)})
        self._log_ends[partition] = await self.partitions.log_end(partition)

    def _score(self, batch: Batch) -> dict[int, ScoredBatch]:
        if self._next_model is not self.model:
            self.model = self._next_model
            self._scorers.clear()
        scored = {p: self._scorer(p).score(records, self._log_ends[p]) for p, records in batch.items()}
        for partition, done in scored.items():
            with self._changing:
                self._unstored[partition].update(done.states)
            self._log_ends[partition] = max(batch[partition][-1].offset + 1, self._log_ends[partition])
            self._drift.see(partition, self.model, done.results)
            done.results = []
        return scored

    def _scorer(self, partition: int) -> PartitionScorer:
        if partition not in self._scorers:
            store, unstored = self._store(), self._unstored[partition]

            def read(account: bytes) -> bytes | None:
                state = unstored.get(account)
                return store.read(partition, account) if state is None else state

            self._scorers[partition] = PartitionScorer(self.model, self._settings, self._schema, read)
        return self._scorers[partition]

    async def _send(self, batch: Batch, scored: dict[int, ScoredBatch]) -> None:
        """Scores, alerts and dead letters."""
        await self._confirm([output for done in scored.values() for output in done.outputs])
        now = 1000 * time.time()
        times = (max(0.0, now - record.timestamp) for records in batch.values() for record in records)
        self._metrics.end_to_end.observe_all(times)

    async def _keep(self, scored: dict[int, ScoredBatch]) -> None:
        """States to the changelog, then to the store."""
        changed = {partition: done for partition, done in scored.items() if done.states}
        topic = self._settings.changelog
        offsets = iter(
            await self._confirm(
                [
                    OutgoingRecord(topic, account, state, [], partition)
                    for partition, done in changed.items()
                    for account, state in done.states.items()
                ]
            )
        )
        ends = {p: self._advanced(p, list(islice(offsets, len(done.states)))) for p, done in changed.items()}
        await asyncio.get_running_loop().run_in_executor(self._storing, self._write, changed, ends)

    def _write(self, changed: dict[int, ScoredBatch], ends: dict[int, int | None]) -> None:
        store = self._store()
        for partition, done in changed.items():
            store.write(partition, done.states, done.created, ends[partition])
            unstored = self._unstored.get(partition, {})
            with self._changing:
                for account, state in done.states.items():
                    if unstored.get(account) is state:  # a batch behind this one may have a newer one
                        del unstored[account]

    def _advanced(self, partition: int, offsets: list[int]) -> int | None:
        """The changelog's new end, as far as this worker knows what is in it.

        It is the only writer, so offsets have no gaps. Where they do, another worker was taken for dead and woke up, or
        this one was. Then the store keeps its old mark, and the next recovery reads both workers' records and keeps of
        each account the state that has seen more.
        """
        before = self._changelog_ends.get(partition)
        if before is None:
            return None
        if offsets != list(range(before + 1, before + 1 + len(offsets))):
            log.warning("another worker wrote to the changelog", extra={"partition": partition, "expected": before + 1})
            self._metrics.foreign_writes.inc()
            self._changelog_ends[partition] = None
            return None
        self._changelog_ends[partition] = offsets[-1]
        return offsets[-1]

    def _count(self, batch: Batch, scored: dict[int, ScoredBatch]) -> None:
        self._metrics.batch_size.observe(sum(map(len, batch.values())))
        for done in scored.values():
            self._metrics.events.inc(done.entered)
            self._metrics.alerts.inc(done.alerts)
            self._metrics.passed_over.inc(done.passed_over)
            self._metrics.internal_errors.inc(done.rejects[Status.FAILED])
            for kind, count in done.rejects.items():
                self._metrics.rejects.labels(kind).inc(count)
