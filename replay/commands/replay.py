"""``stream-ccsd replay``: a stream through the engine, alerts as they happen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from replay.commands.kafka import KafkaConfigOption, send
from replay.commands.options import (
    AdaptOption,
    AlertRateOption,
    AlertsPerDayOption,
    DelayOption,
    EncodingOption,
    ExploreOption,
    LearnOption,
    SettingsOption,
    VerdictsFromOption,
    VerdictsOption,
    check_budget,
    check_learning,
    chosen_learning,
    chosen_settings,
    chosen_threshold,
    file_calendar,
    stream_time,
)
from replay.commands.summary import FIRST_ALERTS, alert_printer, progress_of, show_drift, show_fit, show_summary
from stream_ccsd.calendar import Calendar
from stream_ccsd.cli.command import (
    ColumnsOption,
    FieldOption,
    columns_schema,
    declared_fields,
    given_flags,
    with_options,
)
from stream_ccsd.cli.output import (
    DEAD_LETTERS,
    STOPPED,
    Advance,
    JsonOption,
    check_target,
    emit,
    make_console,
    progress_bar,
    stoppable,
)
from stream_ccsd.errors import StreamCcsdError


@dataclass(frozen=True)
class ReplayOptions:
    """Options of ``stream-ccsd replay``."""

    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Transactions in order of arrival: .csv, .jsonl (also .gz, .xz) or .parquet. "
            "By default, a simulated town.",
        ),
    ] = None
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Model from 'stream-ccsd fit', or a folder of versions: its current one. Without one, the first 30 % "
            "of the file's time is fitted on, and the rest streamed.",
        ),
    ] = None
    challenger: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A second model, which scores the same stream in the shadow: 'stream-ccsd compare' compares them. The "
            "alert budget is that of both.",
        ),
    ] = None
    field: FieldOption = None
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
    alert_rate: AlertRateOption = None
    alerts_per_day: AlertsPerDayOption = None
    explore: ExploreOption = None
    customers: Annotated[int, typer.Option(help="Of the simulated town.", min=10, max=10**9)] = 400
    days: Annotated[int, typer.Option(help="Of the simulated town.", min=10, max=100_000)] = 120
    seed: Annotated[int, typer.Option(help="Of the simulated town.", min=0, max=2**63 - 1)] = 0
    settings: SettingsOption = None
    learn: LearnOption = None
    delay: DelayOption = "7d"
    verdicts_from: VerdictsFromOption = None
    verdicts: VerdictsOption = None
    adapt: AdaptOption = False
    no_drift: Annotated[
        bool, typer.Option("--no-drift", help="Do not look for changes of the stream: prices, rates, merchants.")
    ] = False
    every: Annotated[bool, typer.Option("--all", help=f"Print every alert, not only the first {FIRST_ALERTS}.")] = False
    json_target: JsonOption = None


# What only a file has, and what only scoring needs.
_OF_A_FILE = ("model", "label", "accounts", "columns", "start", "until", "unseen", "sort", "encoding")
_OF_SCORING = (
    *("model", "challenger", "state", "unseen", "threshold", "alert_rate", "alerts_per_day", "settings", "no_drift"),
    *("explore", "learn", "delay", "verdicts_from", "verdicts", "adapt"),
)


@with_options
def replay(options: ReplayOptions) -> None:
    """Replay transactions as a stream: alerts as they happen, a summary, scores and a report at the end.

    Without --data it simulates a town, fits a model on some of its normal accounts and streams the others. With --data
    alone it fits on the first 30 % of the file's time and streams the rest.

    Exit code 0: all records were scored; 3: some went to dead_letters.jsonl; 130: stopped by Ctrl-C, at a whole batch.
    """
    from replay.run.session import Session
    from replay.sources.source import Pace

    _check(options)
    pace = Pace.parse(options.speed)
    console = make_console(stderr=options.json_target == "-")
    if options.to is not None:
        source = _simulated_source(options) if options.data is None else _file(options.data, options)
        send(source, options.to, options.kafka_config, pace, options.out, console, options.json_target)
        return
    with progress_bar(console) as begin:
        begun = _begun(options, begin("fitting"))
        if begun.fit is not None:
            show_fit(console, begun.fit)
        learning, refused = chosen_learning(options, begun.model)
        session = Session(
            begun.source,
            begun.model,
            options.out,
            options.state,
            options.resume,
            chosen_threshold(options, begun.model),
            begun.states,
            not options.no_drift,
            learning,
            begun.place,
            options.explore,
            None if begun.challenger is None else _challenger(options, begun, begun.challenger),
        )
        show = begin("replaying")
        with stoppable() as stop:
            result = session.run(
                pace=pace,
                stop=stop,
                on_alert=alert_printer(console, options.every, begun.model.calendar),
                on_drift=lambda event: show_drift(console, event, begun.model.calendar),
                progress=progress_of(show, begun.source),
            )
    emit(result | {"fit": begun.fit, "refused_verdicts": refused}, options.json_target, show_summary)
    if not result["complete"]:
        raise typer.Exit(STOPPED)
    if result["dead_letters"] or refused:
        raise typer.Exit(DEAD_LETTERS)


def _check(options: ReplayOptions) -> None:
    """Everything that can be wrong with the options together, before there is work."""
    check_target(options.json_target)
    if options.resume and options.state is None:
        raise StreamCcsdError("--resume needs --state: the file to go on with")
    check_budget(options)
    check_learning(options)
    declared_fields(options.field)
    if options.data is None:
        _refuse(options, _OF_A_FILE, "need --data: a file to replay")
    if options.model is not None:
        _refuse(options, ("settings", "field"), "would change the model, which has its own: choose them with 'fit'")
    elif options.unseen:
        raise StreamCcsdError("--unseen leaves out the accounts that a model was fitted on: it needs --model")
    if options.to is not None:
        _refuse(options, _OF_SCORING, "score something, --to only sends")


def _refuse(options: ReplayOptions, names: tuple[str, ...], why: str) -> None:
    """Options that would be ignored are an error, not a surprise."""
    given = given_flags(options, names)
    if given:
        raise StreamCcsdError(f"{', '.join(given)} {why}")


@dataclass(frozen=True)
class _Begun:
    """What a replay begins with: a model, what is streamed, states of accounts, and what was fitted on here."""

    model: Any
    source: Any
    states: dict[str, bytes]
    fit: dict[str, Any] | None = None
    challenger: Any = None
    place: Path | None = None  # of the model


def _begun(options: ReplayOptions, progress: Advance) -> _Begun:
    from stream_ccsd.model.registry import load_model

    if options.data is not None:
        _check_file(options.data)
    challenger = None if options.challenger is None else load_model(options.challenger)
    if options.data is None:
        from replay.run.fitting import simulated_replay

        population = options.customers, options.days, options.seed
        model, source = simulated_replay(*population, _settings(options), progress)
        return _Begun(model, source, {}, challenger=challenger, place=_saved(options, model))
    if options.model is None:
        return _fitted(options.data, options, progress, challenger)
    model = load_model(options.model)
    source = _file(options.data, options, model, challenger=challenger)
    return _Begun(model, source, {}, challenger=challenger, place=options.model)


def _saved(options: ReplayOptions, model: Any) -> Path | None:
    """Beside the state, for whoever looks at it: a page draws the densities behind an alert."""
    from replay.state.file import model_beside
    from replay.state.schema import check_free

    if options.state is None:
        return None
    if not options.resume:
        check_free(options.state)
        model.save(model_beside(options.state))
    return model_beside(options.state)


def _challenger(options: ReplayOptions, begun: _Begun, model: Any) -> Any:
    """The challenger's own replay of the same stream: read with its fields, alerted by its threshold."""
    from replay.run.challenger import NAME, challenger_beside
    from replay.run.session import Session

    state = None if options.state is None else challenger_beside(options.state)
    source, states = begun.source, dict[str, bytes]()
    if options.data is not None:
        start = None if begun.fit is None else begun.fit["until"]
        source = _file(options.data, options, begun.model, start, model, own=model)
        next(source.items(), None)  # a column that it misses is said before there is work
        if start is not None and not (options.resume and state is not None and state.exists()):
            states = _past(options, begun.model, model, start)
    threshold = chosen_threshold(options, model)
    return Session(source, model, options.out / NAME, state, options.resume, threshold, states, explore=options.explore)


