"""``stream-ccsd worker``: the engine on Kafka."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from stream_ccsd.cli.command import Flags, with_options
from stream_ccsd.cli.options import columns_schema
from stream_ccsd.cli.output import JsonOption, check_target, emit, plain_table
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.settings import WorkerSettings

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
    from stream_ccsd.kafka import logs

    if check:
        from stream_ccsd.kafka.check import check_worker

        with logs.quiet_clients():
            result = asyncio.run(check_worker(settings, loaded))
        emit(result, json_target, _show_check)
        return
    from stream_ccsd.kafka.worker import run_worker

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
    from stream_ccsd.library.versions import is_versions, load_model
    from stream_ccsd.transaction import Guess, Schema

    try:
        import aiohttp  # noqa: F401
        import aiokafka  # noqa: F401
        import cramjam  # noqa: F401
        import faust  # noqa: F401
        import prometheus_client  # noqa: F401
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
    if settings.learning or is_versions(settings.model):
        from stream_ccsd.lessons.learner import listening

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
