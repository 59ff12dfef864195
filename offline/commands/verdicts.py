"""``stream-ccsd evaluate fraud --protocol verdicts`` and ``handbook``: what is learnt from late verdicts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from stream_ccsd.calendar import Calendar, CalendarError
from stream_ccsd.cli.command import given_flags
from stream_ccsd.cli.output import plain_table
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.learning.schedule import OFTEN

PROTOCOLS = ("verdicts", "handbook")
_PANEL = "With --protocol verdicts or handbook"
# What the Handbook's protocol has settled.
_NOT_OF_THE_BOOK = ("budget", "explore", "label_delay", "days", "modes")


@dataclass(frozen=True)
class LateVerdictOptions:
    """Options of verdicts and model updates; lengths of time like 7d, 36h, or a number in the stream's own unit."""

    delay: Annotated[
        str, typer.Option(metavar="LENGTH", rich_help_panel=_PANEL, help="A label is known so long after.")
    ] = "7d"
    budget: Annotated[
        str,
        typer.Option(metavar="N/day", rich_help_panel=_PANEL, help="Cards that investigators look at each day."),
    ] = "100/day"
    explore: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            rich_help_panel=_PANEL,
            help="Share of the budget for cards whose merchants little is known of: what they score does not count.",
        ),
    ] = 0.0
    label_delay: Annotated[
        str,
        typer.Option(metavar="LENGTH", rich_help_panel=_PANEL, help="Labels of cards nobody looked at come so late."),
    ] = "30d"
    modes: Annotated[
        str,
        typer.Option(
            rich_help_panel=_PANEL,
            help="all (labels after the delay), alerted (verdicts within the budget, other labels late), or both.",
        ),
    ] = "all,alerted"
    learn: Annotated[
        str,
        typer.Option(metavar="LENGTH", rich_help_panel=_PANEL, help="Lessons: hourly, daily, weekly, or a length."),
    ] = "daily"
    learn_first: Annotated[
        bool, typer.Option(rich_help_panel=_PANEL, help="Let lessons also look at the part that is fitted on.")
    ] = False
    days: Annotated[
        str | None,
        typer.Option(metavar="A-B", rich_help_panel=_PANEL, help="Judge these days alone, too; the first one is 0."),
    ] = None
    wrong: Annotated[
        float, typer.Option(metavar="SHARE", rich_help_panel=_PANEL, help="So many verdicts are wrong, at random.")
    ] = 0.0
    wrong_merchant: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_PANEL,
            help="Of what is streamed, all verdicts in the first half about this merchant are wrong.",
        ),
    ] = None
    arf: Annotated[
        bool, typer.Option(rich_help_panel=_PANEL, help="River's adaptive random forest beside: minutes a mode.")
    ] = True
    boosting: Annotated[
        bool, typer.Option(rich_help_panel=_PANEL, help="Gradient boosting beside, fitted anew each week.")
    ] = True


_NAMES = tuple(LateVerdictOptions.__dataclass_fields__)


def refuse_others(options: Any, late: LateVerdictOptions, protocols: list[str]) -> None:
    """Options of another protocol would be ignored: say so instead."""
    protocol = protocols[0]
    if protocol not in PROTOCOLS:
        needless = given_flags(late, _NAMES)
        if needless:
            raise StreamCcsdError(f"{', '.join(needless)} need --protocol verdicts or handbook: others learn nothing")
        return
    if options.data is None:
        raise StreamCcsdError(f"--protocol {protocol} needs --data: a file of labelled transactions")
    needless = given_flags(options, ("split", "ablation", "trees", "by", "report", "sigma_x", "sigma_y"))
    if protocol == "handbook":
        needless += given_flags(late, _NOT_OF_THE_BOOK)
    if needless:
        raise StreamCcsdError(f"{', '.join(needless)} mean nothing to --protocol {protocol}: leave them out")


