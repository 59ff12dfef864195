"""``stream-ccsd alerts`` and ``stream-ccsd explain``: what a replay found, from its state file."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from stream_ccsd.cli.kafka import KafkaConfigOption, follow
from stream_ccsd.cli.options import OptionalStateOption, StateOption
from stream_ccsd.cli.output import JsonOption, check_target, emit, plain_table
from stream_ccsd.errors import StreamCcsdError

_COLUMNS = ("position", "id", "account", "time", "score", "tail_rate", "headline")


def alerts(
    state: OptionalStateOption = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="URL", help="Follow workers' alerts live: kafka://host:port[/topic]."),
    ] = None,
    account: Annotated[str | None, typer.Option(help="Only of this account.")] = None,
    since: Annotated[float | None, typer.Option(help="Only from this time of the stream on.")] = None,
    style: Annotated[str, typer.Option("--format", help="table, json (a line each), csv or parquet.")] = "table",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file; parquet needs one.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many: the newest of a file, the next of a topic.")
    ] = None,
    beginning: Annotated[
        bool, typer.Option("--beginning", help="With --from: all alerts that the topic holds, not only new ones.")
    ] = False,
    kafka_config: KafkaConfigOption = None,
) -> None:
    """List and export alerts of a replay, also while it runs; or follow those of Kafka workers as they come."""
    if (state is None) == (source is None):
        raise StreamCcsdError("name one place: --state FILE of a replay, or --from kafka://host:port of workers")
    if source is not None:
        if out is not None:
            raise StreamCcsdError("--out is for alerts of a file; those of a topic go to standard output")

        def wanted(alert: dict[str, Any]) -> bool:
            return (account is None or alert["account"] == account) and (since is None or alert["time"] >= since)

        follow(source, kafka_config, beginning, limit, wanted, style)
        return
    from replay.state import StateFile

    if style not in ("table", "json", "csv", "parquet"):
        raise typer.BadParameter(f"expected table, json, csv or parquet, got {style!r}", param_hint="--format")
    if style == "parquet" and out is None:
        raise StreamCcsdError("parquet is not for a terminal: name a file with --out")
    if out is not None:
        check_target(str(out))
    assert state is not None
    opened = StateFile.open(state, read_only=True)
    try:
        rows = opened.query(
            f"SELECT {', '.join(_COLUMNS)}, json FROM alerts WHERE (:account IS NULL OR account = :account) "
            "AND (:since IS NULL OR time >= :since) ORDER BY position DESC LIMIT :limit",
            {"account": account, "since": since, "limit": -1 if limit is None else limit},
        )[::-1]
    finally:
        opened.close()
    if style == "table" and out is None:
        _show_table(rows)
        return
    if style == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = dict(zip((*_COLUMNS, "json"), zip(*rows, strict=True), strict=True)) if rows else {}
        pq.write_table(pa.table({name: list(columns.get(name, ())) for name in (*_COLUMNS, "json")}), out)
        return
    text = _text(rows, style)
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")


def _text(rows: list[tuple[Any, ...]], style: str) -> str:
    if style == "json":
        return "".join(row[-1] + "\n" for row in rows)
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter="\t" if style == "table" else ",", lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows(row[:-1] for row in rows)
    return buffer.getvalue()


def _show_table(rows: list[tuple[Any, ...]]) -> None:
    console = Console()
    table = plain_table(f"{len(rows):,} alerts")
    for column in ("time", "score", "alert"):
        table.add_column(column, justify="left" if column == "alert" else "right")
    for row in rows:
        table.add_row(f"{row[3]:.2f}", f"{row[4]:.1f}", escape(row[6]))
    console.print(table)


def explain(
    state: StateOption,
    account: Annotated[str, typer.Option(help="Which account.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to draw it (.png, .svg, .pdf); by default ACCOUNT.png.")
    ] = None,
    json_target: JsonOption = None,
) -> None:
    """Explain one account: its timeline, its scores, and what is behind its alerts, as a picture and as text."""
    from replay.explain import Explanation
    from replay.state import StateFile

    check_target(json_target)
    opened = StateFile.open(state, read_only=True)
    try:
        found = Explanation.of(opened, account)
    finally:
        opened.close()
    path = found.draw(out or Path(f"{''.join(c if c.isalnum() else '_' for c in account)}.png"))
    emit(found.to_dict() | {"picture": str(path)}, json_target, _show_explanation)


def _show_explanation(console: Console, found: dict[str, Any]) -> None:
    rows = found["transactions"]
    console.print(
        f"[bold]account {escape(found['account'])}[/bold]: {len(rows):,} transactions from {rows[0]['time']:g} to "
        f"{rows[-1]['time']:g}, {len(found['alerts'])} alerts; highest score {rows[-1]['maximum']:.1f} nats, "
        f"threshold {found['threshold']:.1f}"
    )
    for alert in found["alerts"]:
        console.print(f"\n[bold]{alert['time']:g}[/bold]  {escape(alert['headline'])}", highlight=False)
        for reason in alert["reasons"]:
            console.print(f"  {reason['nats']:6.2f} nats  {escape(reason['text'])}", highlight=False)
        near = ", ".join(f"{n['category']} at {n['merchant']} {n['share']:.0%}" for n in alert["neighbours"])
        if near:
            console.print(f"  compared with normal windows that end in {escape(near)}", highlight=False)
    table = plain_table("\nits ten highest scores")
    for column in ("time", "amount", "category", "merchant", "score", "outcome", "habit", "divergence", ""):
        table.add_column(column, justify="left" if column in ("category", "merchant", "") else "right")
    for row in sorted(sorted(rows, key=lambda r: -r["score"])[:10], key=lambda r: r["position"]):
        values = [f"{row[n]:.1f}" if row[n] is not None else "-" for n in ("score", "outcome", "habit", "divergence")]
        mark = "alert" if row["alert"] else ""
        where = escape(row["category"]), escape(row["merchant"])
        table.add_row(f"{row['time']:g}", f"{row['amount']:,.2f}", *where, *values, mark)
    console.print(table)
    console.print(f"picture: {found['picture']}")
