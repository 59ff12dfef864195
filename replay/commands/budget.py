"""``stream-ccsd budget``: what another alert budget would have meant, from a replay's state file."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from rich.console import Console

from replay.commands.options import StateOption
from stream_ccsd.cli.output import JsonOption, check_target, emit, plain_table


def budget(state: StateOption, json_target: JsonOption = None) -> None:
    """What other alert budgets would have meant: alerts, and where there are labels, precision, recall and money.

    Every budget is tried on all recorded scores, by the rules that the replay alerted by.
    """
    from replay.budget import budgets
    from replay.state.file import StateFile

    check_target(json_target)
    with closing(StateFile.open(state, read_only=True)) as file:
        result = budgets(file.records)
    emit(result, json_target, _show)


def _show(console: Console, result: dict[str, Any]) -> None:
    labelled, days = result["labelled"], result["days"]
    numbers = ["asked", "nats", "alerts", *(["a day"] if days else []), "in 1,000"]
    numbers += ["accounts", "transactions", "money"] if labelled else []
    long = "" if days is None else f" in {days:,.4g} days"
    table = plain_table(f"{result['transactions']:,} transactions{long}, by alert budget", numbers=numbers, last=[""])
    for row in result["budgets"]:
        cells = [f"1 in {1 / row['rate']:,.0f}", f"{row['threshold']:.1f}", f"{row['alerts']:,}"]
        cells += [f"{row['alerts_per_day']:,.3g}"] if days else []
        cells.append(f"{1000 * row['share']:,.3g}")
        if labelled:
            for of in ("account", "transaction"):
                cells.append(f"{_share(row[of]['precision'])} / {_share(row[of]['recall'])}")
            cells.append(_share(row["money_caught"]))
        table.add_row(*cells, "<" if row["current"] else "")
    console.print(table)
    console.print("asked: of normal transactions; < marks the budget of the replay", highlight=False)
    if labelled:
        console.print(
            "accounts, transactions: precision / recall; money: of all fraud, what was paid from an alert on",
            highlight=False,
        )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