def chosen_plan(options: Any, late: LateVerdictOptions, seeds: list[int]) -> Callable[[Calendar], Any]:
    """What is to be run, once a calendar says how long a day is; mistakes are reported before anything is read."""
    from offline.fraud.investigators import Mistakes
    from offline.fraud.verdicts import PEERS, Plan

    if len(seeds) != 1:
        raise typer.BadParameter("one seed is enough here: time decides what is learnt from", param_hint="--seeds")
    if not 0 <= late.wrong < 1:
        raise typer.BadParameter(f"expected a share from 0 to below 1, got {late.wrong}", param_hint="--wrong")
    budget = re.fullmatch(r"([1-9]\d{0,8})(?:/day)?", late.budget)
    if budget is None:
        raise typer.BadParameter(f"expected a number of cards like 100/day, got {late.budget!r}", param_hint="--budget")
    modes = late.modes.split(",")
    if not set(modes) <= {"all", "alerted"} or len(set(modes)) < len(modes):
        raise typer.BadParameter(f"expected all, alerted or all,alerted, got {late.modes!r}", param_hint="--modes")
    given = {"--delay": late.delay, "--label-delay": late.label_delay, "--learn": late.learn}
    for option, text in given.items():
        _in_days(Calendar("days"), option, text)

    def plan(calendar: Calendar) -> Plan:
        lengths = {option: _in_days(calendar, option, text) for option, text in given.items()}
        if lengths["--label-delay"] < 1:
            raise typer.BadParameter("labels cannot come before investigators look: a day", param_hint="--label-delay")
        return Plan(
            modes=tuple(modes),  # type: ignore[arg-type]  # checked above
            delay=lengths["--delay"],
            label_delay=lengths["--label-delay"],
            budget=int(budget[1]),
            explore=late.explore,
            every=lengths["--learn"],
            first_part=late.learn_first,
            mistakes=Mistakes(late.wrong, late.wrong_merchant, seeds[0]),
            days=_days(late.days),
            baselines=options.baselines,
            without=frozenset(name for name in PEERS if not getattr(late, name)),
            seed=seeds[0],
        )

    _days(late.days)
    return plan


def _in_days(calendar: Calendar, option: str, text: str) -> float:
    try:
        length = calendar.duration(OFTEN.get(text, text) if option == "--learn" else text)
    except CalendarError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    if not length > 0:
        raise typer.BadParameter(f"expected a length above 0, got {text!r}", param_hint=option)
    return length / (calendar.of_days(1.0) or 1.0)


def _days(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", text)
    if match is None or int(match[1]) > int(match[2]):
        raise typer.BadParameter(f"expected days like 94-135, got {text!r}", param_hint="--days")
    return int(match[1]), int(match[2])


def run_late(
    labelled: Any, settings: Any, protocol: str, plan: Callable[[Calendar], Any], cache: Path | None, start: Any
) -> dict[str, Any]:
    """The runs of a protocol, as plain values for JSON."""
    from offline.fraud.evaluate import data_facts
    from offline.fraud.verdicts import run_handbook, run_verdicts

    times = [labelled.transactions[0].time, labelled.transactions[-1].time]
    calendar = Calendar.choose(settings.time_unit, settings.time_origin, times)
    run = run_handbook if protocol == "handbook" else run_verdicts
    runs = run(labelled, settings, plan(calendar), cache=cache, start=start)
    return {"data": data_facts(labelled), "protocol": protocol, "settings": settings.to_dict(), "runs": runs}


def show_late(console: Console, result: dict[str, Any]) -> None:
    """A table a run: figures of the learnt score, of baselines, of others; then week by week."""
    facts = result["data"]
    console.print(
        f"{escape(facts['name'])}: {facts['transactions']:,} transactions, {facts['fraud_transactions']:,} of them "
        f"fraud, {facts['refused']} rows refused"
    )
    for run in result["runs"]:
        judged, learner = run["judged"], run["learner"]
        console.print()
        where = f"days {judged['from']} to {judged['to']}"
        known = f"{run['budget']} cards a day looked at, other" if "budget" in run else "all"
        title = f"{run['mode']}: {known} labels after {run['delay']:g} days; {where}"
        console.print(_figures_table(title, run))
        if "days" in run:
            chosen = run["days"]
            console.print(_figures_table(f"days {chosen['from']} to {chosen['to']}", chosen))
        console.print(_weeks_table(run["weeks"]))
        console.print(
            f"{judged['transactions']:,} transactions judged, {judged['frauds']:,} of them fraud; {learner['lessons']} "
            f"lessons in {learner['seconds']:g} s, {learner['models']} models, {sum(learner['verdicts'].values()):,} "
            f"verdicts. Fitted on {run['fitted']['transactions']:,} earlier ones."
        )


def _figures_table(title: str, run: dict[str, Any]) -> Any:
    names = ("auc", "ap", "cp100", "precision")
    table = plain_table(escape(title), ["score"], ["AUC", "AP", "CP@100", "precision"])
    published = {f"published: {name}": figures for name, figures in run.get("published", {}).items()}
    for name, figures in {"learnt": run, **run["baselines"], **published}.items():
        table.add_row(escape(name), *(_cell(figures.get(metric)) for metric in names))
    return table


def _weeks_table(weeks: list[dict[str, Any]]) -> Any:
    table = plain_table(
        "by week (* before what is judged)", ["from day"], ["frauds", "AUC", "AP", "CP@100", "precision"]
    )
    for week in weeks:
        cells = [_cell(week[name]) for name in ("auc", "ap", "cp100", "precision")]
        table.add_row(f"{week['from']}{'' if week['judged'] else '*'}", f"{week['frauds']:,}", *cells)
    return table


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
