"""``stream-ccsd alerts`` and ``stream-ccsd explain``: what a replay found, from its state file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape

from replay.commands.kafka import KafkaConfigOption, follow
from replay.commands.options import OptionalStateOption, StateOption, check_account, number_or_date, stream_time
from stream_ccsd.calendar import Calendar, alert_moment
from stream_ccsd.cli.command import with_options
from stream_ccsd.cli.output import JsonOption, Rows, check_style, check_target, emit, export, make_console, plain_table
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import check_writable
from stream_ccsd.stores import Ranking

_COLUMNS = (
    *(
        "position",
        "id",
        "transaction",
        "account",
        "time",
        "when",
        "amount",
        "category",
        "merchant",
        "score",
        "tail_rate",
    ),
    *("expected_loss", "raised_by", "reason", "headline"),
)
_KINDS = {
    "int64": ("position",),
    "float64": ("time", "amount", "score", "tail_rate", "expected_loss"),
    "bool_": ("disputed",),
}
# Beside them where there are verdicts on alerts of this replay.
_JUDGED = ("verdict", "disputed")


@dataclass(frozen=True)
class AlertsOptions:
    """Options of ``stream-ccsd alerts``."""

    state: OptionalStateOption = None
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="URL", help="Follow workers' alerts live: kafka://host:port[/topic]."),
    ] = None
    account: Annotated[str | None, typer.Option(help="Only of this account.")] = None
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only from this time of the stream on: its number, or a date (ISO 8601)."),
    ] = None
    by: Annotated[
        str,
        typer.Option(
            metavar="ORDER",
            help="time, score (the rarest first) or loss (evidence and the money at stake; the highest first).",
        ),
    ] = "time"
    style: Annotated[
        str,
        typer.Option(
            "--format",
            help="table, json (a line each), csv or parquet. In csv, texts that a spreadsheet would run as a formula "
            "begin with an apostrophe; json and parquet are exact.",
        ),
    ] = "table"
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file; parquet needs one.")] = None
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="At most so many: the newest of a file, the highest with --by, the next of a topic."),
    ] = None
    beginning: Annotated[
        bool, typer.Option("--beginning", help="With --from: all alerts that the topic holds, not only new ones.")
    ] = False
    kafka_config: KafkaConfigOption = None


@with_options
def alerts(options: AlertsOptions) -> None:
    """List and export alerts of a replay, also while it runs; or follow those of Kafka workers as they come."""
    if (options.state is None) == (options.source is None):
        raise StreamCcsdError("name one place: --state FILE of a replay, or --from kafka://host:port of workers")
    check_account(options.account)
    if options.by not in ("time", "score", "loss"):
        raise typer.BadParameter(f"expected time, score or loss, got {options.by!r}", param_hint="--by")
    if options.state is None:
        _follow(options)
    else:
        _list(options.state, options)


def _follow(options: AlertsOptions) -> None:
    if options.by != "time":
        raise StreamCcsdError("--by ranks alerts of a file; those of a topic come as they come")
    if options.out is not None:
        raise StreamCcsdError("--out is for alerts of a file; those of a topic go to standard output")
    late_enough = _since(options.since)

    def wanted(alert: dict[str, Any]) -> bool:
        return options.account in (None, alert["account"]) and late_enough(alert)

    assert options.source is not None
    follow(options.source, options.kafka_config, options.beginning, options.limit, wanted, options.style)


def _list(state: Path, options: AlertsOptions) -> None:
    style, out = options.style, options.out
    check_style(style, out)
    rows, calendar, is_judged = _stored(state, options)
    if style == "table" and out is None:
        _show_table(rows, calendar, is_judged)
    else:
        export(rows, style, out, _COLUMNS + _JUDGED if is_judged else _COLUMNS, _KINDS)


def _stored(state: Path, options: AlertsOptions) -> tuple[Rows, Calendar, bool]:
    """Alerts of a state file, what its times mean, and whether there are verdicts."""
    from replay.cases.judgement import reached_by, with_verdicts
    from replay.cases.verdicts import open_beside
    from replay.state.file import StateFile

    with closing(StateFile.open(state, read_only=True)) as file:
        calendar, reached = Calendar.from_dict(file.facts["calendar"]), reached_by(file)
        earliest = stream_time(options.since, "--since", lambda: calendar)
        chosen: dict[str, Any] = {"account": options.account, "since": earliest}
        if options.by != "time":
            alerts = file.records.highest_alerts(options.limit, by=cast(Ranking, options.by), **chosen)
        elif options.limit is None:
            alerts = list(file.records.alerts(**chosen))
        else:
            alerts = file.records.newest_alerts(options.limit, **chosen)[::-1]
    with open_beside(state) or nullcontext() as audit_log:
        return with_verdicts(alerts, audit_log, reached), calendar, audit_log is not None


def _since(text: str | None) -> Callable[[dict[str, Any]], bool]:
    """Whether an alert off a topic is late enough; a date is compared with the alert's own, which it may not have."""
    since = number_or_date(text, "--since")

    def late_enough(alert: dict[str, Any]) -> bool:
        if isinstance(since, datetime):
            moment = alert_moment(alert)
            return moment is not None and moment >= since
        return since is None or alert["time"] >= since

    return late_enough


