"""``stream-ccsd evaluate fraud``: does it reproduce the paper, and would it work on a stream?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from offline.commands.options import CacheOption, cache_folder
from offline.commands.verdicts import PROTOCOLS, LateVerdictOptions, chosen_plan, refuse_others, run_late, show_late
from offline.published import FRAUD_SIGMA_X, FRAUD_SIGMA_Y
from replay.commands.options import SettingsOption, chosen_settings
from stream_ccsd.cli.command import (
    ColumnsOption,
    FieldOption,
    columns_schema,
    declared_fields,
    given_flags,
    with_options,
)
from stream_ccsd.cli.output import JsonOption, check_target, emit, plain_table, progress_bar
from stream_ccsd.errors import StreamCcsdError

Runs = list[dict[str, Any]]

_SPLITS = ("sets", "half", "unlabelled")


@dataclass(frozen=True)
class FraudOptions:
    """Options of ``stream-ccsd evaluate fraud``."""

    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Labelled transactions: .csv, .jsonl (.gz, .xz), .parquet; by default simulated, pattern by pattern.",
        ),
    ] = None
    protocol: Annotated[
        str,
        typer.Option(
            help="stream (causal, label-blind), paper, both, time (early against late), verdicts (labels come late and "
            "are learnt from), or handbook (the same in the Fraud Detection Handbook's own weeks)."
        ),
    ] = "stream"
    split: Annotated[
        str,
        typer.Option(
            metavar="|".join(_SPLITS),
            help="What is fitted on: 70% of the accounts without fraud (thresholds are chosen on some of the others); "
            "half of them, all others are streamed; or half of all accounts, fraud and all, as without labels.",
        ),
    ] = "sets"
    seeds: Annotated[str, typer.Option(help="Seeds of the account split, comma-separated.")] = "0"
    ablation: Annotated[
        bool, typer.Option(help="With the paper's protocol: its ablations, and one stride for all accounts.")
    ] = True
    baselines: Annotated[bool, typer.Option(help="Run the baselines on the same rows.")] = True
    trees: Annotated[
        bool, typer.Option(help="Among them those that are trees, which take minutes where there are a million rows.")
    ] = True
    divergence: Annotated[
        bool | None,
        typer.Option(
            help="Compute the divergence score too, which no alert needs; without it is much quicker. By default, "
            "unless verdicts are learnt from."
        ),
    ] = None
    sigma_x: Annotated[float | None, typer.Option(help=f"Fix the window bandwidth (paper {FRAUD_SIGMA_X}).")] = None
    sigma_y: Annotated[float | None, typer.Option(help=f"Fix the change bandwidth (paper {FRAUD_SIGMA_Y}).")] = None
    label: Annotated[str, typer.Option(help="Label column, 0 or 1.")] = "fraud"
    by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column that names kinds of fraud: each is judged alone, too."),
    ] = None
    columns: ColumnsOption = ""
    field: FieldOption = None
    time_unit: Annotated[
        str | None, typer.Option(help="Of the file's times: seconds, milliseconds, days or number.")
    ] = None
    time_origin: Annotated[str | None, typer.Option(metavar="DATE", help="The moment of time 0.")] = None
    settings: SettingsOption = None
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write report.html with plots to DIR; with the paper's protocol "
            "it takes some minutes more, for the sensitivity to K, rho and eta.",
        ),
    ] = None
    use_cache: CacheOption = True
    json_target: JsonOption = None


_OF_A_FILE = ("split", "label", "by", "columns", "field", "time_unit", "time_origin", "report")


@with_options
def fraud(options: FraudOptions, late: LateVerdictOptions) -> None:
    """Fraud on VAL and TEST accounts: rankings, operating points, detection delay, baselines beside them.

    The paper's protocol takes windows more densely where the label says fraud; the stream protocol cannot know labels.
    """
    protocols = {"both": ["paper", "stream"]}.get(options.protocol, [options.protocol])
    if protocols[0] not in ("paper", "stream", "time", *PROTOCOLS):
        raise typer.BadParameter(
            f"expected stream, paper, both, time, verdicts or handbook, got {options.protocol!r}",
            param_hint="--protocol",
        )
    refuse_others(options, late, protocols)
    if options.split not in _SPLITS:
        raise typer.BadParameter(f"expected {', '.join(_SPLITS)}, got {options.split!r}", param_hint="--split")
    if options.split != "sets" and "paper" in protocols:
        raise StreamCcsdError(f"the paper's protocol has its own five sets: --split {options.split} is for a stream")
    try:
        seeds = [int(s) for s in options.seeds.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"expected numbers like 0,1,2, got {options.seeds!r}", param_hint="--seeds") from error
    check_target(options.json_target)
    settings = _settings(options)
    if options.data is None:
        needless = given_flags(options, _OF_A_FILE)
        if needless:
            raise StreamCcsdError(f"{', '.join(needless)} need --data: a file of labelled transactions")
        _patterns(seeds, settings, options.json_target)
        return
    if options.protocol in PROTOCOLS:
        _late(options, late, settings, seeds)
        return
    from offline.fraud.data import load_labelled
    from offline.fraud.evaluate import evaluate_fraud

    with progress_bar() as start:
        schema = columns_schema(options.columns, settings.declared)
        labelled = load_labelled(options.data, schema, options.label, options.by)
        result = evaluate_fraud(
            labelled,
            protocols,
            seeds,
            settings,
            split=options.split,  # type: ignore[arg-type]  # checked above
            full_table=options.ablation,
            baselines=options.baselines,
            trees=options.trees,
            sensitivity=options.report is not None and "paper" in protocols,
            cache=cache_folder() if options.use_cache else None,
            progress=start("runs"),
        )
    if options.report is not None:
        from offline.fraud.report import write_report

        typer.echo(f"report: {write_report(result, options.report)}", err=True)
    emit(result, options.json_target, _show)


def _late(options: FraudOptions, late: LateVerdictOptions, settings: Any, seeds: list[int]) -> None:
    """Labels come late, and are learnt from."""
    plan = chosen_plan(options, late, seeds)
    from offline.fraud.data import load_labelled

    assert options.data is not None
    with progress_bar() as start:
        labelled = load_labelled(options.data, columns_schema(options.columns, settings.declared), options.label)
        cache = cache_folder() if options.use_cache else None
        result = run_late(labelled, settings, options.protocol, plan, cache, start)
    emit(result, options.json_target, show_late)


def _settings(options: FraudOptions) -> Any:
    """The engine's; where labels are unknown, some of what is fitted on is taken to be fraud."""
    from offline.fraud.verdicts import ORIGIN
    from replay.run.fitting import CONTAMINATION

    unit, origin = options.time_unit, options.time_origin
    if options.protocol == "handbook" and unit is None:
        unit, origin = "seconds", origin or ORIGIN
    return chosen_settings(
        options.settings,
        declared_fields(options.field),
        time_unit=unit,
        time_origin=origin,
        sigma_x=options.sigma_x,
        sigma_y=options.sigma_y,
        divergence=options.protocol not in PROTOCOLS if options.divergence is None else options.divergence,
        contamination=CONTAMINATION if options.split == "unlabelled" else None,
    )