def _past(options: ReplayOptions, champion: Any, model: Any, until: float) -> dict[str, bytes]:
    """What accounts are like to a challenger where the stream begins, if the champion was fitted on what was before."""
    from replay.run.fitting import FirstPart
    from stream_ccsd.transaction import Transaction

    assert options.data is not None
    before = _file(options.data, options, champion, challenger=model, own=model)
    parsed = (item.parsed for item in before.items())
    return FirstPart(until, [t for t in parsed if isinstance(t, Transaction) and t.time < until]).states(model)


def _fitted(data: Path, options: ReplayOptions, progress: Advance, challenger: Any) -> _Begun:
    """A model of the file's own first part; a replay that is resumed has it beside its state."""
    from replay.run.fitting import CONTAMINATION, FIRST_PART, FirstPart
    from replay.state.file import model_beside
    from replay.state.schema import check_free
    from stream_ccsd.model.model import Model, ModelError

    settings = _settings(options, contamination=CONTAMINATION)
    states: dict[str, bytes] = {}
    if options.resume and options.state is not None:
        try:
            model = Model.load(model_beside(options.state))
        except ModelError as error:
            raise StreamCcsdError(
                f"the model that {options.state} was begun with cannot be used: {error} A replay that was begun with "
                "--model is resumed with it"
            ) from error
        if model.settings != settings or "fitted_until" not in model.facts:
            raise StreamCcsdError(
                f"{options.state} was begun with other fields or settings: resume with the same --field and --set, or "
                "start anew with another --state"
            )
    else:
        if options.state is not None:
            check_free(options.state)
        part = FirstPart.of(_file(data, options, challenger=challenger))
        model = part.fit(settings, progress)
        chosen_threshold(options, model)  # what cannot be is said before there is more work
        states = part.states(model)
        if options.state is not None:
            model.save(model_beside(options.state))
    facts = {
        "source": str(data),
        "share": FIRST_PART,
        "until": model.facts["fitted_until"],
        "when": model.calendar.show(model.facts["fitted_until"]),
        "transactions": model.facts["transactions"],
        "accounts": model.facts["accounts"],
        "contamination": settings.contamination,
        "label": options.label,
        "model": None if options.state is None else str(model_beside(options.state)),
    }
    source = _file(data, options, model, model.facts["fitted_until"], challenger)
    place = None if options.state is None else model_beside(options.state)
    return _Begun(model, source, states, facts, challenger, place)


