"""``stream-ccsd compare``: what would change if the challenger took the champion's place."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from replay.text import per_thousand
from stream_ccsd.calendar import Calendar
from stream_ccsd.cli.command import with_options
from stream_ccsd.cli.output import JsonOption, check_style, check_target, emit, export, plain_table
from stream_ccsd.errors import StreamCcsdError

_DAYS = {"day": 1.0, "week": 7.0}
_LABELS, _NOTHING = "labels", "none"
_NAMES = ("champion", "challenger")
# Of an alert gained or lost, for other programs.
_COLUMNS = (
    *("change", "position", "id", "account", "transaction", "time", "when", "amount", "category", "merchant", "score"),
    *("other_score", "other_alerted_account", "verdict", "expected_loss", "raised_by", "reason", "headline"),
)
_KINDS = {
    "int64": ("position",),
    "float64": ("time", "amount", "score", "other_score", "expected_loss"),
    "bool_": ("other_alerted_account",),
}


@dataclass(frozen=True)
class CompareOptions:
    """Options of ``stream-ccsd compare``."""

    champion: Annotated[Path, typer.Option(metavar="FILE", help="State file of a replay with --challenger.")]
    challenger: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The challenger's; by default the one beside it.")
    ] = None
    verdicts: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="What alerts are judged by: a book of verdicts (by default the one beside the champion's state), "
            "'labels' (as recorded from the file, and what is used where there is no book) or 'none'.",
        ),
    ] = None
    by: Annotated[str | None, typer.Option(metavar="PERIOD", help="Count also by day or week.")] = None
    limit: Annotated[int, typer.Option(min=0, help="List so many alerts gained, and so many lost.")] = 10
    style: Annotated[
        str,
        typer.Option("--format", help="table for people; json, csv or parquet: alerts gained and lost, a row each."),
    ] = "table"
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where such rows go; parquet needs one.")] = None
    seed: Annotated[int, typer.Option(help="Of the resampling behind intervals.", min=0, max=2**63 - 1)] = 0
    json_target: JsonOption = None


@with_options
def compare(options: CompareOptions) -> None:
    """Compare a champion with its challenger: alerts gained and lost, and by verdicts, precision and recall of each.

    Both have scored the same stream: stream-ccsd replay --state replay.db --challenger DIR. Shares have 95 % intervals
    (Wilson), differences those of accounts drawn anew with replacement.
    """
    from replay.compare import compare as compared
    from replay.run.challenger import challenger_beside
    from replay.state.file import StateFile

    check_target(options.json_target)
    check_style(options.style, options.out)
    if options.by is not None and options.by not in _DAYS:
        raise typer.BadParameter(f"expected {' or '.join(_DAYS)}, got {options.by!r}", param_hint="--by")
    second = options.challenger or challenger_beside(options.champion)
    with (
        closing(StateFile.open(options.champion, read_only=True)) as old,
        closing(StateFile.open(second, read_only=True)) as new,
    ):
        calendar = Calendar.from_dict(old.facts["calendar"])
        kind, effective = _standings(options, old)
        width = None if options.by is None else _width(calendar, options.by)
        result = compared(old.records, new.records, effective, limit=options.limit, width=width, seed=options.seed)
    states = dict(zip(_NAMES, (options.champion, second), strict=True))
    for name, path in states.items():
        result[name] = {"state": str(path), **result[name]}
    result |= {"verdicts": kind, "calendar": calendar.to_dict(), "by": options.by}
    if options.style != "table" or options.out is not None:
        rows = [{"change": change, **alert} for change in ("gained", "lost") for alert in result[change]]
        export(rows, options.style, options.out, _COLUMNS, _KINDS)
        return
    emit(result, options.json_target, _show)


def _standings(options: CompareOptions, champion: Any) -> tuple[str, Any]:
    """What to compare with, and how that is called: verdicts of people where there are any, else recorded labels."""
    from replay.cases.judgement import reached_by
    from replay.cases.verdicts import VerdictLog, audit_log_beside
    from replay.compare import effective_verdicts_of, recorded_labels

    if options.verdicts == _NOTHING:
        return _NOTHING, None
    place = audit_log_beside(options.champion) if options.verdicts is None else Path(options.verdicts)
    if options.verdicts != _LABELS and (options.verdicts is not None or place.exists()):
        with VerdictLog.open(place, read_only=True) as verdicts:
            return str(place), effective_verdicts_of(
                (entry.verdict for entry in verdicts.entries()), reached_by(champion)
            )
    labels = recorded_labels(champion.records)
    if labels is None and options.verdicts == _LABELS:
        raise StreamCcsdError(
            f"{options.champion} has no labels recorded: replay with --label COLUMN, or judge by verdicts"
        )
    return (_NOTHING, None) if labels is None else (_LABELS, labels)


def _width(calendar: Calendar, by: str) -> float:
    width = calendar.of_days(_DAYS[by])
    if width is None:
        raise StreamCcsdError(
            f"--by {by} needs to know what a day is: fit with --set time_unit=seconds (or milliseconds, days)"
        )
    return width


def _show(console: Console, result: dict[str, Any]) -> None:
    calendar = Calendar.from_dict(result["calendar"])
    sides = [result[name] for name in _NAMES]
    both = f"{result['transactions']:,} transactions of {result['accounts']:,} accounts, scored by both"
    console.print(both + _unpaired(result), highlight=False)
    table = plain_table("", [""], ["model", "threshold", "alerts", "a day", "rate", "accounts"])
    for name, side in zip(_NAMES, sides, strict=True):
        day, rate = side["alerts_per_day"], per_thousand(side["alert_rate"]["value"])
        numbers = f"{side['threshold']:.2f}", f"{side['alerts']:,}", "-" if day is None else f"{day:,.3g}", rate
        table.add_row(name, escape(side["model"]), *numbers, f"{side['accounts']:,}")
    console.print(table)
    changes = plain_table("", [""], ["shared", "gained", "lost"])
    for level in ("by_transaction", "by_account"):
        changes.add_row(level.replace("_", " "), *(f"{result[level][k]:,}" for k in ("shared", "gained", "lost")))
    console.print(changes)
    if result["judged"] is not None:
        _show_judged(console, result)
    for change, said in (("gained", "only the challenger alerts"), ("lost", "only the champion alerts")):
        if result[change]:
            console.print(f"\n[bold]{change}[/bold]: {said}, the highest first", highlight=False)
        for alert in result[change]:
            console.print(_alert(alert, calendar), highlight=False)
    if result["by"]:
        _show_periods(console, result, calendar)


def _unpaired(result: dict[str, Any]) -> str:
    counts = {name: result[f"only_{name}_scored"] for name in _NAMES}
    return "".join(f"; {count:,} by the {name} alone" for name, count in counts.items() if count)


def _show_judged(console: Console, result: dict[str, Any]) -> None:
    judged = result["judged"]
    what = "labels" if result["verdicts"] == _LABELS else "verdicts"
    title = f"\nby {what}: {judged['frauds']:,} frauds, {judged['normals']:,} normal transactions (95 % intervals)"
    table = plain_table(title, [""], [*_NAMES, "difference"])
    for level in ("by_transaction", "by_account"):
        for measure in ("precision", "recall"):
            row = judged[level][measure]
            cells = (_share(row[name]) for name in (*_NAMES, "difference"))
            table.add_row(f"{measure} {level.replace('_', ' ')}", *cells)
    console.print(table)
    for name, words in (("caught", "accounts with fraud caught"), ("false", "other accounts alerted")):
        row = judged["by_account"]["mcnemar"][name]
        p = "" if row["p"] is None else f" (McNemar, exact: p = {row['p']:.2g})"
        console.print(f"{words}: {row['gained']:,} more, {row['lost']:,} fewer{p}", highlight=False)
    console.print(judged["note"], highlight=False)
    unjudged = judged["unjudged_alerts"]
    if any(unjudged.values()):
        console.print(
            f"Precision is that of judged alerts: nobody has judged {unjudged['champion']:,} of the champion's "
            f"{result['champion']['alerts']:,} and {unjudged['challenger']:,} of the challenger's "
            f"{result['challenger']['alerts']:,}.",
            highlight=False,
        )


def _share(row: dict[str, Any]) -> str:
    if row["value"] is None:
        return "-"
    sign = "" if "of" in row else "+"
    value, low, high = (100 * row[name] for name in ("value", "low", "high"))
    low, high = (f"{bound:{sign}.{0 if abs(bound) >= 10 else 1}f}" for bound in (low, high))
    return f"{value:{sign}.1f}% ({low} to {high})"


def _alert(alert: dict[str, Any], calendar: Calendar) -> str:
    known = ", which alerts this account elsewhere" if alert["other_alerted_account"] else ""
    verdict = f" [bold]{alert['verdict']}[/bold]" if alert["verdict"] else ""
    why = "" if alert["reason"] in alert["headline"] else f": {alert['reason']}"
    return (
        f"{calendar.show(alert['time'])}{verdict}  {escape(alert['headline'] + why)} "
        f"(score {alert['score']:.1f}, {alert['other_score']:.1f} to the other{known})"
    )


def _show_periods(console: Console, result: dict[str, Any], calendar: Calendar) -> None:
    names = ("shared", "gained", "lost", *(["frauds"] if result["judged"] else []))
    of_frauds = ", in brackets those on frauds" if result["judged"] else ""
    title = f"\nalerts by {result['by']}{of_frauds}"
    table = plain_table(title, numbers=[result["by"], "transactions", *_NAMES, *names])
    for row in result["periods"]:
        alerts = (f"{row[name]:,}" + (f" ({row[f'{name}_frauds']:,})" if of_frauds else "") for name in _NAMES)
        counts = (f"{row[name]:,}" for name in names)
        table.add_row(calendar.show(row["start"]), f"{row['transactions']:,}", *alerts, *counts)
    console.print(table)
