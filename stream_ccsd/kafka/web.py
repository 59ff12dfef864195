"""What others may ask a worker over HTTP: is it alive, is it working, how is it doing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Protocol

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.settings import WorkerSettings

_FRESH = 1.0

Facts = Callable[[], tuple[bool, dict[str, Any]]]


class Told(Protocol):
    """What a process tells Prometheus."""

    registry: CollectorRegistry

    def look(self) -> None:
        """Ask for what is asked for only when somebody looks."""


class _MetricsPage:
    """Made at most once a second, off the event loop, however many ask for it: transactions do not wait for it."""

    def __init__(self, metrics: Told) -> None:
        self._metrics = metrics
        self._page, self._made = b"", -_FRESH
        self._making = asyncio.Lock()

    async def get(self) -> bytes:
        """The page, at most so old."""
        async with self._making:
            if time.monotonic() - self._made >= _FRESH:
                self._metrics.look()
                self._page = await asyncio.to_thread(generate_latest, self._metrics.registry)
                self._made = time.monotonic()
            return self._page


class Web:
    """``/healthz``, ``/readyz`` and ``/metrics``, from the first moment on, also while states are recovered."""

    def __init__(self, settings: WorkerSettings, metrics: Told, health: Facts, readiness: Facts) -> None:
        self._settings = settings
        self.port = settings.web_port
        application = web.Application()
        application.router.add_get("/healthz", _answering(health))
        application.router.add_get("/readyz", _answering(readiness))

        page = _MetricsPage(metrics)

        async def show_metrics(request: web.Request) -> web.Response:
            return web.Response(body=await page.get(), headers={"Content-Type": CONTENT_TYPE_LATEST})

        application.router.add_get("/metrics", show_metrics)
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self) -> None:
        """Listen."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._settings.web_host, self._settings.web_port)
        try:
            await site.start()
        except OSError as error:
            raise StreamCcsdError(
                f"cannot listen on {self._settings.web_host}:{self._settings.web_port} ({error.strerror}): "
                "name another --web-port, or 0 for a free one"
            ) from error
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()


def _answering(facts: Facts) -> Callable[[web.Request], Any]:
    async def answer(request: web.Request) -> web.Response:
        good, said = facts()
        return web.json_response(said, status=200 if good else 503, dumps=lambda v: json.dumps(v, default=str))

    return answer
