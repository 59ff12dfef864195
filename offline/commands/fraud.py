"""``stream-ccsd evaluate fraud``: does it reproduce the paper, and would it work on a stream?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from offline.commands.options import CacheOption, cache_folder
from offline.published import FRAUD_SIGMA_X, FRAUD_SIGMA_Y
from stream_ccsd.cli.command import with_options
from stream_ccsd.cli.options import ColumnsOption, columns_schema
from stream_ccsd.cli.output import JsonOption, check_target, emit, plain_table, progress_bar
from stream_ccsd.errors import StreamCcsdError

Runs = list[dict[str, Any]]


@dataclass(frozen=True)
class FraudOptions:
    """What ``stream-ccsd evaluate fraud`` is told."""

    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Labelled transactions: .csv, .jsonl (.gz, .xz), .parquet; by default simulated, pattern by pattern.",
        ),
    ] = None
    protocol: Annotated[
        str, typer.Option(help="stream (causal, label-blind), paper, both, or time (early against late).")
    ] = "stream"
    seeds: Annotated[str, typer.Option(help="Seeds of the account split, comma-separated.")] = "0"
    ablation: Annotated[
        bool, typer.Option(help="With the paper's protocol: its ablations, and one stride for all accounts.")
    ] = True
    baselines: Annotated[bool, typer.Option(help="Run the baselines on the same rows.")] = True
    sigma_x: Annotated[float | None, typer.Option(help=f"Fix the window bandwidth (paper {FRAUD_SIGMA_X}).")] = None
    sigma_y: Annotated[float | None, typer.Option(help=f"Fix the change bandwidth (paper {FRAUD_SIGMA_Y}).")] = None
    label: Annotated[str, typer.Option(help="Label column, 0 or 1.")] = "fraud"
    columns: ColumnsOption = ""
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


@with_options
def fraud(options: FraudOptions) -> None:
    """Fraud on VAL and TEST accounts: rankings, operating points, detection delay, baselines beside them.

    The paper's protocol takes windows more densely where the label says fraud; the stream protocol cannot know labels.
    """
    from offline.fraud.data import load_labelled
    from offline.fraud.evaluate import evaluate_fraud
    from stream_ccsd.settings import Settings

    protocols = {"both": ["paper", "stream"]}.get(options.protocol, [options.protocol])
    if protocols[0] not in ("paper", "stream", "time"):
        raise typer.BadParameter(
            f"expected stream, paper, both or time, got {options.protocol!r}", param_hint="--protocol"
        )
    try:
        seeds = [int(s) for s in options.seeds.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"expected numbers like 0,1,2, got {options.seeds!r}", param_hint="--seeds") from error
    check_target(options.json_target)
    if options.data is None:
        _patterns(seeds, options.report, options.json_target)
        return
    with progress_bar() as start:
        labelled = load_labelled(options.data, columns_schema(options.columns), options.label)
        result = evaluate_fraud(
            labelled,
            protocols,
            seeds,
            Settings(sigma_x=options.sigma_x, sigma_y=options.sigma_y),
            full_table=options.ablation,
            baselines=options.baselines,
            sensitivity=options.report is not None and "paper" in protocols,
            cache=cache_folder() if options.use_cache else None,
            progress=start("runs"),
        )
    if options.report is not None:
        from offline.fraud.report import write_report

        typer.echo(f"report: {write_report(result, options.report)}", err=True)
    emit(result, options.json_target, _show)


def _patterns(seeds: list[int], report: Path | None, json_target: str | None) -> None:
    """Without a file: the simulator's patterns of fraud, each alone."""
    from offline.fraud.patterns import run_patterns
    from stream_ccsd.settings import Settings

    if report is not None:
        raise StreamCcsdError("the report is about a file of labelled transactions: name one with --data")
    with progress_bar() as start:
        runs = [run_patterns(800, 120, seed, Settings(), start(f"seed {seed}")) for seed in seeds]
    emit({"runs": runs}, json_target, _show_patterns)


def _show_patterns(console: Console, result: dict[str, Any]) -> None:
    from offline.fraud.tables import cells, pattern_table

    runs = result["runs"]
    shown = (
        ("transaction", "auc", "transaction AUC: its fraud against transactions of normal accounts"),
        ("transaction", "ap", "transaction average precision"),
        ("account", "auc", "account AUC: its accounts against normal ones, each by its maximum"),
    )
    for level, metric, title in shown:
        heading = f"simulated fraud by pattern, mean of {len(runs)} stream(s), {title}"
        patterns = pattern_table(runs, level, metric)
        table = plain_table(heading, ["score"], patterns.columns)
        for name, row in patterns.iterrows():
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
    from offline.fraud.tables import cells, label_blind_auc, paper_table

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
    from offline.fraud.tables import budget_sentence, cells, ranking_table

    title = f"{runs[0]['protocol']} protocol, TEST, mean of {len(runs)} split(s); no labels, nothing from the future"
    table = plain_table(title, ["score"], ["account AUC", "AP", "F1", "transaction AUC", "AP"])
    columns = ["account AUC", "account AP", "account F1", "transaction AUC", "transaction AP"]
    for (baseline, name, supervised), row in ranking_table(runs)[columns].iterrows():
        mark = " (supervised)" if supervised else ""
        table.add_row(f"{'baseline ' if baseline else ''}{name}{mark}", *cells(row))
    console.print(table)
    if "operation" in runs[0]:
        console.print(budget_sentence(runs))