def _patterns(seeds: list[int], settings: Any, json_target: str | None) -> None:
    """Without a file: the simulator's patterns of fraud, each alone; without and with its declared fields."""
    from offline.fraud.simulated import run_patterns
    from replay.run.fitting import population_settings

    with progress_bar() as start:
        runs = {
            name: [run_patterns(800, 120, seed, chosen, start(f"{title}, seed {seed}")) for seed in seeds]
            for name, title, chosen in (
                ("runs", "amounts and places", settings),
                ("with_fields", "and countries, devices, hours", population_settings(settings)),
            )
        }
    emit(runs, json_target, _show_patterns)


def _show_patterns(console: Console, result: dict[str, Any]) -> None:
    shown = (
        ("transaction", "auc", "transaction AUC: its fraud against transactions of normal accounts"),
        ("transaction", "ap", "transaction average precision"),
        ("account", "auc", "account AUC: its accounts against normal ones, each by its maximum"),
    )
    for key, what in (("runs", "amounts and places only"), ("with_fields", "with countries, devices and hours")):
        runs = result[key]
        for level, metric, title in shown:
            heading = f"simulated fraud by pattern, {what}, mean of {len(runs)} stream(s), {title}"
            _show_kinds(console, heading, runs, level, metric, "patterns")


def _show_kinds(console: Console, heading: str, runs: Runs, level: str, metric: str, of: str) -> None:
    from offline.fraud.report import cells, pattern_table

    kinds = pattern_table(runs, level, metric, of)
    table = plain_table(escape(heading), ["score"], [escape(name) for name in kinds.columns])
    for name, row in kinds.iterrows():
        table.add_row(name, *cells(row))
    console.print(table)
    console.print()


