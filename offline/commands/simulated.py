"""``stream-ccsd evaluate drift`` and ``stream-ccsd evaluate rates``: is a change noticed, and do alert rates hold?"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from stream_ccsd.cli.output import JsonOption, check_target, emit, plain_table, progress_bar


def drift(
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Simulated towns.")] = 10,
    first: Annotated[int, typer.Option(min=0, max=2**31, help="Seed of the first of them.")] = 0,
    half_life: Annotated[float, typer.Option(min=1.0, max=10_000.0, help="Of the laws that follow, in days.")] = 30.0,
    json_target: JsonOption = None,
) -> None:
    """How soon a rise of prices by half is noticed, and how laws follow it: simulated towns without any fraud."""
    from offline.fraud.simulated import ShiftedPopulation, run_drift

    check_target(json_target)
    with progress_bar() as start:
        runs = [
            run_drift(ShiftedPopulation(seed=seed), half_life, start(f"seed {seed}"))
            for seed in range(first, first + seeds)
        ]
    emit({"half_life": half_life, "runs": runs}, json_target, _show_drift)


def _show_drift(console: Console, result: dict[str, Any]) -> None:
    runs = result["runs"]
    false = sum(len(run["false_events"]) for run in runs)
    console.print(f"events in {len(runs)} town(s) in which nothing changed: {false}")
    soon = sorted(run["noticed_after"] for run in runs if run["noticed_after"] is not None)
    when = f", after {soon[0]:.0f} to {soon[-1]:.0f} days" if soon else ""
    console.print(f"one category dearer by half: noticed in {len(soon)} of {len(runs)}{when}")
    title = "all prices higher by half: of 1,000 transactions, so many reach the threshold"
    table = plain_table(title, ["laws"], ["before", "10 days after", "last 20 days", "back in", "within days"])
    words = {"fixed": "as fitted", "adapting": "following", "adapting_unchanged": "following, no rise"}
    for name, said in words.items():
        rates = [run["rates"][name] for run in runs]
        shown = [f"{1000 * sum(r[part] for r in rates) / len(rates):.2f}" for part in ("before", "first", "last")]
        back = [r["back_after"] for r in rates if r["back_after"] is not None]
        table.add_row(said, *shown, f"{len(back)} of {len(runs)}", str(max(back)) if back else "-")
    console.print(table)


def rates(
    accounts: Annotated[
        int, typer.Option(min=2, max=100_000, help="Normal accounts that each model is fitted on.")
    ] = 100,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Simulated towns, from seed 0 on.")] = 10,
    json_target: JsonOption = None,
) -> None:
    """How often normal accounts alert, beside what was asked for: simulated towns without any fraud."""
    from offline.fraud.simulated import run_rates
    from stream_ccsd.settings import Settings

    check_target(json_target)
    with progress_bar() as start:
        runs = [run_rates(accounts, seed, Settings(), start(f"seed {seed}")) for seed in range(seeds)]
    emit({"runs": runs}, json_target, _show_rates)


def _show_rates(console: Console, result: dict[str, Any]) -> None:
    runs = result["runs"]
    title = f"normal accounts, {runs[0]['accounts']} fitted, {len(runs)} town(s): observed rate over the nominal one"
    table = plain_table(title, ["nominal", "of transactions"], ["mean", "lowest", "highest"])
    for place, rate in enumerate(runs[0]["rates"]):
        for kind in ("alerted", "reached"):
            ratios = [run["rates"][place][kind] / rate["nominal"] for run in runs]
            shown = (sum(ratios) / len(ratios), min(ratios), max(ratios))
            table.add_row(f"1 in {1 / rate['nominal']:,.0f}", kind, *(f"{ratio:.2f}" for ratio in shown))
    console.print(table)
