"""Every part of Faust and aiokafka that they never promised to keep, behind names of our own.

No other module touches a name of theirs that begins with an underscore. :func:`moved` says which of these parts are
not where they were: after an upgrade the test that asks it names what has to be looked at, and a worker does not start.
"""

from __future__ import annotations

import asyncio
import dis
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib.metadata import version
from typing import Any

import faust
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import TopicPartitionState
from aiokafka.protocol.api import Request
from faust.exceptions import ConsistencyError
from faust.stores import memory, rocksdb
from faust.tables.recovery import Recovery
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from stream_ccsd.errors import StreamCcsdError

# A fetch that took less had its records already; and how long the broker may take for an answer, in seconds.
_AT_ONCE, _QUESTION = 0.0005, 0.005

# What is used below, by the class it belongs to.
PARTS: dict[type, tuple[str, ...]] = {
    AIOKafkaConsumer: ("_isolation_level", "_coordinator", "_fetcher", "_subscription", "last_stable_offset"),
    AIOKafkaAdminClient: ("_send_request",),
    GroupCoordinator: ("_pending_exception", "_coordination_task"),
    Fetcher: ("_fetch_task",),
    TopicPartitionState: ("_position", "lso"),
    driver.AIOKafkaConsumerThread: (
        "_create_worker_consumer",
        "_consumer",
        "_ensure_consumer",
        "_fetch_records",
        "call_thread",
    ),
    driver.Consumer: (
        "_new_consumer_thread",
        "_thread",
        "_committed_offset",
        "_drain_messages",
        "_filter_tps_with_pending_acks",
        "_get_active_partitions",
        "_getmany",
        "_new_offset",
        "_to_message",
        "can_resume_flow",
        "flow_active",
        "verify_event_path",
        "wait_empty",
    ),
    Recovery: (
        "_futures",
        "_recovery_started_at",
        "active_highwaters",
        "active_offsets",
        "active_remaining_total",
        "completed",
    ),
    faust.App: ("_crashed", "crash_reason", "consumer_generation_id", "in_recovery", "rebalancing"),
    faust.Table: ("_new_store_by_url",),
    rocksdb.Store: ("_db_for_partition", "_try_open_db_for_partition", "offset_key", "rocksdb_options"),
    memory.Store: ("persisted_offset",),
}


def moved() -> list[str]:
    """Parts that are no longer there, as ``class.name``."""
    wanted = ((kind, name) for kind, names in PARTS.items() for name in names)
    return [f"{kind.__module__}.{kind.__name__}.{name}" for kind, name in wanted if not _has(kind, name)]


def check_parts() -> None:
    """Raise if a part that workers build on is not there.

    Raises
    ------
    StreamCcsdError
        Naming the parts and the versions that were found.
    """
    if moved():
        installed = ", ".join(f"{name} {version(name)}" for name in ("faust-streaming", "aiokafka"))
        raise StreamCcsdError(
            f"workers cannot run on {installed}: not there any more is {', '.join(moved())}. "
            "Install the versions that 'stream-ccsd[kafka]' asks for"
        )


def _has(kind: type, name: str) -> bool:
    """Whether a class has an attribute, declares it, or sets it in one of its methods."""
    for base in kind.__mro__:
        if name in vars(base) or name in vars(base).get("__annotations__", {}):
            return True
        for member in vars(base).values():
            code = getattr(member, "__code__", None)
            if code is not None and name in code.co_names:
                stores = (i for i in dis.get_instructions(code) if i.opname == "STORE_ATTR")
                if any(i.argval == name for i in stores):
                    return True
    return False


async def ask(admin: AIOKafkaAdminClient, request: Request[Any]) -> Any:
    """Send a question of our own; any broker may answer."""
    return await admin._send_request(request)


def _position(client: AIOKafkaConsumer | None, tp: Any) -> int | None:
    subscription = getattr(getattr(client, "_subscription", None), "subscription", None)
    assignment = getattr(subscription, "assignment", None)
    if assignment is None or tp not in assignment.tps:
        return None
    position: int | None = assignment.state_value(tp)._position
    return position


