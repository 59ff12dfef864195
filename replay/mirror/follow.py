"""Kafka's side of a mirror: finds the topics, reads on where the local file stopped, and writes what is ready.

Any trouble with broker or file ends one round of following, and the next begins with what the file holds, as after a
kill. So there is one way to begin, and it is taken often enough to work.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from replay.cases.verdicts import VerdictLog, audit_log_beside
from replay.mirror.event_merge import Arrival, Intake, Kind, Place
from replay.mirror.file import MirrorFile, first_facts, learnt_facts
from replay.mirror.messages import parse_alert, set_aside
from stream_ccsd.calendar import Calendar
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.client import BrokerError, admin_client, explain, start_client
from stream_ccsd.kafka.faust.metadata import Topic, describe
from stream_ccsd.kafka.follow import Progress, by_topic
from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.stores import Record
from stream_ccsd.verdict import Verdict

log = logging.getLogger(__name__)

_TOGETHER = 2000
_UNANSWERED = 5_000  # milliseconds
# Seconds: of a fetch, between batches, between looks at the topics' ends and at the topics themselves.
_FETCH, _LINGER, _ENDS, _LOOK = 0.2, 0.25, 0.5, 10.0
_BACKOFF = (0.5, 1.0, 2.0, 5.0)
# Newest messages of each partition that are looked at before there is a file.
_PEEK, _PEEK_SECONDS = 20, 3.0
_PAIRED: tuple[Kind, Kind] = ("scores", "alerts")


class _NextRoundError(Exception):
    """What was read and not written is read again: with what the file says by now."""


class Following:
    """What runs on the mirror's own loop. ``status`` may be read from any thread."""

    def __init__(self, settings: WorkerSettings, path: Path, keep: int, keep_alerts: int, model: Path | None) -> None:
        self._settings, self._path, self._model = settings, path, model
        self._keep, self._keep_alerts = keep, keep_alerts
        self._topics: dict[Kind, str] = {
            "scores": settings.scores,
            "alerts": settings.alerts,
            "dead_letters": settings.dead_letters,
            "verdicts": settings.verdicts,
        }
        self.status: dict[str, Any] = {"state": "reconnecting", "lag": None, "error": None, "missing": []}
        self._file: MirrorFile
        self._book: VerdictLog
        self._intake: Intake
        self._progress: Progress
        self._ids: dict[str, str | None] = {}
        self._alone = 0  # arrivals that are written one by one, since together they failed
        self._written = self._asked = self._told = 0.0  # when, by a clock that only goes forward

    async def begin(self) -> None:
        """The file that exists, or a new one with what the newest messages say.

        Raises
        ------
        StreamCcsdError
            If there is none and the broker cannot be reached, or it is of something else.
        """
        source = f"kafka://{self._settings.brokers}"
        if self._path.exists() and self._path.stat().st_size:
            self._file = MirrorFile.reopen(self._path)
            if self._model is not None:
                named = first_facts(source, self._model)
                self._file.write([], self._file.notes, {**self._file.facts, "calendar": named["calendar"]})
        else:
            stamped = await self._newest_alerts()
            facts = learnt_facts(first_facts(source, self._model), [alert for _, alert in stamped])
            self._file = MirrorFile.at(self._path, {**facts, "as_of": stamped[-1][0] if stamped else 0.0})
        self._file.keep, self._file.keep_alerts = self._keep, self._keep_alerts
        self._book = VerdictLog.create(audit_log_beside(self._path))

    async def run(self, stopped: asyncio.Event) -> None:
        """Until stopped, whatever happens."""
        failures = 0
        while not stopped.is_set():
            begun = time.monotonic()
            try:
                await self._follow(stopped)
                failures = 0
            except (Exception, asyncio.CancelledError) as error:
                if _is_cancelled(error):
                    raise
                said = self._said(error)
                if said != self.status["error"]:
                    log.warning("mirroring begins again: %s", said)
                self._tell("reconnecting", said)
                failures = 0 if time.monotonic() - begun > 60 else failures + 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), _BACKOFF[min(failures, len(_BACKOFF)) - 1])

    def _said(self, error: BaseException) -> str:
        """An error in words; only what comes from the broker is said of it."""
        if isinstance(error, StreamCcsdError):
            return str(error)
        if isinstance(error, KafkaError | OSError | TimeoutError | asyncio.CancelledError):
            return explain(self._settings.brokers, error)
        log.error("mirroring failed", exc_info=error)
        return f"mirroring failed, and the log says where ({type(error).__name__}: {error})"

    def end(self, error: BaseException) -> None:
        """That nothing is mirrored any more, for the log and for whoever looks at the file."""
        log.error("mirroring has ended", exc_info=error)
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        said = f"mirroring has ended, so nothing new is shown: start the page again ({cause})"
        with contextlib.suppress(Exception):  # the file itself may be the cause
            self._tell("closed", said)
        self.status = {**self.status, "state": "closed", "error": said}

    def close(self) -> None:
        """Close the files."""
        for file in (getattr(self, "_file", None), getattr(self, "_book", None)):
            if file is not None:
                file.close()

    # One round

    async def _follow(self, stopped: asyncio.Event) -> None:
        found = await self._look()
        places = _places(found)
        self._intake = Intake(self._topics, self._file.notes, self._file.has_alert, self._file.has_score)
        known = {place: self._intake.start(place) for place in places}
        begun = {place: position for place, position in known.items() if position is not None}
        self._progress = Progress(begun, self._intake.missed)
        async with self._consumer() as consumer:
            consumer.assign([TopicPartition(*place) for place in places])
            for place, position in begun.items():
                consumer.seek(TopicPartition(*place), position)
            looked = time.monotonic()
            with contextlib.suppress(_NextRoundError):
                while not stopped.is_set():
                    await self._read(consumer, places)
                    await self._write()
                    if time.monotonic() - looked > _LOOK:
                        if await self._look() != found:
                            return
                        looked = time.monotonic()

    async def _read(self, consumer: Any, places: list[Place]) -> None:
        wanted = [TopicPartition(*place) for place in places if self._intake.wants(place)]
        if not wanted:  # asked for none, the client would give all
            await asyncio.sleep(_FETCH)
        else:
            fetched = await consumer.getmany(*wanted, timeout_ms=round(1000 * _FETCH), max_records=_TOGETHER)
            calendar = Calendar.from_dict(self._file.facts["calendar"])
            for messages in fetched.values():
                for message in messages:
                    self._progress.read((message.topic, message.partition), message.offset)
                    self._intake.take(message, calendar)
        if time.monotonic() - self._asked >= _ENDS:
            await self._compare_with_ends(consumer, places)
            self._asked = time.monotonic()
        await self._tell_lost(consumer)  # before anything behind it is written

    async def _compare_with_ends(self, consumer: Any, places: list[Place]) -> None:
        """How far behind we are; this is also how a broker that has gone is noticed, which a fetch just waits for."""
        at = time.time()
        ends = await consumer.end_offsets([TopicPartition(*place) for place in places]) if places else {}
        if shorter := self._progress.is_past({(tp.topic, tp.partition): end for tp, end in ends.items()}):
            self._begin_again(shorter)
            raise _NextRoundError
        behind = dict.fromkeys(self._topics.values(), 0)
        for place in places:
            position = await consumer.position(TopicPartition(*place))
            # What was fetched is taken at once, so that what the client has passed besides is nothing of ours.
            self._intake.pass_to(place, position)
            self._progress.reach(place, position)
            behind[place[0]] += max(0, ends[TopicPartition(*place)] - position)
        for kind in _PAIRED:
            if not behind[self._topics[kind]]:
                self._intake.complete(kind, at)
        self.status = {**self.status, "lag": sum(behind.values()) + self._intake.pending}

    async def _tell_lost(self, consumer: Any) -> None:
        """Count messages that were deleted before they were read here: the page says so, with the file."""
        if not (gaps := self._progress.gaps()):
            return
        first = await consumer.beginning_offsets([TopicPartition(*place) for place in gaps])
        lost = self._progress.lost({(tp.topic, tp.partition): offset for tp, offset in first.items()})
        for topic, count in by_topic(lost, self._topics.values()).items():
            log.warning("topic %r deleted %d messages before they were read: keep it for longer", topic, count)
            self._intake.lost[topic] += count

    async def _write(self) -> None:
        """What is ready, a batch at a time, and not too often."""
        size = self._file.batch_size
        if time.monotonic() - self._written < _LINGER and self._intake.pending < size:
            return
        self._written = time.monotonic()
        verdicts, self._intake.verdicts = self._intake.verdicts, []
        if verdicts:  # before the offsets: read again, they are known
            # In a thread: a page may hold the audit log while its own verdict waits to be sent by this very loop.
            await asyncio.to_thread(self._enter, verdicts)
        wrote = False
        while arrivals := self._intake.ready(1 if self._alone else size):
            self._store(arrivals)
            wrote = True
            if self._alone:
                self._alone -= 1
                await asyncio.sleep(0)
        if wrote:
            self._told = self._written
        said = self._file.notes.get("mirror", {}).get("state")
        if said != "following" or (verdicts and not wrote) or self._has_news():
            self._tell("following")

    def _enter(self, verdicts: list[Verdict]) -> None:
        """Verdicts into the audit log; one that it refuses is reported in the program's log, and the others go on."""
        try:
            self._book.append(verdicts)
        except Exception as error:
            if _is_trouble(error):
                raise
            for verdict in verdicts:
                try:
                    self._book.append([verdict])
                except Exception as alone:
                    if _is_trouble(alone):
                        raise
                    self._intake.foreign["verdicts"] += 1
                    log.exception("a verdict cannot be kept: %r", verdict)

    def _store(self, arrivals: list[Arrival]) -> None:
        """Write a batch; if it fails for what is in it, its messages are tried one by one, and bad ones set aside."""
        try:
            self._file.write(arrivals, self._notes("following"), self._facts(arrivals))
        except Exception as error:
            if _is_trouble(error):
                raise
            if len(arrivals) > 1:
                log.warning("a batch cannot be written (%r): its messages are tried one by one", error)
                self._alone = len(arrivals)
                raise _NextRoundError from error
            (bad,) = arrivals
            log.warning("message %s/%s/%s is set aside: %r", *bad.source[0], bad.source[1], error)
            letter = set_aside(*bad.source, bad.stamp, bad.score or bad.alert or bad.letter or {}, error)
            try:  # of a bad score, the alert may be sound
                instead = Arrival(bad.stamp, alert=bad.alert if bad.score else None, letter=letter)
                self._file.write([instead], self._notes("following"))
            except Exception as again:
                if _is_trouble(again):
                    raise
                self._file.write([Arrival(bad.stamp, letter=letter)], self._notes("following"))

    def _has_news(self) -> bool:
        """Whether something else than arrivals has changed since it was last written, a second ago or more."""
        return time.monotonic() - self._told > 1.0 and self._notes("following") != self._without_kept()

    # What is said about it

    def _notes(self, state: str, error: str | None = None) -> dict[str, Any]:
        self.status = {**self.status, "state": state, "error": error}
        known = getattr(self, "_intake", None)
        notes = self._without_kept() if known is None else known.to_notes()
        return {**notes, "ids": self._ids or self._file.notes.get("ids", {}), "mirror": self.status}

    def _without_kept(self) -> dict[str, Any]:
        return {name: said for name, said in self._file.notes.items() if name != "kept"}

    def _tell(self, state: str, error: str | None = None) -> None:
        """Write it down, for whoever looks at the file."""
        self._told = time.monotonic()
        if state != "following" and hasattr(self, "_intake"):
            del self._intake  # what it has read and not written is read again
        try:
            self._file.write([], self._notes(state, error))
        except StreamCcsdError as failed:  # the disk is full, or the file is gone: say so at least here
            self.status = {**self.status, "state": "reconnecting", "error": str(failed)}

    def _facts(self, arrivals: list[Arrival]) -> dict[str, Any] | None:
        """What newer alerts say than those that were looked at first."""
        alerts = [a for a in arrivals if a.alert is not None and a.stamp >= self._file.facts.get("as_of", 0.0)]
        if not alerts:
            return None
        learnt = learnt_facts(self._file.facts, [a.alert for a in alerts if a.alert is not None])
        return None if learnt == self._file.facts else {**learnt, "as_of": alerts[-1].stamp}

    # The broker

    async def _look(self) -> dict[str, Topic]:
        """The topics there are; some may come later.

        Raises
        ------
        StreamCcsdError
            If the broker does not answer, or a topic is not the one that the file was made from.
        """
        async with admin_client(self._settings.brokers, self._settings.security()) as admin:
            found = (await describe(admin, list(self._topics.values()))).topics
        known = self._file.notes.get("ids", {}) if hasattr(self, "_file") else {}
        anew = {name for name, topic in found.items() if None not in (known.get(name), topic.id)}
        if anew := {name for name in anew if known[name] != found[name].id}:
            self._begin_again(anew)
        self._ids = {**known, **{name: topic.id for name, topic in found.items()}}
        self.status = {**self.status, "missing": [name for name in self._topics.values() if name not in found]}
        return found

    def _begin_again(self, topics: set[str]) -> None:
        """Offsets of topics that are others than before say nothing: verdicts and dead letters are read again.

        Raises
        ------
        StreamCcsdError
            If they are of scores or alerts: another stream's would stand beside those of the file.
        """
        for name in (self._topics[kind] for kind in _PAIRED if self._topics[kind] in topics):
            raise StreamCcsdError(
                f"topic {name!r} on {self._settings.brokers} was made anew, or has lost data, or is of another "
                f"cluster, and {self._path} is of the one before: start again with another --state to see what is new"
            )
        log.warning("topics were made anew, or have lost data: they are read from their beginning: %s", sorted(topics))
        kept = {
            said: {name: of for name, of in self._file.notes.get(said, {}).items() if name not in topics}
            for said in ("offsets", "open", "ids")
        }
        self._file.write([], {**self._without_kept(), **kept})

    @contextlib.asynccontextmanager
    async def _consumer(self) -> AsyncIterator[Any]:
        """One without a group: it reads everything, whoever else does."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._settings.brokers,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            request_timeout_ms=_UNANSWERED,
            **self._settings.security().client_options(),
        )
        await start_client(consumer, self._settings.brokers)
        try:
            yield consumer
        finally:
            # Without a broker it would wait for ever, and raises a cancellation of its own.
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await asyncio.wait_for(consumer.stop(), timeout=3.0)

    async def _newest_alerts(self) -> list[tuple[float, Record]]:
        """A few with their times, the newest last."""
        found: list[tuple[float, Record]] = []
        places = [place for place in _places(await self._look()) if place[0] == self._topics["alerts"]]
        partitions = [TopicPartition(*place) for place in places]
        if not partitions:
            return []
        try:
            async with self._consumer() as consumer:
                consumer.assign(partitions)
                ends = await consumer.end_offsets(partitions)
                starts = await consumer.beginning_offsets(partitions)
                for partition in partitions:
                    consumer.seek(partition, max(starts[partition], ends[partition] - _PEEK))
                deadline = time.monotonic() + _PEEK_SECONDS
                while time.monotonic() < deadline:
                    fetched = await consumer.getmany(timeout_ms=round(1000 * _FETCH))
                    messages = [message for batch in fetched.values() for message in batch]
                    found += [(m.timestamp / 1000, a) for m in messages if (a := parse_alert(m.value)) is not None]
                    if all([await consumer.position(p) >= ends[p] for p in partitions]):
                        break
        except KafkaError as error:
            raise BrokerError(explain(self._settings.brokers, error)) from error
        return sorted(found, key=lambda pair: pair[0])


def _is_trouble(error: Exception) -> bool:
    """Whether file or machine are the cause, and not what was to be written."""
    return isinstance(error, StreamCcsdError | OSError | MemoryError)


def _is_cancelled(error: BaseException) -> bool:
    """Whether we are meant: clients raise cancellations of their own, from tasks that they end."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _places(found: dict[str, Topic]) -> list[Place]:
    return [(name, number) for name, topic in sorted(found.items()) for number in range(topic.partitions)]
