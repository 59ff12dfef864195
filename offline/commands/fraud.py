"""``stream-ccsd evaluate fraud``: does it reproduce the paper, and would it work on a stream?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from offline.commands.options import CacheOption, cache_folder
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
    sigma_x: Annotated[float | None, typer.Option(help="Fix the window bandwidth (paper 9.649).")] = None
    sigma_y: Annotated[float | None, typer.Option(help="Fix the change bandwidth (paper 1.016).")] = None
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
    runs = result["runs"]
    shown = (
        ("transaction", "auc", "transaction AUC: its fraud against transactions of normal accounts"),
        ("transaction", "ap", "transaction average precision"),
        ("account", "auc", "account AUC: its accounts against normal ones, each by its maximum"),
    )
    for level, metric, title in shown:
        heading = f"simulated fraud by pattern, mean of {len(runs)} stream(s), {title}"
        table = plain_table(heading, ["score"], runs[0]["patterns"])
        for name in next(iter(runs[0]["patterns"].values()))[level]:
            cells = [mean(r["patterns"][p][level][name][metric] for r in runs) for p in runs[0]["patterns"]]
            ours = name in ("alert", "outcome", "habit", "divergence", "accumulated")
            table.add_row(name if ours else f"baseline {name}", *(f"{v:.3f}" for v in cells))
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
    numbers = ("VAL AUC", "VAL AP", "TEST AUC", "TEST AP", "precision", "recall", "F1")
    table = plain_table(f"paper protocol, account level, mean of {len(runs)} split(s)", ["variant"], numbers)
    variants = {"full": runs} | {name: [r["ablation"][name] for r in runs] for name in runs[0].get("ablation", {})}
    for name, rows in variants.items():
        values = [mean(r[part][m] for r in rows) for part in ("val", "test") for m in ("auc", "ap")]
        values += [mean(r["test"][m] for r in rows) for m in ("precision", "recall", "f1")]
        table.add_row(name, *(f"{v:.3f}" for v in values))
    table.add_row("the paper's full", "0.756", "0.677", "0.766", "0.792", "0.771", "0.953", "0.853")
    console.print(table)
    if "label_blind" not in runs[0]:
        return
    blind, sparse = (
        mean(r["label_blind"][name]["test"]["auc"] for r in runs) for name in ("every_transaction", "library_stride")
    )
    console.print(
        "Here fraud accounts have windows at stride 1 and normal accounts at stride 15, chosen by the label, and the "
        "account score is a maximum: more windows raise it. Without looking at labels, TEST AUC is "
        f"{blind:.3f} at stride 1 for all and {sparse:.3f} at stride 15 for all. A stream has no labels; the stream "
        "protocol says what to expect there."
    )


def _show_stream(console: Console, runs: Runs) -> None:
    title = f"{runs[0]['protocol']} protocol, TEST, mean of {len(runs)} split(s); no labels, nothing from the future"
    table = plain_table(title, ["score"], ["account AUC", "AP", "F1", "transaction AUC", "AP"])
    for name in (n for n in runs[0]["account"] if n != "baselines"):
        table.add_row(name, *_cells([r["account"][name] for r in runs], [r["transaction"].get(name) for r in runs]))
    for name in runs[0]["account"]["baselines"]:
        rows = [r["account"]["baselines"][name] for r in runs]
        mark = " (supervised)" if rows[0].get("supervised") else ""
        cells = _cells(rows, [r["transaction"]["baselines"].get(name) for r in runs])
        table.add_row(f"baseline {name}{mark}", *cells)
    console.print(table)
    if "operation" in runs[0]:
        operations = [r["operation"] for r in runs]
        budget = [o["thresholds"]["budget"] for o in operations]
        console.print(
            f"by alert budget: {mean(o['alerts_per_1000_transactions'] for o in operations):.1f} alerts per 1,000 "
            f"transactions; {mean(b['detected_share'] for b in budget):.0%} of fraud accounts detected, "
            f"{mean(b['immediate_share'] or 0 for b in budget):.0%} of those at their first fraud"
        )


def _cells(account: Runs, transaction: list[dict[str, Any] | None]) -> list[str]:
    cells = [f"{mean(r['test'][m] for r in account):.3f}" for m in ("auc", "ap")]
    cells.append(f"{mean(r['test']['f1'] for r in account):.3f}" if "f1" in account[0]["test"] else "")
    known = [r for r in transaction if r is not None]
    return cells + ([f"{mean(r['test'][m] for r in known):.3f}" for m in ("auc", "ap")] if known else ["", ""])
