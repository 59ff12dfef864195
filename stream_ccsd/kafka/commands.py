"""The commands ``stream-ccsd worker`` (the engine on Kafka) and ``stream-ccsd learn`` (models from verdicts)."""

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
from rich.console import Console
from rich.markup import escape

from stream_ccsd.cli.command import Flags, columns_schema, with_options
from stream_ccsd.cli.output import JsonOption, check_target, emit, plain_table
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.settings import WorkerSettings

if TYPE_CHECKING:
    from stream_ccsd.calendar import Calendar
    from stream_ccsd.learning.schedule import Schedule


FAILED = 1


@with_options
def worker(
    given: Annotated[dict[str, Any], Flags(WorkerSettings)],
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings as TOML, named as the flags.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check settings, model and broker, and exit.")] = False,
    json_target: JsonOption = None,
) -> None:
    """Score transactions of a Kafka topic: scores, alerts and dead letters go to topics, states into a changelog.

    Start as many workers as there are partitions; each needs its own --state-dir and --web-port on one machine. Every
    flag can be a variable (STREAM_CCSD_WEB_PORT) or a line of the --config file (web_port = 6067) instead.

    Exit code 0: stopped by SIGTERM or Ctrl-C; 1: it could not start or go on, and says why. Nothing is lost by either.
    """
    check_target(json_target)
    if not check:
        # Until the worker's own handlers are there nothing has begun, and there is nothing to finish.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os._exit(0))
    settings, schema, loaded = _prepare(given, config)
    from stream_ccsd.kafka.ops import logs

    if check:
        from stream_ccsd.kafka.worker.check import check_worker

        with logs.quiet_clients():
            result = asyncio.run(check_worker(settings, loaded))
        emit(result, json_target, _show_check)
        return
    from stream_ccsd.kafka.worker.run import run_worker

    repeats = logs.set_up(settings)
    code = 0
    try:
        asyncio.run(run_worker(settings, schema, loaded, repeats))
    except Exception as error:
        logs.last_words(str(error) or repr(error))
        code = FAILED
    # Clients that lost their broker leave threads behind, which would keep the process alive.
    sys.stderr.flush()
    os._exit(code)


def _prepare(given: dict[str, Any], config: Path | None) -> tuple[Any, Any, Any]:
    """Settings, the schema of messages and the model; everything that can be wrong is found here."""
    from stream_ccsd.model.registry import is_registry, load_model
    from stream_ccsd.transaction import Guess, Schema

    try:
        import aiohttp  # noqa: F401
        import aiokafka  # noqa: F401
        import cramjam  # noqa: F401
        import prometheus_client  # noqa: F401

        import stream_ccsd.kafka.faust.internals  # noqa: F401
    except ImportError as error:
        raise StreamCcsdError(f"workers need {error.name}: pip install 'stream-ccsd[kafka]'") from error
    settings = WorkerSettings.load(given, config)
    if settings.log_format is None:
        settings = replace(settings, log_format="text" if sys.stderr.isatty() else "json")
    if settings.model is None:
        raise StreamCcsdError(
            "a worker needs a model: stream-ccsd fit --data FILE --model model, then add --model model here"
        )
    settings.security()
    model = load_model(settings.model)
    if settings.learning or is_registry(settings.model):
        from stream_ccsd.learning.learner import listening

        model = listening(model)
    schema = columns_schema(settings.columns, model.settings.declared) or Schema()
    if isinstance(schema, Guess):  # what a message has to have is known
        schema = Schema(fields=schema.fields, renamed=schema.renamed)
    return settings, schema, model


def _show_check(console: Console, result: dict[str, Any]) -> None:
    login = f", {result['sasl_mechanism']}" if result["sasl_mechanism"] else ""
    console.print(f"broker {escape(str(result['broker']))} answers ({result['protocol']}{login})")
    console.print(
        f"model {result['model']}: {result['library_windows']:,} library windows; group {escape(result['group'])}, "
        f"{result['guarantee']}, {result['store']} store"
    )
    table = plain_table("", ["topic"], ["partitions"], [""])
    for name, topic in result["topics"].items():
        table.add_row(escape(name), str(topic["partitions"]), "" if topic["exists"] else "will be created")
    console.print(table)


@dataclass(frozen=True)
class LearnOptions:
    """Options of ``stream-ccsd learn``."""

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
        settings, patience = _prepare_learner(options)
        from stream_ccsd.kafka.learner.run import run_learner
        from stream_ccsd.kafka.learner.updates import first_model
        from stream_ccsd.kafka.ops import logs

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
    """When the model is updated, from words and lengths of time."""
    from stream_ccsd.learning.schedule import OFTEN, Schedule

    return Schedule(calendar.duration(OFTEN.get(every, every)), calendar.duration(delay))


def _prepare_learner(options: LearnOptions) -> tuple[Any, Any]:
    from stream_ccsd.kafka.settings import WorkerSettings

    try:
        from stream_ccsd.kafka.learner.run import Patience
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