class _ConsumerThread(driver.AIOKafkaConsumerThread):
    """The thread Faust's client lives in. Faust reads committed messages only if it writes in transactions itself."""

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._isolation_level = "read_committed"
        return consumer

    async def _fetch_records(
        self, consumer: Any, active_partitions: Any, timeout: float | None = None, max_records: int | None = None
    ) -> Any:
        begun = time.monotonic()
        records = await super()._fetch_records(consumer, active_partitions, timeout, max_records)
        room = (max_records or 0) - sum(map(len, records.values()))
        if records and room > 0 and time.monotonic() - begun < _AT_ONCE:
            # They lay in the client's buffer while the last batch was worked on, and it asks for no more until they are
            # taken. What came since then is one question away, and would otherwise wait for the whole next batch.
            more = await super()._fetch_records(consumer, active_partitions, _QUESTION, room)
            for tp, batch in more.items():
                before = records.setdefault(tp, [])
                if not before or before[-1].offset < batch[0].offset:  # else somebody has gone to another place
                    before += batch
        self.fetched_to = {TP(tp.topic, tp.partition): _position(consumer, tp) for tp in records}
        return records

    fetched_to: dict[TP, int | None]

    def highwater(self, tp: TP) -> int | None:
        """Where committed messages end: behind it are transactions that are still open."""
        end: int | None = self._ensure_consumer().last_stable_offset(tp)
        return end


class FaustConsumer(driver.Consumer):
    """Faust's consumer, with names for what a consumer that drains in batches has to do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.committable: dict[TP, int] = {}

    async def drain_once(self) -> None:
        """Fetch, and do something with it; called again and again."""
        raise NotImplementedError

    def _new_consumer_thread(self) -> Any:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def _drain_messages(self, fetcher: Any) -> None:
        try:
            while not (self.should_stop or fetcher.should_stop):
                await self.drain_once()
        except self.consumer_stopped_errors:
            if not self.app.should_stop:
                raise

    # Faust keeps a list of every acknowledged message; whole batches need one number a partition.

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        return iter([tp for tp in self.committable if topics is None or tp in topics or tp.topic in topics])

    def _new_offset(self, tp: TP) -> int | None:
        return self.committable.pop(tp, None)

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Faust looks for streams that stand still; there are none here, and /healthz looks for itself."""

    @property
    def client(self) -> Any:
        """aiokafka's consumer, which lives in a thread of its own; None before it has started."""
        return self._thread._consumer

    async def in_client_thread(self, call: Callable[[], Awaitable[None]]) -> None:
        """Run something where nobody else can come in between."""
        await self._thread.call_thread(call)

    def committed_offset(self, tp: TP) -> int | None:
        """The offset work began at or was committed to, as far as it is known."""
        offset: int | None = self._committed_offset[tp]
        return offset

    def flowing_partitions(self) -> set[TP]:
        """Partitions to fetch from now. A copy: Faust changes its set in place, and a fetch that waits would return
        what was not asked for.
        """
        return set(self._get_active_partitions())

    async def fetch(self, partitions: set[TP], seconds: float) -> dict[TP, list[Any]]:
        """What there is, or comes within that time; :meth:`fetched_to` then says up to where."""
        fetched = await self._getmany(active_partitions=partitions, timeout=seconds)
        return {TP(place.topic, place.partition): batch for place, batch in fetched.items()}

    def to_message(self, tp: TP, record: Any) -> Any:
        """A record as Faust's recovery takes it."""
        return self._to_message(tp, record)

    def reached(self, tp: TP) -> int | None:
        """Where the client reads next, which is behind the markers of transactions too; None if that is unknown."""
        return _position(self.client, tp)

    def fetched_to(self, tp: TP) -> int | None:
        """Where the client stood right after the last fetch: behind the batch, and markers that follow it."""
        return self._thread.fetched_to.get(tp)

    def failure(self) -> BaseException | None:
        """What ended the membership in the group or the fetching, which the client only logs."""
        coordinator, fetcher = getattr(self.client, "_coordinator", None), getattr(self.client, "_fetcher", None)
        error: BaseException | None = getattr(coordinator, "_pending_exception", None)
        for task in (getattr(coordinator, "_coordination_task", None), getattr(fetcher, "_fetch_task", None)):
            if task is not None and task.done() and not task.cancelled():
                error = error or task.exception()
        return error


