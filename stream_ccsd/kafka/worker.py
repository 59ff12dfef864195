"""A worker from start to end: everything it is made of, put together, watched, and taken down in order."""

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

from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.app import WorkerApp
from stream_ccsd.kafka.connection import BrokerError, explain
from stream_ccsd.kafka.metrics import Metrics
from stream_ccsd.kafka.models import ModelWatch
from stream_ccsd.kafka.outbox import Outbox
from stream_ccsd.kafka.processing import Processor
from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.kafka.topics import prepare_topics
from stream_ccsd.kafka.web import Web
from stream_ccsd.library.model import Model
from stream_ccsd.transaction import Schema, Transaction

log = logging.getLogger(__name__)

# A batch that is handled for longer is stuck, and the process better started anew.
_STUCK = 300.0
# After this, a broker that does not answer is not waited for any longer.
_PATIENCE = 10.0
_GLANCE = 0.1


async def run_worker(settings: WorkerSettings, schema: Schema, model: Model) -> None:
    """Work until asked to stop; returns when everything is confirmed and closed.

    Raises
    ------
    StreamCcsdError
        If the worker cannot start, or cannot go on. Nothing is lost by that: what was not finished is read again.
    """
    with _own_folder(settings):
        partitions = await prepare_topics(settings)
        worker = _Worker(settings, schema, model, partitions)
        await worker.run()


class _Worker:
    def __init__(self, settings: WorkerSettings, schema: Schema, model: Model, partitions: int) -> None:
        self._settings = settings
        self._metrics = Metrics()
        self._outbox = Outbox(settings)
        self._processor = Processor(
            settings, schema, model, lambda: self._app.table.store, self._outbox.confirm, self._metrics
        )
        self._app = WorkerApp(
            settings,
            partitions,
            self._processor.handle,
            self._processor.forget_partitions,
        )
        self._processor.partitions = self._app
        assert settings.model is not None
        self._models = ModelWatch(settings.model, model, self._processor.use, self._metrics)
        self._web = Web(settings, self._metrics, self._health, self._readiness)
        now = self._metrics.now
        now.lag = lambda: self._app.lag(self._processor.next_offsets)
        now.accounts = lambda: self._app.table.store.accounts() if self._app.ready() else 0
        now.recovery, now.ready = self._app.recovery, self._app.ready

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
        try:
            await self._outbox.start()
            await self._until_done(asked)
        finally:
            begun = time.monotonic()
            await self._stop()
            log.info("worker stopped", extra={"seconds": round(time.monotonic() - begun, 3)})

    async def _until_done(self, asked: asyncio.Event) -> None:
        app = self._app.faust
        tasks = [
            asyncio.create_task(app.start(), name="faust"),
            asyncio.create_task(self._models.watch(self._settings.model_poll), name="models"),
            asyncio.create_task(self._tell(), name="progress"),
        ]
        waits = [asyncio.create_task(event.wait()) for event in (asked, self._processor.failed, app._crashed)]
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
        failures = [self._processor.failure, *map(_failed, tasks), app.crash_reason]
        failure = next((f for f in failures if f is not None), None)
        if failure is None and app._crashed.is_set():
            failure = StreamCcsdError("Faust ended without saying why")
        if failure is not None:
            self._processor.fail(failure)
            raise _explained(failure)

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
            now = (self._app.ready(), self._app.assigned())
            if now != before and now[0]:
                log.info("ready", extra={"partitions": now[1], "accounts": self._app.table.store.accounts()})
            before = now

    async def _stop(self) -> None:
        # Clients without a broker, and threads that wait for them, must not keep the process alive.
        last_resort = threading.Timer(_PATIENCE + 5, os._exit, [0 if self._processor.failure is None else 1])
        last_resort.daemon = True
        last_resort.start()
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._app.faust.stop()
                await self._outbox.stop()
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

    def _readiness(self) -> tuple[bool, dict[str, Any]]:
        remaining, share = self._app.recovery()
        ready = self._app.ready()
        return ready, {
            "ready": ready,
            "partitions": self._app.assigned(),
            "model": self._processor.model.version,
            "recovery": {"remaining": remaining, "done": round(share, 4)},
        }


def warm_up(model: Model) -> None:
    """Score a transaction for nobody."""
    Engine(model).process(Transaction("warm-up", 0.0, 1.0, "", "warm-up", "warm-up"))


def _failed(task: asyncio.Task[Any]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


def _explained(failure: BaseException) -> StreamCcsdError:
    if isinstance(failure, StreamCcsdError):
        return failure
    log.error("the worker failed", exc_info=failure)
    return StreamCcsdError(f"the worker cannot go on: {failure!r}. Nothing is lost: start it again")


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
