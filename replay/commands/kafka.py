"""What ``replay --to`` and ``alerts --from`` do: feed workers, and follow them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from stream_ccsd.calendar import show_alert_time
from stream_ccsd.cli.output import DEAD_LETTERS, STOPPED, emit, make_console, progress_bar, stoppable
from stream_ccsd.errors import StreamCcsdError

KafkaConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--kafka-config",
        metavar="FILE",
        help="TLS and SASL settings of the broker, as for 'worker --config'; STREAM_CCSD_... variables work too.",
    ),
]


@contextmanager
def kafka_extra() -> Iterator[None]:
    """Around imports that need it."""
    try:
        yield
    except ImportError as error:
        raise StreamCcsdError(f"Kafka needs {error.name}: pip install 'stream-ccsd[kafka]'") from error


def security_of(config: Path | None) -> Any:
    """TLS and SASL, from a file of settings and variables."""
    from stream_ccsd.kafka.settings import WorkerSettings

    return WorkerSettings.load({}, config).security()


def send(
    source: Any, to: str, config: Path | None, pace: Any, out: Path, console: Console, json_target: str | None
) -> None:
    """A source to a topic; records that are no transactions to ``dead_letters.jsonl``."""
    with kafka_extra():
        from replay.produce import produce
    from stream_ccsd.kafka.client import parse_target
    from stream_ccsd.kafka.ops.logs import quiet_clients

    brokers, topic = parse_target(to)
    security = security_of(config)
    letters = out / "dead_letters.jsonl"
    with ExitStack() as stack:
        show = stack.enter_context(progress_bar(console))("sending")
        stop = stack.enter_context(stoppable())
        file: Any = None

        def bury(letter: Any) -> None:
            nonlocal file
            if file is None:  # the folder appears with the first dead letter
                out.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(letters.open("w", encoding="utf-8"))
            file.write(letter.to_json() + "\n")

        def progress() -> None:
            show(round(1000 * source.share()), 1000)

        stack.enter_context(quiet_clients())
        done = produce(source, brokers, topic, security, pace, stop, progress, bury)
    emit(
        done.to_dict() | {"to": to},
        json_target,
        lambda shown, result: shown.print(
            f"{result['sent']:,} transactions sent to {escape(to)}, {result['dead_letters']:,} dead letters"
            + (f" in {escape(str(out))}/dead_letters.jsonl" if result["dead_letters"] else "")
        ),
    )
    if not done.complete:
        raise typer.Exit(STOPPED)
    if done.dead_letters:
        raise typer.Exit(DEAD_LETTERS)


def follow(
    url: str, config: Path | None, beginning: bool, limit: int | None, wanted: Callable[[Any], bool], style: str
) -> None:
    """Alerts off a topic as they come, until Ctrl-C."""
    import asyncio

    if style not in ("table", "json"):
        raise StreamCcsdError(f"alerts off a topic come as table or json, not as {style}")
    with kafka_extra():
        from stream_ccsd.kafka.follow import follow_alerts
    from stream_ccsd.kafka.client import parse_target
    from stream_ccsd.kafka.ops.logs import quiet_clients

    # A topic need not be named: workers write alerts to "alerts" unless they are told otherwise.
    brokers, topic = parse_target(url if url.rstrip("/").count("/") > 2 else f"{url.rstrip('/')}/alerts")
    console = make_console()
    if style == "table" and console.is_terminal:
        console.print(f"alerts of {escape(topic)} on {escape(brokers)}, as they come; Ctrl-C ends it", style="dim")

    def show(alert: dict[str, Any]) -> None:
        if style == "json":
            typer.echo(json.dumps(alert))
        else:
            line = f"[bold]{show_alert_time(alert):>10}[/bold]  {escape(alert['headline'])}"
            console.print(line, highlight=False, soft_wrap=True)

    security = security_of(config)
    with stoppable() as stop, quiet_clients():
        followed = asyncio.run(
            follow_alerts(
                brokers, topic, security, show, wanted=wanted, from_beginning=beginning, limit=limit, stop=stop
            )
        )
    if followed.foreign:
        typer.echo(f"{followed.foreign:,} messages of {topic} are no alerts and were passed over", err=True)