class FaustRecovery:
    """What Faust knows of the recovery of its tables."""

    def __init__(self, app: faust.App) -> None:
        self._app = app

    @property
    def _recovery(self) -> Any:
        return self._app.tables.recovery

    @property
    def completed(self) -> bool:
        """Whether the tables have been read once."""
        return bool(self._recovery.completed.is_set())

    @property
    def number(self) -> float | None:
        """Another one for each recovery."""
        began: float | None = self._recovery._recovery_started_at
        return began

    def remaining(self) -> int:
        """Changelog records still to be read."""
        return max(0, self._recovery.active_remaining_total())

    def end(self, tp: TP) -> int | None:
        """The last offset of a changelog as it was recovered."""
        highwater = self._recovery.active_highwaters.get(tp)
        return None if highwater is None else int(highwater)

    def pass_markers(self, reached: Callable[[TP], int | None]) -> None:
        """Where nothing but markers of transactions is left of a changelog, nothing remains to be read.

        Faust counts up to the last offset, and would wait for a message there for ever.
        """
        recovery = self._recovery
        if not self._app.in_recovery or not self._app.tables.changelog_queue.empty():
            return
        for tp, end in recovery.active_highwaters.items():
            position, seen = reached(tp), recovery.active_offsets[tp]
            if end is not None and seen is not None and seen < end and position is not None and position > end:
                recovery.active_offsets[tp] = end

    def failure(self) -> BaseException | None:
        """Why a part of it has ended that must not end, if one has; nobody else tells of it."""
        recovery = self._recovery
        if not recovery.started or recovery.should_stop:
            return None
        ended = [task for task in recovery._futures if task.done()]
        if not ended:
            return None
        errors = (None if task.cancelled() else task.exception() for task in ended)
        return next((error for error in errors if error is not None), None) or self._app.crash_reason or EndedError()


class EndedError(Exception):
    """Something of Faust's ended without saying why."""


def is_ahead(error: BaseException) -> bool:
    """Whether this is how Faust says that a store has seen more of its changelog than there is."""
    return isinstance(error, ConsistencyError)


def crashed(app: faust.App) -> asyncio.Event:
    """Set when Faust cannot go on."""
    event: asyncio.Event = app._crashed
    return event


class FaustRocksStore(rocksdb.Store):
    """Faust's RocksDB store: a database a partition."""

    def database(self, partition: int) -> Any:
        """The partition's own, opened if it is not yet."""
        return super()._db_for_partition(partition)

    def _db_for_partition(self, partition: int) -> Any:
        return self.database(partition)

    async def need_active_standby_for(self, tp: TP) -> bool:
        """The folder is this worker's alone."""
        self.database(tp.partition)
        return True

    async def _try_open_db_for_partition(
        self, partition: int, max_retries: int = 0, retry_delay: float = 0.0, generation_id: int = 0
    ) -> Any:
        """At once: the folder is this worker's alone. Faust tries again for half a minute where an error's text has
        the letters "lock" in it, as that of every damaged block has.
        """
        return self.database(partition)


class FaustTable(faust.Table):
    """Faust's table, on a store of our own."""

    def make_store(self, url: str, **options: Any) -> Any:
        """The store."""
        raise NotImplementedError

    def _new_store_by_url(self, url: Any) -> Any:
        return self.make_store(
            str(url),
            table_name=self.name,
            key_type=bytes,
            key_serializer="raw",
            value_serializer="raw",
            value_type=bytes,
            loop=self.loop,
            options=self.options,
        )
