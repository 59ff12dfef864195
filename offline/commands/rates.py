"""``stream-ccsd evaluate rates``: is 1 in 1,000 really 1 in 1,000?"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from stream_ccsd.cli.output import JsonOption, check_target, emit, plain_table, progress_bar


def rates(
    accounts: Annotated[
        int, typer.Option(min=2, max=100_000, help="Normal accounts that each model is fitted on.")
    ] = 100,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Simulated towns, from seed 0 on.")] = 10,
    json_target: JsonOption = None,
) -> None:
    """How often normal accounts alert, beside what was asked for: simulated towns without any fraud."""
    from offline.fraud.rates import run_rates
    from stream_ccsd.settings import Settings

    check_target(json_target)
    with progress_bar() as start:
        runs = [run_rates(accounts, seed, Settings(), start(f"seed {seed}")) for seed in range(seeds)]
    emit({"runs": runs}, json_target, _show)


def _show(console: Console, result: dict[str, Any]) -> None:
    runs = result["runs"]
    title = f"normal accounts, {runs[0]['accounts']} fitted, {len(runs)} town(s): observed rate over the nominal one"
    table = plain_table(title, ["nominal", "of transactions"], ["mean", "lowest", "highest"])
    for place, rate in enumerate(runs[0]["rates"]):
        for kind in ("alerted", "reached"):
            ratios = [run["rates"][place][kind] / rate["nominal"] for run in runs]
            shown = (sum(ratios) / len(ratios), min(ratios), max(ratios))
            table.add_row(f"1 in {1 / rate['nominal']:,.0f}", kind, *(f"{ratio:.2f}" for ratio in shown))
    console.print(table)
