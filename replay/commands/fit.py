"""``stream-ccsd fit`` and ``stream-ccsd simulate``: a model from a file, and a file from nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from replay.commands.options import (
    AlertRateOption,
    AlertsPerDayOption,
    EncodingOption,
    SettingsOption,
    check_budget,
    chosen_settings,
    file_calendar,
    stream_time,
)
from replay.text import per_thousand
from stream_ccsd.calendar import Calendar
from stream_ccsd.cli.command import ColumnsOption, FieldOption, columns_schema, declared_fields, with_options
from stream_ccsd.cli.output import JsonOption, check_target, emit, progress_bar
from stream_ccsd.errors import StreamCcsdError


@dataclass(frozen=True)
class FitOptions:
    """Options of ``stream-ccsd fit``."""

    data: Annotated[Path, typer.Option(metavar="FILE", help="Transactions: .csv, .jsonl (.gz, .xz), .parquet.")]
    model: Annotated[Path, typer.Option(metavar="DIR", help="Where to write the model.")]
    field: FieldOption = None
    columns: ColumnsOption = ""
    encoding: EncodingOption = None
    label: Annotated[
        str | None, typer.Option(help="Leave out accounts with a 1 in this column: fit on what is known to be normal.")
    ] = None
    share: Annotated[float, typer.Option(help="Fit on so large a random share of the accounts (0 < s <= 1).")] = 1.0
    seed: Annotated[int, typer.Option(help="Of that share.", min=0, max=2**63 - 1)] = 0
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Use only what happened before this time: a number or a date.")
    ] = None
    alert_rate: AlertRateOption = None
    alerts_per_day: AlertsPerDayOption = None
    settings: SettingsOption = None
    json_target: JsonOption = None


@with_options
def fit(options: FitOptions) -> None:
    """Fit a model on the transactions of accounts taken to be normal.

    With a share below 1, the others can be replayed unseen: stream-ccsd replay --data FILE --model DIR --unseen.
    """
    from replay.run.fitting import CONTAMINATION, fit_file, rate_of, with_rate
    from replay.sources.source import FileSource

    check_target(options.json_target)
    check_budget(options)
    if not 0 < options.share <= 1:
        raise typer.BadParameter(f"expected a number above 0, up to 1, got {options.share}", param_hint="--share")
    if not options.data.is_file():
        raise StreamCcsdError(f"there is no file {options.data}")
    # Without a label there may be fraud in it.
    assumed = CONTAMINATION if options.label is None else 0.0
    settings = chosen_settings(options.settings, declared_fields(options.field), contamination=assumed)
    schema = columns_schema(options.columns, settings.declared)
    source = FileSource(options.data, schema, encoding=options.encoding)
    until = stream_time(options.until, "--until", lambda: file_calendar(source, settings))
    with progress_bar() as start:
        fitted = fit_file(
            options.data,
            settings,
            schema=schema,
            encoding=options.encoding,
            label=options.label,
            share=options.share,
            seed=options.seed,
            until=until,
            progress=start("calibrating"),
        )
    model = fitted.model
    if options.alert_rate is not None:
        model = with_rate(model, options.alert_rate)
    if options.alerts_per_day is not None:
        model = with_rate(model, rate_of(model, options.alerts_per_day))
    model.save(options.model)
    facts = {
        "model": model.version,
        "folder": str(options.model),
        "accounts": len(fitted.accounts),
        "left_out": fitted.left_out_label + fitted.left_out_share,
        "left_out_label": fitted.left_out_label,
        "left_out_share": fitted.left_out_share,
        "refused": fitted.refused,
        "label": options.label,
        "contamination": settings.contamination,
        "fields": list(settings.fields),
        "alert_rate": model.settings.alert_rate,
        "threshold": model.threshold,
        "calendar": model.calendar.to_dict(),
        **model.facts,
    }
    emit(facts, options.json_target, _show)


def _show(console: Console, facts: dict[str, Any]) -> None:
    console.print(
        f"model {facts['model']} in {escape(facts['folder'])}: learnt from {facts['accounts']:,} accounts "
        f"({facts['library_windows']:,} library windows), rated on each of them by what the others taught"
    )
    if facts["fields"]:
        console.print(f"besides amount, category and merchant, it looks at {escape(', '.join(facts['fields']))}")
    console.print(
        f"left out: {facts['left_out_label']:,} accounts for their label, {facts['left_out_share']:,} by chance "
        f"(--share); {facts['refused']:,} records refused"
    )
    share = f"contamination {facts['contamination']:g}"
    if facts["contamination"] > 0:
        console.print(
            f"there may be fraud in what is left: of the oddest {facts['contamination']:.2g} hardly anything is learnt "
            f"({share}). With --label COLUMN, accounts with known fraud are left out, which is better"
        )
    else:
        console.print(f"all of what is left counts as normal ({share})")
    busy, day = facts["transactions_per_day"], ""
    if busy is not None:
        day = f", {facts['alert_rate'] * busy:,.3g} of {busy:,.4g} transactions a day"
    console.print(f"alert budget: {per_thousand(facts['alert_rate'])} transactions{day}")
    calendar = Calendar.from_dict(facts["calendar"])
    if calendar.origin is not None:
        console.print(f"times are {calendar.unit} since {calendar.show(0.0)} ({calendar.origin.tzname()})")
    else:
        named = "plain numbers" if calendar.unit == "number" else f"{calendar.unit} since an unknown moment"
        console.print(f"times are {named}: --set time_unit=... --set time_origin=... would give them dates")


@dataclass(frozen=True)
class SimulateOptions:
    """Options of ``stream-ccsd simulate``."""

    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to: .csv, .csv.gz or .parquet.")]
    customers: Annotated[int, typer.Option(help="How many.", min=1, max=10**9)] = 1000
    days: Annotated[int, typer.Option(help="How long.", min=1, max=100_000)] = 120
    fraud_share: Annotated[float, typer.Option(help="Share of the customers that suffer fraud.", min=0, max=1)] = 0.05
    merchants: Annotated[int, typer.Option(help="How many.", min=10, max=10**7)] = 250
    seed: Annotated[int, typer.Option(help="The same seed gives the same file.", min=0, max=2**63 - 1)] = 0
    json_target: JsonOption = None


@with_options
def simulate(options: SimulateOptions) -> None:
    """Write a simulated stream of any size to a file, with its labels (columns fraud and pattern), for load tests.

    A customer makes about 1.15 transactions a day: a million customers for ten days are some 11 million rows.
    """
    from replay.run.fitting import write_simulated
    from replay.sources.simulator.population import Population

    check_target(options.json_target)
    with progress_bar() as start:
        population = Population(options.customers, options.days, options.fraud_share, options.merchants, options.seed)
        rows, frauds = write_simulated(population, options.out, start("days"))
    facts = {
        "file": str(options.out),
        "transactions": rows,
        "fraudulent": frauds,
        "customers": options.customers,
        "days": options.days,
    }
    text = f"{rows:,} transactions, {frauds:,} of them fraud: {escape(str(options.out))}"
    emit(facts, options.json_target, lambda console, _: console.print(text))
