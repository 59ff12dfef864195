"""Metrics and health of a worker or learner over HTTP: ``/healthz``, ``/readyz`` and ``/metrics`` for Prometheus.

All times are in milliseconds. Values that change all the time are read from the worker only when somebody asks. The
page of metrics is made at most once a second and off the event loop, so transactions do not wait for it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.settings import WorkerSettings

_PREFIX = "stream_ccsd_"
_MILLISECONDS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)


class Now:
    """What is asked for only when somebody looks: asked on the event loop, shown from any thread."""

    def __init__(self) -> None:
        self.values: tuple[dict[int, int], int, tuple[int, float], bool] = ({}, 0, (0, 1.0), False)
        self.lag: Callable[[], dict[int, int]] = dict
        self.accounts: Callable[[], int] = lambda: 0
        self.recovery: Callable[[], tuple[int, float]] = lambda: (0, 1.0)
        self.ready: Callable[[], bool] = lambda: False

    def look(self) -> None:
        """Ask."""
        self.values = self.lag(), self.accounts(), self.recovery(), self.ready()


class Metrics:
    """One registry a worker."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.now = Now()
        self.events = Counter(_PREFIX + "events", "Transactions entered and scored", registry=self.registry)
        self.rejects = Counter(
            _PREFIX + "rejects",
            "Messages sent to the dead letters, by kind",
            ["kind"],
            registry=self.registry,
        )
        self.internal_errors = Counter(
            _PREFIX + "internal_errors",
            "Messages that a fault of this software kept from being scored; each is in the log with its traceback",
            registry=self.registry,
        )
        self.alerts = Counter(_PREFIX + "alerts", "Alerts raised", registry=self.registry)
        self.drift = Counter(
            _PREFIX + "drift_events", "Changes of the stream that were noticed", ["what"], registry=self.registry
        )
        self.passed_over = Counter(
            _PREFIX + "passed_over", "Messages read again that had had their effect before", registry=self.registry
        )
        self.foreign_writes = Counter(
            _PREFIX + "foreign_changelog_writes",
            "Times another worker wrote to the changelog of a partition of ours",
            registry=self.registry,
        )
        self.model_failures = Counter(
            _PREFIX + "model_failures", "New models that could not be used", registry=self.registry
        )
        self.batch_size = Histogram(
            _PREFIX + "batch_size", "Messages handled together", buckets=_SIZES, registry=self.registry
        )
        self.scoring = Histogram(
            _PREFIX + "scoring_milliseconds",
            "Scoring of one batch, off the event loop",
            buckets=_MILLISECONDS,
            registry=self.registry,
        )
        self.confirming = Histogram(
            _PREFIX + "confirming_milliseconds",
            "From a batch's scores until its outputs were confirmed and its states stored",
            buckets=_MILLISECONDS,
            registry=self.registry,
        )
        self.end_to_end = _ManyTimes(
            _PREFIX + "end_to_end_milliseconds", "From a transaction's timestamp in Kafka until its score was confirmed"
        )
        self.registry.register(self.end_to_end)
        self.model = Info(_PREFIX + "model", "The model that scores", registry=self.registry)
        self.model_loaded = Gauge(
            _PREFIX + "model_loaded_timestamp_seconds", "When the model was loaded", registry=self.registry
        )
        self.registry.register(_AtScrape(self.now))
        ProcessCollector(registry=self.registry)  # memory, processor time, start time

    def look(self) -> None:
        """Ask for what is asked for only when somebody looks."""
        self.now.look()


class LearnerMetrics:
    """The same of a learner."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        prefix = _PREFIX + "learner_"
        self.lessons = Counter(prefix + "lessons", "Lessons held", registry=registry)
        self.repeated = Counter(
            prefix + "repeated_lessons", "Lessons whose model was in the folder already", registry=registry
        )
        self.scores = Counter(prefix + "scores", "Scores read that can be learnt from, each once", registry=registry)
        self.verdicts = Counter(prefix + "verdicts", "Verdicts heard, each once", registry=registry)
        self.rejects = Counter(prefix + "rejects", "Messages that are no verdicts", registry=registry)
        self.foreign = Counter(
            prefix + "foreign_scores", "Messages that are no scores of this model", registry=registry
        )
        self.lost = Counter(
            prefix + "lost_messages", "Messages that topics deleted before they were read", ["topic"], registry=registry
        )
        self.made_anew = Counter(
            prefix + "topics_made_anew", "Times a topic was another one of the same name", registry=registry
        )
        self.refused = Counter(prefix + "refused_models", "Models of the folder that cannot be used", registry=registry)
        self.held_back = Counter(
            prefix + "held_back_models", "Models not added because they know less than the newest", registry=registry
        )
        self.waiting = Gauge(prefix + "waiting", "Verdicts on transactions that were not seen yet", registry=registry)
        self.disputed = Gauge(prefix + "disputed", "Transactions that people disagree on", registry=registry)
        self.moment = Gauge(prefix + "moment", "The newest lesson, in the stream's time", registry=registry)
        self.behind = Gauge(prefix + "lag", "Messages behind the ends of the topics", registry=registry)
        self.seconds = Histogram(
            prefix + "lesson_milliseconds",
            "A lesson, until its model is stored",
            buckets=_MILLISECONDS,
            registry=registry,
        )
        self.model = Info(prefix + "model", "The newest model", registry=registry)
        ProcessCollector(registry=registry)

    def look(self) -> None:
        """Nothing is asked for late."""


class _ManyTimes(Collector):
    """A histogram that takes all times of a batch at once: a lock and a search for each would slow every batch."""

    def __init__(self, name: str, meaning: str) -> None:
        self._name, self._meaning = name, meaning
        self._seen = np.zeros(len(_MILLISECONDS) + 1, np.int64), 0.0  # by bucket, and their sum

    def observe_all(self, times: Iterable[float]) -> None:
        """Milliseconds."""
        values = np.fromiter(times, float)
        places = np.searchsorted(_MILLISECONDS, values)
        counts, total = self._seen
        self._seen = counts + np.bincount(places, minlength=len(counts)), total + float(values.sum())

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """As Prometheus' own."""
        counts, total = self._seen
        ends = map(floatToGoString, (*_MILLISECONDS, float("inf")))
        buckets = list(zip(ends, np.cumsum(counts).tolist(), strict=True))
        yield HistogramMetricFamily(self._name, self._meaning, buckets=buckets, sum_value=total)


class _AtScrape(Collector):
    def __init__(self, now: Now) -> None:
        self._now = now

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Gauges that are read off the worker."""
        lag = GaugeMetricFamily(_PREFIX + "lag", "Messages behind the end of a partition", labels=["partition"])
        behind_by_partition, accounts, (remaining, share), ready = self._now.values
        for partition, behind in sorted(behind_by_partition.items()):
            lag.add_metric([str(partition)], behind)
        yield lag
        yield GaugeMetricFamily(_PREFIX + "accounts", "Accounts with a state here, about", value=accounts)
        yield GaugeMetricFamily(
            _PREFIX + "recovery_remaining", "Changelog records still to be read before work begins", value=remaining
        )
        yield GaugeMetricFamily(_PREFIX + "recovery_progress", "Share of the recovery that is done", value=share)
        yield GaugeMetricFamily(_PREFIX + "ready", "Whether the worker is working", value=float(ready))


_FRESH = 1.0

Facts = Callable[[], tuple[bool, dict[str, Any]]]


class Told(Protocol):
    """Metrics of a process, for Prometheus."""

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
