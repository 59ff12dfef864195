"""``stream-ccsd learn``: models from verdicts, on Kafka."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stream_ccsd.cli.command import with_options
from stream_ccsd.errors import StreamCcsdError

if TYPE_CHECKING:
    from stream_ccsd.calendar import Calendar
    from stream_ccsd.lessons.schedule import Schedule

FAILED = 1


@dataclass(frozen=True)
class LearnOptions:
    """What ``stream-ccsd learn`` is told."""

    models: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Folder of model versions ('stream-ccsd models'), which workers follow: models go there.",
        ),
    ]
    broker: Annotated[
        str | None, typer.Option(help="Brokers to begin with: kafka://host:port,host:port.", show_default=False)
    ] = None
    every: Annotated[
        str,
        typer.Option(help="A lesson each so much of the stream's time: hourly, daily, weekly, 6h, or a bare number."),
    ] = "daily"
    delay: Annotated[
        str, typer.Option(help="Silence about a transaction counts as normal after this long: 7d, or a bare number.")
    ] = "7d"
    idle: Annotated[
        float, typer.Option(help="Seconds after which a partition on which nothing comes is not waited for.")
    ] = 600.0
    grace: Annotated[
        float, typer.Option(help="Seconds by which clocks of brokers and learner may differ; lessons wait so long.")
    ] = 5.0
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings as TOML, those of 'worker': topics, security, logs, web port."),
    ] = None
    suffix: Annotated[
        str | None, typer.Option(help="Learn from the scores of the workers with this --suffix.", show_default=False)
    ] = None
    web_port: Annotated[
        int | None, typer.Option(help="Port for /healthz, /readyz and /metrics; 0 takes a free one.")
    ] = None


@with_options
def learn(options: LearnOptions) -> None:
    """Learn from verdicts: reads the topics of scores and verdicts, and writes a model after each lesson.

    Workers that follow the folder pick it up. Settings are those of 'stream-ccsd worker', from variables
    (STREAM_CCSD_...) and the --config file. It keeps nothing else: killed and started again, it reads the topics from
    their beginning, and the same models come out.

    Exit code 0: stopped by SIGTERM or Ctrl-C; 1: it could not start or go on, and says why.
    """
    # Until the learner's own handlers are there nothing has begun, and there is nothing to finish.
    before = {number: signal.signal(number, lambda *_: os._exit(0)) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        settings, patience = _prepare(options)
        from stream_ccsd.kafka import logs
        from stream_ccsd.kafka.learning import run_learner
        from stream_ccsd.kafka.lessons import first_model

        first = first_model(options.models)
        schedule = chosen_schedule(options.every, options.delay, first.calendar)
        schedule.check(first)
    except BaseException:
        for number, handler in before.items():
            signal.signal(number, handler)
        raise
    repeats = logs.set_up(settings)
    code = 0
    try:
        asyncio.run(run_learner(settings, options.models, first, schedule, patience, repeats))
    except Exception as error:
        logs.last_words(str(error) or repr(error), "learner")
        code = FAILED
    # Clients that lost their broker leave threads behind, which would keep the process alive.
    sys.stderr.flush()
    os._exit(code)


def chosen_schedule(every: str, delay: str, calendar: Calendar) -> Schedule:
    """When lessons are, from words and lengths of time."""
    from stream_ccsd.lessons.schedule import OFTEN, Schedule

    return Schedule(calendar.duration(OFTEN.get(every, every)), calendar.duration(delay))


def _prepare(options: LearnOptions) -> tuple[Any, Any]:
    from stream_ccsd.kafka.settings import WorkerSettings

    try:
        from stream_ccsd.kafka.learning import Patience
    except ImportError as error:
        raise StreamCcsdError(f"a learner needs {error.name}: pip install 'stream-ccsd[kafka]'") from error
    for name in ("idle", "grace"):
        value = getattr(options, name)
        if not (isfinite(value) and value >= 0):
            raise StreamCcsdError(f"--{name} is {value!r}, expected seconds, 0 or more")
    flags = {"broker": options.broker, "suffix": options.suffix, "web_port": options.web_port}
    settings = WorkerSettings.load(flags, options.config)
    if settings.log_format is None:
        style: Literal["text", "json"] = "text" if sys.stderr.isatty() else "json"
        settings = replace(settings, log_format=style)
    settings.security()
    return settings, Patience(options.idle, options.grace)