def _show(console: Console, result: dict[str, Any]) -> None:
    facts = result["data"]
    console.print(
        f"{escape(facts['name'])}: {facts['transactions']:,} transactions, {facts['accounts']:,} accounts "
        f"({facts['fraud_accounts']:,} with fraud), {facts['refused']} rows refused"
    )
    for protocol, show in (("paper", _show_paper), ("stream", _show_stream), ("time", _show_stream)):
        runs = [r for r in result["runs"] if r["protocol"] == protocol]
        if runs:
            console.print()
            show(console, runs)


def _show_paper(console: Console, runs: Runs) -> None:
    from offline.fraud.report import cells, label_blind_auc, paper_table

    variants = paper_table(runs).drop(columns="accuracy")  # one column less fits a terminal
    table = plain_table(f"paper protocol, account level, mean of {len(runs)} split(s)", ["variant"], variants.columns)
    for name, row in variants.iterrows():
        table.add_row(name, *cells(row))
    console.print(table)
    blind = label_blind_auc(runs)
    if blind.empty:
        return
    console.print(
        "Here fraud accounts have windows at stride 1 and normal accounts at stride 15, chosen by the label, and the "
        "account score is a maximum: more windows raise it. Without looking at labels, TEST AUC is "
        f"{blind['every_transaction']:.3f} at stride 1 for all and {blind['library_stride']:.3f} at stride 15 for all. "
        "A stream has no labels; the stream protocol says what to expect there."
    )


def _show_stream(console: Console, runs: Runs) -> None:
    from offline.fraud.report import budget_sentence, cells, ranking_table

    first = runs[0]
    title = f"{first['protocol']} protocol, TEST, mean of {len(runs)} split(s); no labels, nothing from the future"
    table = plain_table(title, ["score"], ["account AUC", "AP", "F1", "transaction AUC", "AP"])
    columns = ["account AUC", "account AP", "account F1", "transaction AUC", "transaction AP"]
    for (baseline, name, supervised), row in ranking_table(runs)[columns].iterrows():
        mark = " (supervised)" if supervised else ""
        table.add_row(f"{'baseline ' if baseline else ''}{name}{mark}", *cells(row))
    console.print(table)
    if "operation" in first:
        console.print(budget_sentence(runs))
    if first["split"] == "unlabelled":
        console.print(
            f"Fitted without labels: {first['fitted']['fraud']:,} of {first['fitted']['transactions']:,} transactions "
            f"fitted on are fraud; a share of {first['contamination']:g} was taken to be (--set contamination=...)."
        )
    if "kinds" in first:
        console.print()
        for metric, name in (("auc", "AUC"), ("ap", "average precision")):
            heading = f"transaction {name} by kind of fraud: its fraud against all that is none"
            _show_kinds(console, heading, runs, "transaction", metric, "kinds")
