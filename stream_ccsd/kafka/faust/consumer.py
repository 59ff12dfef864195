"""Faust's consumer, handing over whole batches.

Faust passes each message alone through queues, tasks and streams, which costs about as much as scoring it (see
``stream-ccsd bench kafka``). Here what was fetched for the transactions' topic goes to one handler at once, and the
next batch is fetched when that takes one: a slow worker reads no further ahead than the client's own buffer. Groups,
heartbeats, rebalancing and the recovery of tables are Faust's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from faust.types import TP

from stream_ccsd.kafka.faust.internals import FaustConsumer, FaustRecovery

log = logging.getLogger("stream_ccsd.kafka.reading")
_PAUSE = 0.05

Batch = Mapping[int, Sequence[Any]]
"""Records of the transactions' topic by partition, in order."""


class Handler(Protocol):
    """What is done with batches."""

    async def handle(self, batch: Batch) -> None:
        """Begin a batch; returns when the next may be begun."""

    async def settled(self) -> None:
        """Returns when no batch is under way."""


class BatchConsumer(FaustConsumer):
    """Drains the transactions' topic in batches; every other topic as Faust does. Committed messages only."""

    def __init__(self, *args: Any, topic: str, handler: Handler, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.topic, self.handler = topic, handler
        self._handling: asyncio.Future[None] | None = None
        self._next: dict[TP, int] = {}
        self._gaps: dict[TP, int] = {}
        self._recovery = FaustRecovery(self.app)

    async def wait_empty(self) -> None:
        """Faust waits for this before partitions go to others and before it stops: no batch is on its way."""
        if self._handling is not None:
            await asyncio.wait([self._handling])
        await self.handler.settled()
        await super().wait_empty()
        self._next.clear()

    def handled(self, partition: int) -> int:
        """The offset that work goes on at; between batches, the markers of transactions before it are left behind."""
        tp = TP(self.topic, partition)
        begun = self._next.get(tp, self.committed_offset(tp)) or 0
        busy = self._handling is not None and not self._handling.done()
        return begun if busy else max(begun, self.reached(tp) or 0)

    def check(self) -> None:
        """Raise what ended the membership in the group, which the client only logs."""
        error = self.failure()
        if error is not None:
            raise error

    def finished(self, partition: int, next_offset: int) -> None:
        """Everything before this offset has had its effect, and may be committed."""
        self.committable[TP(self.topic, partition)] = next_offset

    async def drain_once(self) -> None:
        """Fetch a batch and hand it over, or wait until that makes sense."""
        if not self.flow_active:
            await self.wait(self.can_resume_flow)
            return
        active = self.flowing_partitions()
        if not active:
            await self.sleep(_PAUSE)
            return
        generation = self.app.consumer_generation_id
        records = await self.fetch(active, 1.0)
        if not records:
            self._recovery.pass_markers(self.reached)
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
        fetched_to = {tp: self.fetched_to(tp) for tp in records}

        async def go_back() -> None:  # in the client's own thread, so that nobody comes in between
            for tp, batch in records.items():
                with contextlib.suppress(Exception):  # no longer ours: whoever has it begins where it counts
                    if self.reached(tp) == fetched_to[tp]:
                        self.client.seek(tp, batch[0].offset)

        await self.in_client_thread(go_back)
        await self.sleep(_PAUSE)

    async def _follows(self, tp: TP, batch: Sequence[Any]) -> bool:
        """Whether a batch begins where the last one ended; if not, go back there, once.

        A topic has gaps of its own wherever transactions ended or were aborted: then the same batch comes again.
        """
        expected = self._next.get(tp, self.committed_offset(tp))
        if expected is None:
            expected = (await self.earliest_offsets(tp))[tp]
        if batch[0].offset > expected and self._gaps.get(tp) != expected:
            self._gaps[tp] = expected
            await self.seek_wait({tp: expected})
            return False
        if batch[0].offset > expected and (await self.earliest_offsets(tp))[tp] > expected:
            said = {"partition": tp.partition, "from": expected, "to": batch[0].offset}
            log.warning("messages were deleted from the topic before they were read", extra=said)
        self._gaps.pop(tp, None)
        return True

    async def _pass_on(self, tp: TP, batch: Iterable[Any]) -> None:
        """Changelog records, the way Faust's recovery takes them."""
        for record in batch:
            if not self.flow_active:
                return
            await self.callback(self.to_message(tp, record))

    async def _handle(self, records: Mapping[TP, Sequence[Any]]) -> None:
        self._next.update({tp: self.fetched_to(tp) or batch[-1].offset + 1 for tp, batch in records.items()})
        self._handling = asyncio.ensure_future(self.handler.handle({tp.partition: b for tp, b in records.items()}))
        # A batch that has begun is finished, also when this task is cancelled by a rebalance or a shutdown.
        await asyncio.shield(self._handling)
