"""Faust's consumer, handing over whole batches.

Faust passes each message alone through queues, tasks and streams, which costs about as much as scoring it (see
``stream-ccsd bench kafka``). Here what was fetched for the transactions' topic goes to one handler at once, and the
next batch is fetched when that is done: a slow worker reads no further ahead than the client's own buffer. Groups,
heartbeats, rebalancing and the recovery of tables are Faust's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from faust.transport.drivers import aiokafka as driver
from faust.types import TP

Batch = Mapping[int, Sequence[Any]]
"""Records of the transactions' topic by partition, in order."""
Handler = Callable[[Batch], Awaitable[None]]


class BatchConsumer(driver.Consumer):
    """Drains the transactions' topic in batches; every other topic as Faust does."""

    topic: str
    handler: Handler

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._handling: asyncio.Future[None] | None = None
        self._finished: dict[TP, int] = {}
        self._next: dict[TP, int] = {}
        self._gaps: dict[TP, int] = {}

    async def wait_empty(self) -> None:
        """Faust waits for this before partitions go to others and before it stops: no batch is on its way."""
        if self._handling is not None:
            await asyncio.wait([self._handling])
        await super().wait_empty()
        self._next.clear()

    def committed(self, tp: TP) -> int:
        """The offset work began at, as far as it is known; 0 before."""
        return self._committed_offset[tp] or 0

    def check(self) -> None:
        """Raise what ended the membership in the group, which the client only logs."""
        coordinator = getattr(self._thread._consumer, "_coordinator", None)
        task = getattr(coordinator, "_coordination_task", None)
        error = getattr(coordinator, "_pending_exception", None)
        if task is not None and task.done() and not task.cancelled():
            error = error or task.exception()
        if error is not None:
            raise error

    def finished(self, partition: int, next_offset: int) -> None:
        """Everything before this offset has had its effect, and may be committed."""
        self._finished[TP(self.topic, partition)] = next_offset

    async def _drain_messages(self, fetcher: Any) -> None:
        try:
            while not (self.should_stop or fetcher.should_stop):
                await self._drain_once()
        except self.consumer_stopped_errors:
            if not self.app.should_stop:
                raise

    async def _drain_once(self) -> None:
        if not self.flow_active:
            await self.wait(self.can_resume_flow)
            return
        active = self._get_active_partitions()
        if not active:
            await self.sleep(0.1)
            return
        generation = self.app.consumer_generation_id
        fetched = await self._getmany(active_partitions=active, timeout=1.0)
        records = {TP(place.topic, place.partition): batch for place, batch in fetched.items()}
        if generation != self.app.consumer_generation_id:
            records = {tp: batch for tp, batch in records.items() if await self._is_current(tp, batch)}
        if not self.flow_active:  # a rebalance has begun; when it ends, everything is read from where it counts
            return
        ours = {}
        for tp, batch in records.items():
            if tp.topic != self.topic:
                await self._pass_on(tp, batch)
            elif await self._follows(tp, batch):
                ours[tp.partition] = batch
        if ours:
            await self._handle(ours)
        else:
            await self.sleep(0)

    async def _is_current(self, tp: TP, batch: Sequence[Any]) -> bool:
        """Whether what was fetched across a rebalance still counts: nobody has gone to another place since."""
        try:
            return bool(await self.position(tp) == batch[-1].offset + 1)
        except Exception:  # the partition is no longer ours
            return False

    async def _follows(self, tp: TP, batch: Sequence[Any]) -> bool:
        """Whether a batch begins where the last one ended; if not, go back there, once.

        A topic may have gaps of its own (transactions' markers, compaction): then the same batch comes again.
        """
        expected = self._next.get(tp, self._committed_offset[tp])
        if expected is None or batch[0].offset <= expected or self._gaps.get(tp) == expected:
            self._next[tp] = batch[-1].offset + 1
            return True
        self._gaps[tp] = expected
        await self.seek(tp, expected)
        return False

    async def _pass_on(self, tp: TP, batch: Iterable[Any]) -> None:
        """Changelog records, the way Faust's recovery takes them."""
        for record in batch:
            if not self.flow_active:
                return
            await self.callback(self._to_message(tp, record))

    async def _handle(self, batch: Batch) -> None:
        self._handling = asyncio.ensure_future(self.handler(batch))
        # A batch that has begun is finished, also when this task is cancelled by a rebalance or a shutdown.
        await asyncio.shield(self._handling)

    # Faust keeps a list of every acknowledged message; whole batches need one number a partition.

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        return iter([tp for tp in self._finished if topics is None or tp in topics or tp.topic in topics])

    def _new_offset(self, tp: TP) -> int | None:
        return self._finished.pop(tp, None)

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Faust looks for streams that stand still; there are none here, and /healthz looks for itself."""
