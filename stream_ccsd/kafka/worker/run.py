"""A worker process from start to end: its parts are put together, watched, and taken down in order."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiokafka.errors import KafkaError

from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.client import BrokerError, explain
from stream_ccsd.kafka.faust.app import WorkerApp
from stream_ccsd.kafka.faust.internals import check_parts
from stream_ccsd.kafka.ops.logs import Repeats, last_words
from stream_ccsd.kafka.ops.metrics import Metrics, Web
from stream_ccsd.kafka.producer import Producer
from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.kafka.topics import TopicsSeen, TopicWatch, prepare_topics
from stream_ccsd.kafka.worker.guarantee import Processor
from stream_ccsd.kafka.worker.model_watch import ModelWatch
from stream_ccsd.learning.learner import listening
from stream_ccsd.model.model import Model
from stream_ccsd.transaction import Schema, Transaction

log = logging.getLogger(__name__)

# A batch that is handled for longer is stuck, and the process better started anew.
_STUCK = 300.0
# After this, a broker that does not answer is not waited for any longer.
_PATIENCE = 10.0
_GLANCE = 0.1
# New objects after which Python looks for garbage that refers to itself.
_YOUNG = 50_000


async def run_worker(settings: WorkerSettings, schema: Schema, model: Model, repeats: Repeats | None = None) -> None:
    """Work until asked to stop; returns when everything is confirmed and closed.

    Raises
    ------
    StreamCcsdError
        If the worker cannot start, or cannot go on. Nothing is lost by that: what was not finished is read again.
    """
    check_parts()
    with _own_folder(settings):
        worker = _Worker(settings, schema, model, await prepare_topics(settings), repeats)
        await worker.run()


class _Worker:
    def __init__(
        self, settings: WorkerSettings, schema: Schema, model: Model, seen: TopicsSeen, repeats: Repeats | None
    ) -> None:
        self._settings, self._repeats = settings, repeats
        self._metrics = Metrics()
        self._producer = Producer(settings, seen.largest_message(settings.dead_letters))
        self._topics = TopicWatch(settings, seen)
        transactions = seen.topics[settings.transactions]
        self._processor = Processor(
            settings,
            schema,
            model,
            lambda: self._app.table.store,
            self._producer.confirm,
            self._metrics,
            transactions.id,
        )
        self._app = WorkerApp(
            settings,
            transactions.partitions,
            self._processor,
            self._processor.forget_partitions,
        )
        self._processor.partitions = self._app
        assert settings.model is not None
        prepare = listening if model.learnt is not None else _as_it_is
        self._models = ModelWatch(settings.model, model, self._processor.use, self._metrics, prepare)
        self._web = Web(settings, self._metrics, self._health, self._readiness)
        now = self._metrics.now
        self._known_lag: dict[int, int] = {}
        now.lag = self._lag
        now.accounts = lambda: self._app.table.store.accounts() if self._app.ready() else 0
        now.recovery, now.ready = self._app.recovery, self._is_ready

    async def run(self) -> None:
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked.set)
        await self._web.start()
        log.info(
            "worker starts",
            extra={
                "model": self._processor.model.version,
                "broker": self._settings.brokers,
                "group": self._settings.group,
                "web": f"http://{self._settings.web_host}:{self._web.port}",
            },
        )
        # Compiled code is loaded before the first transaction waits for it, and long before the group does.
        await asyncio.to_thread(warm_up, self._processor.model)
        # Half a million objects of compilers and libraries stay as they are: looking through them for garbage would
        # hold up transactions for a tenth of a second, now and then.
        gc.collect()
        gc.freeze()
        # A batch makes tens of thousands, and nearly all go with it: looking at every 700th would find none.
        gc.set_threshold(_YOUNG)
        try:
            await self._producer.start()
            await self._until_done(asked)
        finally:
            begun = time.monotonic()
            await self._stop()
            log.info("worker stopped", extra={"seconds": round(time.monotonic() - begun, 3)})

    async def _until_done(self, asked: asyncio.Event) -> None:
        app = self._app.faust
        tasks = [
            asyncio.create_task(app.start(), name="faust"),
            asyncio.create_task(self._topics.watch(), name="topics"),
            asyncio.create_task(self._models.watch(self._settings.model_poll), name="models"),
            asyncio.create_task(self._tell(), name="progress"),
        ]
        waits = [asyncio.create_task(event.wait()) for event in (asked, self._processor.failed, self._app.crashed)]
        try:
            while True:
                running = [task for task in tasks if not task.done()]
                await asyncio.wait([*running, *waits], return_when=asyncio.FIRST_COMPLETED)
                # Faust's start returns when it has started; anything else that ends has failed.
                if any(w.done() for w in waits) or any(map(_failed, tasks)):
                    break
        finally:
            for task in (*tasks[1:], *waits):
                task.cancel()
        failures = [self._processor.failure, *map(_failed, tasks[1:]), self._app.failure(), _failed(tasks[0])]
        failure = next((f for f in failures if f is not None), None)
        if failure is not None:
            explained = _explained(failure, self._settings)
            self._processor.fail(explained)
            raise explained

    async def _tell(self) -> None:
        """Say which partitions this worker has, when that changes, and notice when it has lost its group."""
        before: tuple[bool, list[int]] = (False, [])
        while True:
            await asyncio.sleep(_GLANCE)
            try:
                self._app.check()
            except StreamCcsdError:
                raise
            except Exception as error:
                raise BrokerError(explain(self._settings.brokers, error)) from error
            if self._repeats is not None:
                self._repeats.tell()
            now = (self._app.ready(), self._app.assigned())
            if now != before and now[0]:
                log.info("ready", extra={"partitions": now[1], "accounts": self._app.table.store.accounts()})
            before = now

    async def _stop(self) -> None:
        # Clients without a broker, and threads that wait for them, must not keep the process alive.
        last_resort = threading.Timer(_PATIENCE + 5, _end_at_once, [self._processor.failure])
        last_resort.daemon = True
        last_resort.start()
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._app.faust.stop()
                await self._producer.stop()
        except TimeoutError:
            log.warning("the broker does not answer; what was not confirmed is read again by the next worker")
        except Exception:
            log.exception("while stopping")
        self._processor.close()
        await self._web.stop()

    def _health(self) -> tuple[bool, dict[str, Any]]:
        begun = self._processor.begun
        stuck = begun is not None and time.monotonic() - begun > _STUCK
        failure = self._processor.failure
        good = not stuck and failure is None
        return good, {"healthy": good, "stuck": stuck, "failure": None if failure is None else str(failure)}

    def _is_ready(self) -> bool:
        """Whether it would score what came now; without a broker nothing comes."""
        return self._topics.answered and self._app.ready()

    def _lag(self) -> dict[int, int]:
        """What is known of it: in an outage, and while partitions change hands, as it was before."""
        if self._is_ready():
            self._known_lag = self._app.lag()
        return self._known_lag

    def _readiness(self) -> tuple[bool, dict[str, Any]]:
        remaining, share = self._app.recovery()
        ready = self._is_ready()
        return ready, {
            "ready": ready,
            "broker_answers": self._topics.answered,
            "partitions": self._app.assigned(),
            "model": self._processor.model.version,
            "recovery": {"remaining": remaining, "done": round(share, 4)},
        }


def _as_it_is(model: Model) -> Model:
    return model


def warm_up(model: Model) -> None:
    """Score a transaction for nobody."""
    Engine(model).process(Transaction("warm-up", 0.0, 1.0, "", "warm-up", "warm-up"))


def _failed(task: asyncio.Task[Any]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


def _explained(failure: BaseException, settings: WorkerSettings) -> StreamCcsdError:
    """A failure as a sentence that says what to do; what nobody thought of is logged with its traceback."""
    if isinstance(failure, StreamCcsdError):
        return failure
    if isinstance(failure, KafkaError):
        return BrokerError(explain(settings.brokers, failure))
    if isinstance(failure, MemoryError):
        return StreamCcsdError("not enough memory: lower --batch, or give the worker more. Nothing is lost by that")
    log.error("the worker failed", exc_info=failure)
    return StreamCcsdError(
        f"the worker cannot go on: {failure!r}, a fault of this software; the log has its traceback. Nothing is lost: "
        "what was not finished is read again. If it ends in the same way again, report it"
    )


def _end_at_once(failure: BaseException | None) -> None:
    if failure is not None:
        last_words(str(failure))
    os._exit(0 if failure is None else 1)


@contextlib.contextmanager
def _own_folder(settings: WorkerSettings) -> Iterator[None]:
    """A state folder is one worker's."""
    folder: Path = settings.state_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise StreamCcsdError(f"the state folder {folder} cannot be used: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StreamCcsdError(
                f"another worker uses {folder}: give each its own --state-dir (and --web-port)"
            ) from error
        yield
