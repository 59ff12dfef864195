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

from stream_ccsd.cli.output import JsonOption, check_target, emit, plain_table
from stream_ccsd.errors import StreamCcsdError

FAILED = 1

_TOPICS, _STATE, _WORK, _WEB, _SECURITY = "Topics", "State", "Work", "Operations", "Security"


def _option(help_text: str, panel: str | None = None, metavar: str | None = None) -> Any:
    return typer.Option(help=help_text, rich_help_panel=panel, metavar=metavar, show_default=False)


def worker(
    broker: Annotated[str | None, _option("kafka://host:port, several separated by commas.")] = None,
    model: Annotated[Path | None, _option("Of 'stream-ccsd fit'; a new one there is picked up.", None, "DIR")] = None,
    config: Annotated[Path | None, _option("Settings as TOML, named as the flags.", None, "FILE")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check settings, model and broker, and exit.")] = False,
    group: Annotated[str | None, _option("Consumer group: its workers share the work (stream-ccsd).")] = None,
    transactions: Annotated[str | None, _option("Topic to read (transactions).", _TOPICS)] = None,
    scores: Annotated[str | None, _option("Topic for scores (scores).", _TOPICS)] = None,
    alerts: Annotated[str | None, _option("Topic for alerts (alerts).", _TOPICS)] = None,
    dead_letters: Annotated[str | None, _option("Topic for what had no effect (dead-letters).", _TOPICS)] = None,
    partitions: Annotated[int | None, _option("Of topics to be created (4).", _TOPICS)] = None,
    replication: Annotated[int | None, _option("Of topics to be created (1).", _TOPICS)] = None,
    create_topics: Annotated[
        bool | None, typer.Option(help="Create missing topics (yes).", rich_help_panel=_TOPICS, show_default=False)
    ] = None,
    columns: Annotated[str | None, _option("JSON fields like account=user,time=when.", _TOPICS, "MAP")] = None,
    check_key: Annotated[
        bool | None,
        typer.Option(
            help="Refuse messages whose key is not their account (yes).", rich_help_panel=_TOPICS, show_default=False
        ),
    ] = None,
    store: Annotated[str | None, _option("rocksdb or memory (rocksdb).", _STATE)] = None,
    state_dir: Annotated[
        Path | None, _option("The store's folder, one a worker (worker-state).", _STATE, "DIR")
    ] = None,
    standby_replicas: Annotated[int | None, _option("Workers that follow each state (0).", _STATE)] = None,
    batch: Annotated[int | None, _option("Most transactions to handle together (500).", _WORK)] = None,
    guarantee: Annotated[str | None, _option("effectively-once or best-effort (effectively-once).", _WORK)] = None,
    commit_interval: Annotated[float | None, _option("Seconds between commits (1).", _WORK)] = None,
    session_timeout: Annotated[float | None, _option("Seconds until a silent worker is replaced (10).", _WORK)] = None,
    heartbeat_interval: Annotated[float | None, _option("Seconds between signs of life (2).", _WORK)] = None,
    threshold: Annotated[float | None, _option("Alert threshold in nats (the model's).", _WORK)] = None,
    model_poll: Annotated[float | None, _option("Seconds between looks at the model (5).", _WORK)] = None,
    web_host: Annotated[str | None, _option("For health and metrics (127.0.0.1).", _WEB)] = None,
    web_port: Annotated[int | None, _option("For health and metrics; 0: a free one (6066).", _WEB)] = None,
    log_format: Annotated[str | None, _option("json or text (text on a terminal, else json).", _WEB)] = None,
    log_level: Annotated[str | None, _option("debug, info, warning or error (info).", _WEB)] = None,
    tls: Annotated[
        bool | None, typer.Option(help="Speak TLS (no).", rich_help_panel=_SECURITY, show_default=False)
    ] = None,
    ca_file: Annotated[Path | None, _option("Certificates to trust (the system's).", _SECURITY, "FILE")] = None,
    cert_file: Annotated[Path | None, _option("Client certificate.", _SECURITY, "FILE")] = None,
    key_file: Annotated[Path | None, _option("Its key.", _SECURITY, "FILE")] = None,
    sasl_mechanism: Annotated[str | None, _option("SCRAM-SHA-256, SCRAM-SHA-512 or PLAIN.", _SECURITY)] = None,
    sasl_username: Annotated[str | None, _option("Who logs in.", _SECURITY)] = None,
    sasl_password_file: Annotated[
        Path | None, _option("File with the password; else STREAM_CCSD_SASL_PASSWORD holds it.", _SECURITY, "FILE")
    ] = None,
    json_target: JsonOption = None,
) -> None:
    """Score transactions of a Kafka topic: scores, alerts and dead letters go to topics, states into a changelog.

    Start as many workers as there are partitions; each needs its own --state-dir and --web-port on one machine. Every
    flag can be a variable (STREAM_CCSD_WEB_PORT) or a line of the --config file (web_port = 6067) instead.

    Exit code 0: stopped by SIGTERM or Ctrl-C; 1: it could not start or go on, and says why. Nothing is lost by either.
    """
    given = {name: value for name, value in locals().items() if name not in ("config", "check", "json_target")}
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
            found = asyncio.run(check_worker(settings, loaded))
        emit(found, json_target, _show_check)
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
    from stream_ccsd.cli.options import columns_schema
    from stream_ccsd.kafka.settings import WorkerSettings
    from stream_ccsd.library.model import Model
    from stream_ccsd.transaction import Schema

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
    return settings, columns_schema(settings.columns) or Schema(), Model.load(settings.model)


def _show_check(console: Console, found: dict[str, Any]) -> None:
    login = f", {found['sasl_mechanism']}" if found["sasl_mechanism"] else ""
    console.print(f"broker {escape(str(found['broker']))} answers ({found['protocol']}{login})")
    console.print(
        f"model {found['model']}: {found['library_windows']:,} library windows; group {escape(found['group'])}, "
        f"{found['guarantee']}, {found['store']} store"
    )
    table = plain_table("", ["topic"], ["partitions"], [""])
    for name, topic in found["topics"].items():
        table.add_row(escape(name), str(topic["partitions"]), "" if topic["exists"] else "will be created")
    console.print(table)