def _show_table(rows: Rows, calendar: Calendar, is_judged: bool) -> None:
    numbers = ["time", "score", "loss", "amount", *(["verdict"] if is_judged else [])]
    table = plain_table(f"{len(rows):,} alerts", numbers=numbers, last=["@position, account, merchant, reason"])
    for row in rows:
        about = f"@{row['position']} {row['account']} at {row['merchant']}: {row['reason']}"
        nats = f"{row['score']:.1f}", f"{row['expected_loss']:.1f}"
        found = [_found(row) or "-"] if is_judged else []
        table.add_row(calendar.show(row["time"]), *nats, f"{row['amount']:,.2f}", *found, escape(about))
    make_console().print(table)


def _found(alert: dict[str, Any]) -> str | None:
    """What people found of an alert; None where nobody said anything."""
    return "disputed" if alert.get("disputed") else alert.get("verdict")


def explain(
    state: StateOption,
    account: Annotated[str, typer.Option(help="Which account.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to draw it (.png, .svg, .pdf); by default ACCOUNT.png here."),
    ] = None,
    json_target: JsonOption = None,
) -> None:
    """Explain one account: its timeline, its scores, and what is behind its alerts, as a picture and as text."""
    from replay.cases.judgement import reached_by, with_verdicts
    from replay.cases.verdicts import open_beside
    from replay.explain import Explanation, picture_kind, picture_name
    from replay.state.file import StateFile

    check_target(json_target)
    path = Path(picture_name(account)) if out is None else out
    picture_kind(path)
    check_writable(path)
    check_account(account)
    with closing(StateFile.open(state, read_only=True)) as file:
        explanation, reached = Explanation.of(file.records, account), reached_by(file)
    explained = explanation.to_dict()
    with open_beside(state) or nullcontext() as audit_log:
        explained["alerts"] = with_verdicts(explained["alerts"], audit_log, reached)
    emit(explained | {"picture": str(explanation.draw(path))}, json_target, _show_explanation)


def _show_explanation(console: Console, explained: dict[str, Any]) -> None:
    from stream_ccsd.scores import recorded_scores

    rows, calendar = explained["transactions"], Calendar.from_dict(explained["calendar"])
    console.print(
        f"[bold]account {escape(explained['account'])}[/bold]: {len(rows):,} transactions from "
        f"{calendar.show(rows[0]['time'])} to {calendar.show(rows[-1]['time'])}, {_alerts(explained)}; "
        f"highest score {rows[-1]['maximum']:.1f} nats, threshold {explained['threshold']:.1f}",
        highlight=False,
    )
    for alert in explained["alerts"]:
        console.print(f"\n[bold]{calendar.show(alert['time'])}[/bold]  {escape(alert['headline'])}", highlight=False)
        if found := _found(alert):
            console.print(f"  verdict: {found}", highlight=False)
        for reason in alert["reasons"]:
            nats = round(reason["nats"], 2) + 0.0  # never "-0.00"
            console.print(f"  {nats:6.2f} nats  {escape(reason['text'])}", highlight=False)
        near = ", ".join(f"{_place(n, 'in ')} {n['share']:.0%}" for n in alert["neighbours"])
        if near:
            console.print(f"  compared with normal windows that end {escape(near)}", highlight=False)
    names = recorded_scores(rows[0])
    numbers = ["time", "amount", "score", *names]
    table = plain_table("\nits ten highest scores, * where it was alerted", numbers=numbers, last=["where"])
    for row in sorted(sorted(rows, key=lambda r: -r["score"])[:10], key=lambda r: r["position"]):
        score, *others = (f"{row[n]:.1f}" if row[n] is not None else "-" for n in ("score", *names))
        mark = "*" if row["alert"] else " "
        amount = f"{row['amount']:,.2f}"
        table.add_row(calendar.show(row["time"]), amount, score + mark, *others, escape(_place(row)))
    console.print(table)
    console.print(f"picture: {escape(explained['picture'])}", soft_wrap=True, highlight=False)


def _alerts(explained: dict[str, Any]) -> str:
    count = len(explained["alerts"])
    return f"{count:,} alert{'' if count == 1 else 's'}"


def _place(row: dict[str, Any], before: str = "") -> str:
    """Category and merchant; a stream need not have categories."""
    return f"{before}{row['category']} at {row['merchant']}" if row["category"] else f"at {row['merchant']}"
