"""Faust's consumer, handing over whole batches.

Faust passes each message alone through queues, tasks and streams, which costs about as much as scoring it (see
``stream-ccsd bench kafka``). Here what was fetched for the transactions' topic goes to one handler at once, and the
next batch is fetched when that is done: a slow worker reads no further ahead than the client's own buffer. Groups,
heartbeats, rebalancing and the recovery of tables are Faust's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from faust.transport.drivers import aiokafka as driver
from faust.types import TP

log = logging.getLogger("stream_ccsd.kafka.reading")
_PAUSE = 0.05

Batch = Mapping[int, Sequence[Any]]
"""Records of the transactions' topic by partition, in order."""
Handler = Callable[[Batch], Awaitable[None]]


class BatchConsumer(driver.Consumer):
    """Drains the transactions' topic in batches; every other topic as Faust does."""

    def __init__(self, *args: Any, topic: str, handler: Handler, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.topic, self.handler = topic, handler
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
        client = self._thread._consumer
        coordinator, fetcher = getattr(client, "_coordinator", None), getattr(client, "_fetcher", None)
        error = getattr(coordinator, "_pending_exception", None)
        for task in (getattr(coordinator, "_coordination_task", None), getattr(fetcher, "_fetch_task", None)):
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
        # A copy: Faust changes the set in place, and a fetch that waits would return what was not asked for.
        active = set(self._get_active_partitions())
        if not active:
            await self.sleep(_PAUSE)
            return
        generation = self.app.consumer_generation_id
        fetched = await self._getmany(active_partitions=active, timeout=1.0)
        records = {TP(place.topic, place.partition): batch for place, batch in fetched.items()}
        if not records:
            await self.sleep(0)
            return
        changelog = {tp: batch for tp, batch in records.items() if tp.topic != self.topic}
        ours = {tp: batch for tp, batch in records.items() if tp.topic == self.topic}
        if changelog and self._may_recover(generation):
            for tp, batch in changelog.items():
                await self._pass_on(tp, batch)
        elif changelog:
            await self._put_back(changelog)
        if ours and self._may_work(generation):
            ours = {tp: batch for tp, batch in ours.items() if await self._follows(tp, batch)}
        if ours and self._may_work(generation):
            await self._handle(ours)
        elif ours:
            await self._put_back(ours)

    # What Faust allows when. While a rebalance lasts, its parts come in this order:
    #   revoked: flow stopped, batches finished; assigned: a new generation; recovery (in_recovery): changelogs are
    #   read; standbys are resumed; everything that was queued is thrown away; transactions are sought; flow again.

    def _may_recover(self, generation: int) -> bool:
        """Whether changelog records reach their table, and are not thrown away with Faust's queue."""
        app = self.app
        return self._is_flowing(generation) and (app.in_recovery or not app.rebalancing)

    def _may_work(self, generation: int) -> bool:
        """Whether transactions are this worker's to handle, and their states are there."""
        return self._is_flowing(generation) and not self.app.in_recovery and not self.app.rebalancing

    def _is_flowing(self, generation: int) -> bool:
        return bool(self.flow_active and generation == self.app.consumer_generation_id)

    async def _put_back(self, records: Mapping[TP, Sequence[Any]]) -> None:
        """As if it had never been fetched, unless somebody has gone to another place since."""
        client = self._thread._consumer

        async def go_back() -> None:  # in the client's own thread, so that nobody comes in between
            for tp, batch in records.items():
                with contextlib.suppress(Exception):  # no longer ours: whoever has it begins where it counts
                    if await client.position(tp) == batch[-1].offset + 1:
                        client.seek(tp, batch[0].offset)

        await self._thread.call_thread(go_back)
        await self.sleep(_PAUSE)

    async def _follows(self, tp: TP, batch: Sequence[Any]) -> bool:
        """Whether a batch begins where the last one ended; if not, go back there, once.

        A topic may have gaps of its own (transactions' markers, compaction): then the same batch comes again.
        """
        expected = self._next.get(tp, self._committed_offset[tp])
        if expected is None:
            expected = (await self.earliest_offsets(tp))[tp]
        if batch[0].offset <= expected:
            self._gaps.pop(tp, None)
        elif self._gaps.get(tp) != expected:
            self._gaps[tp] = expected
            await self.seek_wait({tp: expected})
            return False
        else:
            said = {"partition": tp.partition, "from": expected, "to": batch[0].offset}
            log.warning("the topic has no messages between these offsets", extra=said)
        return True

    async def _pass_on(self, tp: TP, batch: Iterable[Any]) -> None:
        """Changelog records, the way Faust's recovery takes them."""
        for record in batch:
            if not self.flow_active:
                return
            await self.callback(self._to_message(tp, record))

    async def _handle(self, records: Mapping[TP, Sequence[Any]]) -> None:
        self._next.update({tp: batch[-1].offset + 1 for tp, batch in records.items()})
        self._handling = asyncio.ensure_future(self.handler({tp.partition: batch for tp, batch in records.items()}))
        # A batch that has begun is finished, also when this task is cancelled by a rebalance or a shutdown.
        await asyncio.shield(self._handling)

    # Faust keeps a list of every acknowledged message; whole batches need one number a partition.

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        return iter([tp for tp in self._finished if topics is None or tp in topics or tp.topic in topics])

    def _new_offset(self, tp: TP) -> int | None:
        return self._finished.pop(tp, None)

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Faust looks for streams that stand still; there are none here, and /healthz looks for itself."""