def _file(
    data: Path,
    options: ReplayOptions,
    model: Any = None,
    start: float | None = None,
    challenger: Any = None,
    own: Any = None,
) -> Any:
    """The file as a source, from a time on; without a model, its own times say what dates mean.

    It is read with the fields of the model, or those of its ``own``; ``--columns`` may name those of the challenger.
    """
    from replay.sources.source import FileSource, SortedSource, Wanted

    _check_file(data)
    settings = _settings(options) if model is None else model.settings
    others = () if challenger is None else challenger.settings.declared
    schema = columns_schema(
        options.columns, settings.declared if own is None else own.settings.declared, (*settings.declared, *others)
    )

    def calendar() -> Calendar:
        if model is not None:
            known: Calendar = model.calendar
            return known
        return file_calendar(FileSource(data, schema, encoding=options.encoding), settings)

    wanted = Wanted(
        stream_time(options.start, "--from", calendar) if start is None else start,
        stream_time(options.until, "--until", calendar),
        _account_names(options.accounts),
        frozenset(model.accounts) if options.unseen else frozenset(),
    )
    label = options.verdicts_from if options.label is None else options.label
    source = FileSource(data, schema, label=label, encoding=options.encoding, wanted=wanted)
    return SortedSource(source) if options.sort else source


def _settings(options: ReplayOptions, **defaults: Any) -> Any:
    return chosen_settings(options.settings, declared_fields(options.field), **defaults)


def _check_file(data: Path) -> None:
    """Said at once, before a model is loaded."""
    from replay.sources.files import readable

    with readable(data):
        pass


def _simulated_source(options: ReplayOptions) -> Any:
    from replay.sources.simulator.population import simulate
    from replay.sources.source import ListSource

    _refuse(options, ("field",), "need --data: a simulated transaction has all of its fields")
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
