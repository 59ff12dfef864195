"""Kafka's scores, alerts, dead letters and verdicts in a local file, which a page reads as it does a replay's state.

The mirror runs in a thread of its own. Each batch is one SQLite transaction that also holds how far each topic was
read: killed at any moment, it goes on behind the last whole batch, and nothing is lost or there twice. It needs no
consumer group, and any number of pages may each have their own.

:class:`Sender` sends verdicts to their topic, from where the learner reads them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from replay.mirror.follow import Following
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.client import BrokerError, admin_client, explain, start_client
from stream_ccsd.kafka.codec import verdict_message
from stream_ccsd.kafka.faust.metadata import describe
from stream_ccsd.kafka.ops.logs import quiet_clients
from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.verdict import Verdict

# Somebody is waiting in front of a page: seconds, and milliseconds for the client.
PATIENCE = 10.0
_UNANSWERED = 5_000


class Sender:
    """An idempotent producer that is made when it is needed, and anew after a failure. One asyncio loop's."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._producer: Any = None
        self._one = asyncio.Lock()

    async def send(self, verdicts: Sequence[Verdict]) -> None:
        """Return when the broker has all of them, on all replicas that are in sync.

        Raises
        ------
        BrokerError
            If that is not certain; those that came through may be sent again, and count once.
        """
        brokers = self._settings.brokers
        async with self._one:
            try:
                async with asyncio.timeout(PATIENCE):
                    producer = await self._started()
                    waiting = [
                        await producer.send(self._settings.verdicts, verdict_message(v), key=v.account.encode())
                        for v in verdicts
                    ]
                    await asyncio.gather(*waiting)
            except BrokerError as error:  # it did not even begin
                raise BrokerError(f"not sent, try again: {error}") from error
            except (KafkaError, OSError, TimeoutError) as error:
                await self.close()
                raise BrokerError(f"not confirmed, try again: {explain(brokers, error)}") from error

    async def _started(self) -> Any:
        if self._producer is not None:
            return self._producer
        settings, security = self._settings, self._settings.security()
        async with admin_client(settings.brokers, security) as admin:
            if settings.verdicts not in (await describe(admin, [settings.verdicts])).topics:
                raise BrokerError(
                    f"{settings.brokers} has no topic {settings.verdicts!r}: start a worker or 'stream-ccsd learn', "
                    "which make it"
                )
        producer = AIOKafkaProducer(
            bootstrap_servers=settings.brokers,
            acks="all",
            enable_idempotence=True,
            request_timeout_ms=_UNANSWERED,
            **security.client_options(),
        )
        await start_client(producer, settings.brokers)
        self._producer = producer
        return producer

    async def close(self) -> None:
        """Forget the client; the next verdict gets a new one."""
        producer, self._producer = self._producer, None
        if producer is not None:
            # Without a broker it would wait for ever, and raises a cancellation of its own.
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await asyncio.wait_for(producer.stop(), timeout=2.0)


KEEP, KEEP_ALERTS = 1_000_000, 100_000
"""Transactions and alerts in the local file; of dead letters as many as of alerts."""
_CLOSING = 10.0


def open_mirror(
    url: str,
    *,
    config: Path | None = None,
    state: Path | None = None,
    keep: int = KEEP,
    keep_alerts: int = KEEP_ALERTS,
    suffix: str = "",
    model: Path | None = None,
) -> Mirror:
    """Begin to mirror ``kafka://host:port``; the file is there when this returns, and fills from then on.

    Parameters
    ----------
    config
        TLS, SASL and names of topics, as for ``worker --config``; ``STREAM_CCSD_...`` variables count, too.
    state
        The local file, kept between starts; by default a temporary one, which goes with the mirror.
    suffix
        Of a challenger's topics.
    model
        What says how times are shown, and the rules of alerts, where messages do not.

    Raises
    ------
    StreamCcsdError
        If settings do not fit, the file is of something else, or there is none yet and the broker does not answer. A
        broker that goes away later, or while there is a file, is waited for (see :meth:`Mirror.status`).
    """
    if keep < 1 or keep_alerts < 1:
        raise StreamCcsdError(f"expected at least one transaction and one alert to keep, got {keep} and {keep_alerts}")
    flags = {"broker": url, "suffix": suffix or None}
    settings = WorkerSettings.load(flags, config)
    folder = None if state is not None else Path(tempfile.mkdtemp(prefix="stream-ccsd-watch-"))
    path = state if state is not None else folder / "watch.db"  # type: ignore[operator]
    return Mirror(Following(settings, path, keep, keep_alerts, model), Sender(settings), path, folder)


class Mirror:
    """A file that follows topics: ``path`` is as a replay's state file, with the audit log beside it."""

    def __init__(self, following: Following, sender: Sender, path: Path, temporary: Path | None) -> None:
        self.path = path
        self._following, self._sender, self._temporary = following, sender, temporary
        self._begun: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop
        self._stopped: asyncio.Event
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()
        try:
            self._begun.result()
        except BaseException:
            self._thread.join()
            self._remove()
            raise

    def status(self) -> dict[str, Any]:
        """``state`` (following, reconnecting, or closed), ``lag`` in messages (None: not known), ``error`` in words,
        and topics that are ``missing``. The file has the same in its notes, under ``mirror``.
        """
        return {**self._following.status, **({} if self._thread.is_alive() else {"state": "closed"})}

    def send(self, verdicts: Sequence[Verdict]) -> None:
        """Verdicts to their topic, keyed by account; returns when the broker has confirmed all of them.

        Raises
        ------
        StreamCcsdError
            If it has not. Sent again, what came through counts once.
        """
        if not self._thread.is_alive():
            raise StreamCcsdError("the mirror was closed: start again, then send the verdict")
        sent = asyncio.run_coroutine_threadsafe(self._sender.send(verdicts), self._loop)
        try:
            sent.result(timeout=3 * PATIENCE)
        except (TimeoutError, concurrent.futures.CancelledError) as error:
            sent.cancel()
            raise StreamCcsdError("not confirmed: the broker does not answer. Try again") from error

    def close(self) -> None:
        """Finish the batch at hand and end; a temporary file goes."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it ends by itself at this moment
                self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(timeout=_CLOSING)
        self._remove()

    def __enter__(self) -> Mirror:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _remove(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _run(self) -> None:
        try:
            with quiet_clients():
                asyncio.run(self._main())
        except BaseException as error:
            if not self._begun.done():
                self._begun.set_exception(error)
            # Else it is in the log and in the status.

    async def _main(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self._following.begin()
            self._begun.set_result(None)
            await self._following.run(self._stopped)
        except BaseException as error:
            if self._begun.done():  # nobody waits for it any more
                self._following.end(error)
            raise
        finally:
            await self._sender.close()
            self._following.close()
