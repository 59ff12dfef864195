"""``stream-ccsd fit`` and ``stream-ccsd simulate``: a model from a file, and a file from nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from stream_ccsd.calendar import Calendar
from stream_ccsd.cli.options import (
    ColumnsOption,
    EncodingOption,
    SettingsOption,
    chosen_settings,
    columns_schema,
    file_calendar,
    stream_time,
)
from stream_ccsd.cli.output import JsonOption, check_target, emit, progress_bar
from stream_ccsd.errors import StreamCcsdError


def fit(
    data: Annotated[
        Path, typer.Option("--data", metavar="FILE", help="Transactions: .csv, .jsonl (.gz, .xz), .parquet.")
    ],
    model: Annotated[Path, typer.Option(metavar="DIR", help="Where to write the model.")],
    columns: ColumnsOption = "",
    encoding: EncodingOption = None,
    label: Annotated[
        str | None, typer.Option(help="Leave out accounts with a 1 in this column: fit on what is known to be normal.")
    ] = None,
    share: Annotated[float, typer.Option(help="Fit on so large a random share of the accounts (0 < s <= 1).")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of that share.", min=0, max=2**63 - 1)] = 0,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Use only what happened before this time: a number or a date.")
    ] = None,
    settings: SettingsOption = None,
    json_target: JsonOption = None,
) -> None:
    """Fit a model on the transactions of accounts taken to be normal.

    With a share below 1, the others can be replayed unseen: stream-ccsd replay --data FILE --model DIR --unseen.
    """
    from replay.fitting import fit_file
    from replay.source import FileSource

    check_target(json_target)
    if not 0 < share <= 1:
        raise typer.BadParameter(f"expected a number above 0, up to 1, got {share}", param_hint="--share")
    if not data.is_file():
        raise StreamCcsdError(f"there is no file {data}")
    chosen, schema = chosen_settings(settings), columns_schema(columns)
    source = FileSource(data, schema, encoding=encoding)
    before = stream_time(until, "--until", lambda: file_calendar(source, chosen))
    with progress_bar() as start:
        found = fit_file(
            data,
            chosen,
            schema=schema,
            encoding=encoding,
            label=label,
            share=share,
            seed=seed,
            until=before,
            progress=start("calibrating"),
        )
    found.model.save(model)
    facts = {
        "model": found.model.version,
        "folder": str(model),
        "accounts": len(found.accounts),
        "left_out": found.left_out_label + found.left_out_share,
        "left_out_label": found.left_out_label,
        "left_out_share": found.left_out_share,
        "refused": found.refused,
        "threshold": found.model.threshold,
        "calendar": found.model.calendar.to_dict(),
        **found.model.facts,
    }
    emit(facts, json_target, _show)


def _show(console: Console, facts: dict[str, Any]) -> None:
    console.print(
        f"model {facts['model']} in {escape(facts['folder'])}: learnt from {facts['accounts']:,} accounts "
        f"({facts['library_windows']:,} library windows), calibrated on {facts['held_out_accounts']:,} held out of it"
    )
    console.print(
        f"left out: {facts['left_out_label']:,} accounts for their label, {facts['left_out_share']:,} by chance "
        f"(--share); {facts['refused']:,} records refused"
    )
    calendar = Calendar.from_dict(facts["calendar"])
    if calendar.origin is not None:
        console.print(f"times are {calendar.unit} since {calendar.show(0.0)} ({calendar.origin.tzname()})")
    else:
        named = "plain numbers" if calendar.unit == "number" else f"{calendar.unit} since an unknown moment"
        console.print(f"times are {named}: --set time_unit=... --set time_origin=... would give them dates")


def simulate(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to: .csv, .csv.gz or .parquet.")],
    customers: Annotated[int, typer.Option(help="How many.", min=1, max=10**9)] = 1000,
    days: Annotated[int, typer.Option(help="How long.", min=1, max=100_000)] = 120,
    fraud_share: Annotated[float, typer.Option(help="Share of the customers that suffer fraud.", min=0, max=1)] = 0.05,
    merchants: Annotated[int, typer.Option(help="How many.", min=10, max=10**7)] = 250,
    seed: Annotated[int, typer.Option(help="The same seed gives the same file.", min=0, max=2**63 - 1)] = 0,
    json_target: JsonOption = None,
) -> None:
    """Write a simulated stream of any size to a file, with its labels (columns fraud and pattern), for load tests.

    A customer makes about 1.15 transactions a day: a million customers for ten days are some 11 million rows.
    """
    from replay.simulated import write_simulated
    from replay.simulator import Town

    check_target(json_target)
    with progress_bar() as start:
        town = Town(customers, days, fraud_share, merchants, seed)
        rows, frauds = write_simulated(town, out, start("days"))
    facts = {"file": str(out), "transactions": rows, "fraudulent": frauds, "customers": customers, "days": days}
    text = f"{rows:,} transactions, {frauds:,} of them fraud: {escape(str(out))}"
    emit(facts, json_target, lambda console, _: console.print(text))
