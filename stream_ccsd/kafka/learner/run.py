"""The learner process: reads scores and verdicts from their beginning, updates the model when due, writes versions.

It keeps nothing but the models. If it is killed, it reads the topics again, repeats the updates whose models are there,
and goes on with the next.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError

from stream_ccsd.calendar import Calendar
from stream_ccsd.kafka.client import BrokerError, admin_client, explain, start_client
from stream_ccsd.kafka.codec import OutgoingRecord, dead_letter, parse_score, parse_verdict
from stream_ccsd.kafka.faust.metadata import Topic, describe
from stream_ccsd.kafka.follow import Progress, by_topic
from stream_ccsd.kafka.learner.updates import UpdateFolder
from stream_ccsd.kafka.learner.watermark import ArrivedRecord, EventTimeMerge, Place, Watermark
from stream_ccsd.kafka.ops.logs import Repeats
from stream_ccsd.kafka.ops.metrics import LearnerMetrics, Web
from stream_ccsd.kafka.producer import Producer
from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.kafka.topics import TopicsSeen, prepare_topics
from stream_ccsd.learning.features import model_inputs
from stream_ccsd.learning.schedule import Schedule
from stream_ccsd.model.model import Model
from stream_ccsd.transaction import Refusal
from stream_ccsd.verdict import Verdict

log = logging.getLogger(__name__)

# Messages that are read together, and how many may wait for others of their time: then only those behind are read.
_TOGETHER, _AHEAD = 2000, 20_000
_PAUSE = 0.2
_WITHOUT_BROKER = 1.0
# Seconds between looks at the topics: each may be another one of the same name.
_LOOK = 3.0
_UNANSWERED = 5_000  # milliseconds
# After this, a broker that does not answer is not waited for any longer.
_PATIENCE = 10.0


@dataclass(frozen=True)
class Patience:
    """How long a learner waits, in seconds."""

    idle: float
    """A partition on which nothing has come for so long is not waited for."""
    grace: float
    """What a broker got so long ago has been read: clocks and brokers differ by less."""


async def run_learner(
    settings: WorkerSettings,
    folder: Path,
    first: Model,
    schedule: Schedule,
    patience: Patience,
    repeats: Repeats | None = None,
) -> None:
    """Update the model whenever that is due, until asked to stop.

    Raises
    ------
    StreamCcsdError
        If the learner cannot start, or cannot go on. Nothing is lost by that.
    """
    seen = await prepare_topics(settings)
    await _Learning(settings, folder, first, schedule, patience, seen, repeats).run()


class _Learning:
    def __init__(
        self,
        settings: WorkerSettings,
        folder: Path,
        first: Model,
        schedule: Schedule,
        patience: Patience,
        seen: TopicsSeen,
        repeats: Repeats | None,
    ) -> None:
        self._settings, self._patience, self._repeats = settings, patience, repeats
        self._metrics = LearnerMetrics()
        self._models, self._first, self._schedule = folder, first, schedule
        self._calendar: Calendar = first.calendar
        self._latest = first.latest_time
        self._inputs = model_inputs(first)
        self._topics = {name: seen.topics[name] for name in (settings.scores, settings.verdicts)}
        self._looked = time.monotonic()
        self._letters = [(settings.dead_letters, p) for p in range(seen.topics[settings.dead_letters].partitions)]
        self._buried: set[tuple[int, int]] | None = None
        self._garbage: list[tuple[Any, Refusal]] = []
        self._begin()
        self._producer = Producer(settings, seen.largest_message(settings.dead_letters))
        self._asked = asyncio.Event()
        self._answered, self._deaf = False, False
        self._web = Web(settings, self._metrics, lambda: (True, {"healthy": True}), self._readiness)

    def _begin(self) -> None:
        """Begin without any knowledge: everything is read from the beginning of the topics."""
        self._folder = UpdateFolder(self._models, self._first, self._schedule, self._metrics)
        self._watermark = Watermark(self._schedule, self._patience.idle)
        self._places: list[Place] = [(name, p) for name, topic in self._topics.items() for p in range(topic.partitions)]
        self._arrivals = EventTimeMerge(self._places)
        self._progress = Progress(dict.fromkeys(self._places, 0))
        self._garbage.clear()
        self._buried = None
        self._caught_up = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked.set)
        await self._web.start()
        web = f"http://{self._settings.web_host}:{self._web.port}"
        said = {"model": self._folder.learner.model.version, "broker": self._settings.brokers, "web": web}
        log.info("learner starts", extra=said)
        consumer = _consumer(self._settings)
        try:
            await self._producer.start()
            await start_client(consumer, self._settings.brokers)
            consumer.assign([TopicPartition(*place) for place in self._places])
            await self._until_asked(self._read(consumer))
        finally:
            try:
                async with asyncio.timeout(_PATIENCE):
                    await consumer.stop()
                    await self._producer.stop()
            except (TimeoutError, asyncio.CancelledError):  # a client without a broker raises its own cancellation
                log.warning("the broker does not answer; nothing is lost by that")
            except Exception:
                log.exception("while stopping")
            await self._web.stop()
            log.info("learner stopped")

    async def _until_asked(self, work: Coroutine[Any, Any, None]) -> None:
        """What was begun is finished, unless a broker that does not answer holds it up."""
        working, asked = asyncio.create_task(work), asyncio.create_task(self._asked.wait())
        try:
            await asyncio.wait([working, asked], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([working], timeout=_PATIENCE)
        finally:
            asked.cancel()
            if not working.cancel():
                working.result()

    async def _read(self, consumer: Any) -> None:
        while not self._asked.is_set():
            if self._repeats is not None:
                self._repeats.tell()
            try:
                await self._look(consumer)
                ends = await self._fetch(consumer)
                await self._bury()
                self._answered = True
            except (KafkaConnectionError, KafkaTimeoutError) as error:
                self._answered = False
                log.warning("waiting for the broker", extra={"error": repr(error)})
                await asyncio.sleep(_WITHOUT_BROKER)
                continue
            except KafkaError as error:
                if not getattr(error, "retriable", False):
                    raise BrokerError(explain(self._settings.brokers, error)) from error
                await asyncio.sleep(_WITHOUT_BROKER)
                continue
            await self._go_on(self._arrivals.reached(ends))
            if len(ends) == len(self._places) and not self._caught_up and not len(self._arrivals):
                self._caught_up = True
                log.info("ready", extra={"moment": self._watermark.moment, "pending": self._watermark.pending})

    async def _look(self, consumer: Any) -> None:
        """Begin again, as when started anew, if a topic is another one than before: positions in it mean nothing."""
        if time.monotonic() - self._looked < _LOOK:
            return
        self._looked = time.monotonic()
        try:
            async with admin_client(self._settings.brokers, self._settings.security()) as admin:
                found = (await describe(admin, list(self._topics))).topics
        except BrokerError:  # the next fetch notices that, too
            return
        anew = [name for name, topic in found.items() if _is_another(self._topics[name], topic)]
        self._topics |= found
        if anew:
            await self._begin_again(consumer, anew)

    async def _begin_again(self, consumer: Any, topics: list[str]) -> None:
        """As a learner that is started anew."""
        log.warning(
            "topics are others than before: all is read again, and learning goes on from the newest model",
            extra={"topics": topics},
        )
        self._metrics.made_anew.inc(len(topics))
        self._begin()
        places = [TopicPartition(*place) for place in self._places]
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)

    async def _fetch(self, consumer: Any) -> dict[Place, float]:
        """Read on; returns the partitions that were read to their end, and up to which time that is everything."""
        by_then = time.time() - self._patience.grace
        ends = await consumer.end_offsets([TopicPartition(*place) for place in self._places])
        if shorter := self._progress.is_past({(tp.topic, tp.partition): end for tp, end in ends.items()}):
            await self._begin_again(consumer, sorted(shorter))
            return {}
        wanted = self._arrivals.behind() if len(self._arrivals) > _AHEAD else self._places
        fetched = await consumer.getmany(
            *(TopicPartition(*place) for place in wanted), timeout_ms=round(1000 * _PAUSE), max_records=_TOGETHER
        )
        for records in fetched.values():
            self._enter(records)
        reached: dict[Place, float] = {}
        behind = 0
        for place in self._places:
            end = ends[TopicPartition(*place)]
            position = await consumer.position(TopicPartition(*place))
            self._progress.reach(place, position)
            behind += max(0, end - position)
            if position >= end:
                reached[place] = by_then
        self._metrics.behind.set(behind)
        await self._tell_lost(consumer)
        return reached

    async def _tell_lost(self, consumer: Any) -> None:
        """Say how many messages were deleted before they were read here."""
        if not (gaps := self._progress.gaps()):
            return
        first = await consumer.beginning_offsets([TopicPartition(*place) for place in gaps])
        lost = self._progress.lost({(tp.topic, tp.partition): offset for tp, offset in first.items()})
        for topic, count in by_topic(lost, self._topics).items():
            log.warning(
                "messages were deleted before they were read: keep the topic for longer",
                extra={"topic": topic, "messages": count},
            )
            self._metrics.lost.labels(topic).inc(count)

    def _enter(self, records: Iterable[Any]) -> None:
        """Messages of one partition; what is none of ours is reported or becomes a dead letter."""
        for record in records:
            self._progress.read((record.topic, record.partition), record.offset)
            found: Any
            if record.topic == self._settings.scores:
                found = parse_score(record.value, self._inputs)
                if found is None:
                    self._metrics.foreign.inc()
            else:
                found = parse_verdict(record, self._calendar, self._latest)
                if isinstance(found, Refusal):
                    self._garbage.append((record, found))
                    found = None
            # Also what is nothing says how far its partition is.
            self._arrivals.add((record.topic, record.partition), record.offset, record.timestamp / 1000, found)

    async def _bury(self) -> None:
        """Garbage into the dead letters, unless it is there: read again, it is still the same garbage."""
        if not self._garbage:
            return
        if self._buried is None:
            self._buried = await self._read_buried()
        new = [(r, why) for r, why in self._garbage if (r.partition, r.offset) not in self._buried]
        outputs: list[OutgoingRecord] = [dead_letter(self._settings.dead_letters, r, why) for r, why in new]
        if outputs:
            await self._producer.confirm(outputs)
            self._buried |= {(r.partition, r.offset) for r, _ in new}
            log.warning("messages that are no verdicts", extra={"messages": len(new), "reason": new[-1][1].reason})
        self._metrics.rejects.inc(len(self._garbage))
        self._garbage.clear()

    async def _read_buried(self) -> set[tuple[int, int]]:
        """Which messages of the verdicts' topic are dead letters already."""
        found = set()
        consumer = _consumer(self._settings)
        try:
            await start_client(consumer, self._settings.brokers)
            places = [TopicPartition(*place) for place in self._letters]
            consumer.assign(places)
            ends = await consumer.end_offsets(places)
            while any([await consumer.position(place) < ends[place] for place in places]):
                for records in (await consumer.getmany(timeout_ms=round(1000 * _PAUSE))).values():
                    found |= {
                        place for r in records if (place := _buried_place(r, self._settings.verdicts)) is not None
                    }
        finally:
            await consumer.stop()
        return found

    async def _go_on(self, reached: float) -> None:
        """Everything that arrived before this time, in order, and the model updates in between."""
        if reached == -inf:
            return
        for arrival in self._arrivals.until(reached):
            await self._hold(arrival.time)
            self._take(arrival)
            if self._asked.is_set():
                return
        await self._hold(reached)

    def _take(self, arrival: ArrivedRecord) -> None:
        found = arrival.found
        if isinstance(found, Verdict):
            self._metrics.verdicts.inc(self._watermark.enter_verdict(found))
        elif found is not None:
            new = self._watermark.enter_score(arrival.time, arrival.partition, found)
            self._metrics.scores.inc(new and found["inputs"] is not None)
            if found["inputs"] is None and not self._deaf:
                self._deaf = True
                log.warning("scores that nothing can be learnt from: start workers with --learning")

    async def _hold(self, now: float) -> None:
        while not self._asked.is_set() and (update := self._watermark.next(now)) is not None:
            await asyncio.to_thread(self._folder.hold, update)

    def _readiness(self) -> tuple[bool, dict[str, Any]]:
        ready = self._answered and self._caught_up
        return ready, {
            "ready": ready,
            "broker_answers": self._answered,
            "next": self._watermark.moment,
            "pending": self._watermark.pending,
            "model": self._folder.learner.model.version,
        }


def _is_another(before: Topic, now: Topic) -> bool:
    """Whether this is another topic of the same name, as far as brokers say so, or one with more partitions."""
    return before.partitions != now.partitions or (None not in (before.id, now.id) and before.id != now.id)


def _consumer(settings: WorkerSettings) -> Any:
    """One without a group: it reads everything, whoever else does."""
    return AIOKafkaConsumer(
        bootstrap_servers=settings.brokers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        request_timeout_ms=_UNANSWERED,
        **settings.security().client_options(),
    )


def _buried_place(letter: Any, topic: str) -> tuple[int, int] | None:
    """Where a dead letter came from, if it was on this topic."""
    about = dict(letter.headers)
    try:
        return (int(about["partition"]), int(about["position"])) if about["topic"] == topic.encode() else None
    except (KeyError, ValueError):  # not one of ours
        return None
