"""What ``stream-ccsd replay`` says: what it fitted on, what was caught, how soon, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from replay.text import learning_words, per_thousand, why_words
from stream_ccsd.calendar import Calendar
from stream_ccsd.cli.output import Advance, plain_table

_SHOWN = 3
FIRST_ALERTS = 5
"""Alerts that are printed unless all are asked for."""


def show_fit(console: Console, fit: dict[str, Any]) -> None:
    """What a replay without a model has fitted on, and what that means."""
    data = escape(fit["source"])
    labels = " --label is only counted against: the fit does not see it." if fit["label"] else ""
    console.print(
        f"fitted on the first {fit['share']:.0%} of the time of {data}, until {fit['when']}: "
        f"{fit['transactions']:,} transactions of {fit['accounts']:,} accounts. The rest is streamed.{labels}",
        highlight=False,
    )
    console.print(
        f"[bold]fraud in that part counts as normal[/bold], but for its oddest {fit['contamination']:.1%} (--set "
        "contamination=...). Where fraud is known, this finds more:\n"
        f"  stream-ccsd fit --data {data} --label COLUMN --model model, then --model model here",
        highlight=False,
    )


def show_alert(console: Console, alert: Any, calendar: Calendar) -> None:
    """An alert as it happens: when, who and how much in a line, how rare and why below."""
    category = f" ({alert.category})" if alert.category else ""
    what = escape(f"{alert.account} pays {alert.amount:,.2f} at {alert.merchant}{category}")
    console.print(f"[bold]{calendar.show(alert.time):>10}[/bold]  {what}", highlight=False)
    why = escape(alert.headline.removeprefix(f"{alert.account}: "))
    console.print(Padding(why, (0, 0, 0, 4), expand=False), highlight=False)


def show_drift(console: Console, event: Any, calendar: Calendar) -> None:
    """A change of the stream as it is noticed."""
    console.print(f"[bold]{calendar.show(event.time):>10}  the stream has changed[/bold]", highlight=False)
    console.print(Padding(escape(event.text), (0, 0, 0, 4), expand=False), highlight=False)


def show_summary(console: Console, result: dict[str, Any]) -> None:
    """The first screen: in 80 columns, what was caught, how soon, and why."""
    rate = f" at {result['events_per_s']:,.0f} records/s" if result["events_per_s"] else ""
    console.print(
        f"\n{result['transactions']:,} transactions of {result['accounts']:,} accounts{rate} (model {result['model']})",
        highlight=False,
    )
    console.print(_budget(result), highlight=False)
    if "recall" in result:
        _show_labels(console, result)
    elif result["why"]:
        console.print(f"raised by: {_why(result['why'], len(result['why']))}", highlight=False)
    if "challenger" in result:
        console.print(_challenger(result["challenger"], result), highlight=False, soft_wrap=True)
    if result["lessons"]:
        console.print(escape(learning_words(result["lessons"])), highlight=False, soft_wrap=True)
    if result.get("refused_verdicts"):
        dead = f"{result['outputs']}/verdict_dead_letters.jsonl"
        console.print(f"[bold]{result['refused_verdicts']:,} refused verdicts[/bold]: {escape(dead)}", soft_wrap=True)
    if result["drift"]:
        changes = len(result["drift"])
        console.print(f"[bold]the stream has changed[/bold] ({changes:,} time(s), see drift.jsonl), lately:")
        console.print(Padding(escape(result["drift"][-1]["text"]), (0, 0, 0, 4), expand=False), highlight=False)
    if result["latency_p50_ms"] is not None:
        p50, p99 = result["latency_p50_ms"], result["latency_p99_ms"]
        console.print(f"latency of one transaction: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    if result["dead_letters"]:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in result["dead_letters_by_reason"].items())
        console.print(f"[bold]{result['dead_letters']:,} dead letters[/bold]: {escape(reasons)}")
    if not result["complete"]:
        again = "add --resume to go on" if result["state"] else "with --state FILE it could be resumed"
        console.print(f"[bold]stopped[/bold] behind record {result['position']:,}; {again}")
    outputs = escape(result["outputs"])
    console.print(f"report: {outputs}/report.html, beside alerts.jsonl, scores.parquet, dead_letters.jsonl")


def _budget(result: dict[str, Any]) -> str:
    asked, observed, day = result["asked_rate"], result["alert_rate"], result["alerts_per_day"]
    text = f"[bold]{result['alerts']:,} alerts[/bold]"
    if observed is None:
        return text
    more = "" if day is None else f"; {day:,.3g} a day"
    if result.get("normal_alert_rate") is not None:
        more += f"; without fraud {per_thousand(result['normal_alert_rate'])}"
    return f"{text}: asked for {per_thousand(asked)}, {per_thousand(observed)} transactions alerted{more}"


def _challenger(own: dict[str, Any], champion: dict[str, Any]) -> str:
    """What the challenger did, and where the comparison is."""
    caught = f", caught {own['caught_accounts']} accounts, {own['false_accounts']} others" if "recall" in own else ""
    text = f"[bold]challenger[/bold] {own['model']}: {own['alerts']:,} alerts{caught}; "
    if champion["state"] is None:
        return text + f"its outputs: {escape(own['outputs'])}"
    return text + f"stream-ccsd compare --champion {escape(champion['state'])}"


def _show_labels(console: Console, result: dict[str, Any]) -> None:
    calendar = Calendar.from_dict(result["calendar"])
    console.print(
        f"[bold]caught {result['caught_accounts']} of {result['fraud_accounts']} accounts with fraud[/bold] "
        f"(recall {_share(result['recall'])}), {result['false_accounts']} others alerted (precision "
        f"{_share(result['precision'])})\n",
        highlight=False,
    )
    table = plain_table("", ["fraud pattern"], ["accounts", "caught"], ["half of them by", "mostly for"])
    for name, row in result["patterns"].items():
        soon = _soon(calendar, row["median_delay_time"], row["median_delay_transactions"])
        table.add_row(escape(name), str(row["accounts"]), str(row["caught"]), soon, _why(row["why"]))
    if result["why_false"]:
        table.add_row("no fraud", "", str(result["false_accounts"]), "", _why(result["why_false"]))
    console.print(table)


def _soon(calendar: Calendar, time: float | None, transactions: float | None) -> str:
    if time is None or transactions is None:
        return "-"
    if transactions <= 0:
        return "the first"
    number = int(transactions) + 1
    return (
        f"the {number}{_ENDINGS.get(number % 10 * (number % 100 not in (11, 12, 13)), 'th')}, {calendar.length(time)}"
    )


_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


def _why(counts: dict[str, int], most: int = _SHOWN) -> str:
    return escape(", ".join(f"{why_words(why)} {count:,}" for why, count in list(counts.items())[:most])) or "-"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def alert_printer(console: Console, every: bool, calendar: Calendar) -> Callable[[Any], None]:
    """Prints alerts as they come: the first few, or every one."""
    shown = 0

    def show(alert: Any) -> None:
        nonlocal shown
        shown += 1
        if every or shown <= FIRST_ALERTS:
            show_alert(console, alert, calendar)
        elif shown == FIRST_ALERTS + 1:
            console.print("further alerts are counted, not printed (--all prints them)")

    return show


def progress_of(show: Advance, source: Any) -> Callable[[Any, Any], None]:
    """Tells a progress bar how far a replay is."""
    alerts = 0

    def progress(clock: Any, batch_output: Any) -> None:
        nonlocal alerts
        alerts += len(batch_output.alerts)
        rate = clock.events / clock.seconds if clock.seconds else 0.0
        note = f"{clock.events:,} records, {rate:,.0f}/s, {alerts:,} alerts"
        show(round(1000 * source.share()), 1000, note)

    return progress
