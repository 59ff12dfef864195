"""``stream-ccsd replay``: a stream through the engine, alerts as they happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape

from replay.commands.kafka import KafkaConfigOption, send
from replay.commands.options import EncodingOption, SettingsOption, chosen_settings, file_calendar, stream_time
from stream_ccsd.calendar import Calendar
from stream_ccsd.cli.command import given_flags, with_options
from stream_ccsd.cli.options import ColumnsOption, columns_schema
from stream_ccsd.cli.output import Advance, JsonOption, check_target, emit, make_console, plain_table, progress_bar
from stream_ccsd.cli.signals import DEAD_LETTERS, STOPPED, stoppable
from stream_ccsd.errors import StreamCcsdError

_SHOWN = 12


@dataclass(frozen=True)
class ReplayOptions:
    """What ``stream-ccsd replay`` is told."""

    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Transactions in order of arrival: .csv, .jsonl (also .gz, .xz) or .parquet. "
            "By default, a simulated town.",
        ),
    ] = None
    model: Annotated[Path | None, typer.Option(metavar="DIR", help="Model from 'stream-ccsd fit'.")] = None
    columns: ColumnsOption = ""
    encoding: EncodingOption = None
    label: Annotated[str | None, typer.Option(help="Label column, for the summary only; the engine never sees it.")] = (
        None
    )
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the outputs.")] = Path("replay-output")
    state: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep everything in this SQLite file: stop and resume at will.")
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the state file stopped.")] = False
    speed: Annotated[
        str, typer.Option(help="max, 10x (units of the stream's time a second), or 500 (events a second).")
    ] = "max"
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Leave out what happened before this time: a number or a date."),
    ] = None
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Leave out what happened at this time or later.")
    ] = None
    accounts: Annotated[
        str | None, typer.Option(help="Only these accounts: comma-separated, or @FILE with one a line.")
    ] = None
    sort: Annotated[bool, typer.Option("--sort", help="Sort the file by time first; holds it in memory.")] = False
    unseen: Annotated[bool, typer.Option("--unseen", help="Leave out accounts the model was fitted on.")] = False
    to: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Send the transactions to kafka://host:port/topic instead of scoring them."),
    ] = None
    kafka_config: KafkaConfigOption = None
    threshold: Annotated[float | None, typer.Option(help="Alert threshold in nats; by default the model's.")] = None
    customers: Annotated[int, typer.Option(help="Of the simulated town.", min=10, max=10**9)] = 400
    days: Annotated[int, typer.Option(help="Of the simulated town.", min=10, max=100_000)] = 120
    seed: Annotated[int, typer.Option(help="Of the simulated town.", min=0, max=2**63 - 1)] = 0
    settings: SettingsOption = None
    every: Annotated[bool, typer.Option("--all", help=f"Print every alert, not only the first {_SHOWN}.")] = False
    json_target: JsonOption = None


# What only a file has, and what only scoring needs.
_OF_A_FILE = ("model", "label", "accounts", "columns", "start", "until", "unseen", "sort", "encoding")
_OF_SCORING = ("model", "state", "unseen", "threshold", "settings")


@with_options
def replay(options: ReplayOptions) -> None:
    """Replay transactions as a stream: alerts as they happen, a summary, scores and a report at the end.

    Without --data it simulates a town, fits a model on some of its normal accounts and streams the others.

    Exit code 0: all records were scored; 3: some went to dead_letters.jsonl; 130: stopped by Ctrl-C, at a whole batch.
    """
    from replay.pace import Pace
    from replay.session import Session

    _check(options)
    pace = Pace.parse(options.speed)
    console = make_console(stderr=options.json_target == "-")
    if options.to is not None:
        source = _simulated_source(options) if options.data is None else _file(options.data, options)
        send(source, options.to, options.kafka_config, pace, options.out, console, options.json_target)
        return
    with progress_bar(console) as begin:
        if options.data is None:
            from replay.simulated import simulated_replay

            settings = chosen_settings(options.settings)
            model, source = simulated_replay(options.customers, options.days, options.seed, settings, begin("fitting"))
        else:
            model = _loaded(options.data, options.model)
            source = _file(options.data, options, model)
        session = Session(source, model, options.out, options.state, options.resume, options.threshold)
        show = begin("replaying")
        with stoppable() as stop:
            result = session.run(
                pace=pace,
                stop=stop,
                on_alert=_printer(console, options.every, model.calendar),
                progress=_progress(show, source),
            )
    emit(result, options.json_target, _show)
    if not result["complete"]:
        raise typer.Exit(STOPPED)
    if result["dead_letters"]:
        raise typer.Exit(DEAD_LETTERS)


def _check(options: ReplayOptions) -> None:
    """Everything that can be wrong with the options together, before there is work."""
    from stream_ccsd.alert.threshold import checked_threshold

    check_target(options.json_target)
    if options.resume and options.state is None:
        raise StreamCcsdError("--resume needs --state: the file to go on with")
    if options.threshold is not None:
        checked_threshold(options.threshold)
    if options.data is None:
        _refuse(options, _OF_A_FILE, "need --data: a file to replay")
    elif options.settings:
        raise StreamCcsdError("--set is for the simulated town: the settings of a file's model are chosen by 'fit'")
    if options.to is not None:
        _refuse(options, _OF_SCORING, "score something, --to only sends")


def _refuse(options: ReplayOptions, names: tuple[str, ...], why: str) -> None:
    """Options that would be ignored are an error, not a surprise."""
    given = given_flags(options, names)
    if given:
        raise StreamCcsdError(f"{', '.join(given)} {why}")


def _loaded(data: Path, model: Path | None) -> Any:
    from stream_ccsd.library.model import Model

    if model is None:
        raise StreamCcsdError(
            f"replaying a file needs a model: stream-ccsd fit --data {data} --model model, then add --model model here"
        )
    _check_file(data)
    return Model.load(model)


def _file(data: Path, options: ReplayOptions, model: Any = None) -> Any:
    """The file as a source; without a model's calendar, dates are understood by the file's own times."""
    from replay.source import FileSource, SortedSource, Wanted
    from stream_ccsd.settings import Settings

    _check_file(data)
    schema = columns_schema(options.columns)

    def calendar() -> Calendar:
        if model is not None:
            return cast(Calendar, model.calendar)
        return file_calendar(FileSource(data, schema, encoding=options.encoding), Settings())

    wanted = Wanted(
        stream_time(options.start, "--from", calendar),
        stream_time(options.until, "--until", calendar),
        _account_names(options.accounts),
        frozenset(model.accounts) if options.unseen else frozenset(),
    )
    source = FileSource(data, schema, label=options.label, encoding=options.encoding, wanted=wanted)
    return SortedSource(source) if options.sort else source


def _check_file(data: Path) -> None:
    """Said at once, before a model is loaded."""
    from replay.files import readable

    with readable(data):
        pass


def _simulated_source(options: ReplayOptions) -> Any:
    from replay.simulator import simulate
    from replay.source import ListSource

    stream = simulate(accounts=options.customers, days=options.days, seed=options.seed)
    return ListSource(f"simulated stream, seed {options.seed}", stream.transactions, stream.fraud)


def _account_names(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    if text.startswith("@"):
        try:
            names = Path(text[1:]).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise StreamCcsdError(f"the accounts in {text[1:]} cannot be read: {error}") from error
    else:
        names = text.split(",")
    return frozenset(name.strip() for name in names if name.strip())


def _printer(console: Console, every: bool, calendar: Calendar) -> Callable[[Any], None]:
    shown = 0

    def show(alert: Any) -> None:
        nonlocal shown
        shown += 1
        if every or shown <= _SHOWN:
            line = f"[bold]{calendar.show(alert.time):>10}[/bold]  {escape(alert.headline)}"
            console.print(line, highlight=False, soft_wrap=True)
        elif shown == _SHOWN + 1:
            console.print("further alerts are counted, not printed (--all prints them)")

    return show


def _progress(show: Advance, source: Any) -> Callable[[Any, Any], None]:
    alerts = 0

    def progress(clock: Any, harvest: Any) -> None:
        nonlocal alerts
        alerts += len(harvest.alerts)
        rate = clock.events / clock.seconds if clock.seconds else 0.0
        note = f"{clock.events:,} records, {rate:,.0f}/s, {alerts:,} alerts"
        show(round(1000 * source.share()), 1000, note)

    return progress


def _show(console: Console, result: dict[str, Any]) -> None:
    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.0%}"

    rate = f" at {result['events_per_s']:,.0f} records/s" if result["events_per_s"] else ""
    console.print(
        f"\n{result['transactions']:,} transactions of {result['accounts']:,} accounts{rate}; "
        f"{result['alerts']:,} alerts against {result['library_windows']:,} library windows (model {result['model']})"
    )
    if result["latency_p50_ms"] is not None:
        p50, p99 = result["latency_p50_ms"], result["latency_p99_ms"]
        console.print(f"latency of one transaction: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    if "recall" in result:
        _show_labels(console, result, share)
    if result["dead_letters"]:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in result["dead_letters_by_reason"].items())
        console.print(f"[bold]{result['dead_letters']:,} dead letters[/bold]: {escape(reasons)}")
    if not result["complete"]:
        again = "add --resume to go on" if result["state"] else "with --state FILE it could be resumed"
        console.print(f"[bold]stopped[/bold] behind record {result['position']:,}; {again}")
    outputs = escape(result["outputs"])
    console.print(f"report: {outputs}/report.html, beside alerts.jsonl, scores.parquet, dead_letters.jsonl")


def _show_labels(console: Console, result: dict[str, Any], share: Callable[[float | None], str]) -> None:
    delay, after = result["median_delay_time"], ""
    if delay is not None:
        length = Calendar.from_dict(result["calendar"]).length(delay)
        after = f", half of them within {result['median_delay_transactions']:.0f} transactions ({length})"
    console.print(
        f"against the labels, by account: caught {result['caught_accounts']} of {result['fraud_accounts']} with fraud "
        f"(recall {share(result['recall'])}, precision {share(result['precision'])}){after}"
    )
    table = plain_table("", ["fraud pattern"], ["accounts", "caught"])
    for name, row in result["patterns"].items():
        table.add_row(escape(name), str(row["accounts"]), str(row["caught"]))
    console.print(table)
