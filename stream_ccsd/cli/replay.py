"""``stream-ccsd replay``: a stream through the engine, alerts as they happen."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from stream_ccsd.cli.output import JsonOption, check_target, emit, plain_table, progress_bar

_SHOWN = 12


def replay(
    accounts: Annotated[int, typer.Option(help="Customers of the simulated stream.", min=10)] = 400,
    days: Annotated[int, typer.Option(help="Days the simulated stream lasts.", min=10)] = 120,
    seed: Annotated[int, typer.Option(help="Seed of the simulation.", min=0)] = 0,
    alert_rate: Annotated[
        float, typer.Option(help="Alert budget: share of normal transactions allowed over the threshold (0 < r < 1).")
    ] = 1e-3,
    every: Annotated[bool, typer.Option("--all", help=f"Print every alert, not only the first {_SHOWN}.")] = False,
    json_target: JsonOption = None,
) -> None:
    """Replay a built-in simulated stream: fit on normal accounts, stream the others, print alerts with their reasons.

    The simulator knows which transactions are fraud; the engine does not. The summary compares the two.
    """
    from replay.simulated import replay_simulated
    from stream_ccsd.alert.reasons import Alert
    from stream_ccsd.settings import Settings

    console = Console(stderr=json_target == "-")
    shown = 0

    def show(alert: Alert) -> None:
        nonlocal shown
        shown += 1
        if every or shown <= _SHOWN:
            line = f"[bold]day {alert.time:6.1f}[/bold]  {escape(alert.headline)}"
            console.print(line, highlight=False, soft_wrap=True)
        elif shown == _SHOWN + 1:
            console.print("further alerts are counted, not printed (--all prints them)")

    check_target(json_target)
    with progress_bar(console) as start:
        result = replay_simulated(
            accounts, days, seed, Settings(alert_rate=alert_rate), show, start("calibrating"), start("streaming")
        )
    emit(result, json_target, _show)


def _show(console: Console, result: dict[str, Any]) -> None:
    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.0%}"

    console.print(
        f"\n{result['events']:,} transactions of {result['accounts']:,} accounts at {result['events_per_s']:,.0f}/s; "
        f"{result['alerts']} alerts against {result['library_windows']:,} library windows (model {result['model']})"
    )
    delay = result["median_delay_days"]
    console.print(
        f"by account: caught {result['caught_accounts']} of {result['fraud_accounts']} with fraud "
        f"(recall {share(result['recall'])}, precision {share(result['precision'])}, "
        f"median delay {'-' if delay is None else f'{delay:.1f} days'})"
    )
    table = plain_table("")
    for column in ("fraud pattern", "accounts", "caught"):
        table.add_column(column, justify="left" if column == "fraud pattern" else "right")
    for name, row in result["patterns"].items():
        table.add_row(name, str(row["accounts"]), str(row["caught"]))
    console.print(table)
