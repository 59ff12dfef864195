"""What commands write and how they end: consoles, tables, progress bars, JSON, exported rows, signals, exit codes.

Exported rows are JSON lines, CSV or Parquet, for other programs to read.
"""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import check_writable, write_whole

JsonOption = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON to FILE; '-' is standard output."),
]


class Advance(Protocol):
    """Reports to a progress bar how far the work is, with an optional note."""

    def __call__(self, done: int, total: int, note: str | None = None) -> None:
        """Without a note, the bar says how many of how many."""


def check_target(target: str | None) -> None:
    """Refuse a path for the result that cannot be written, before hours of work and not after."""
    if target is not None and target != "-":
        if not target:
            raise StreamCcsdError("cannot write to '': name a file for the result, or - for standard output")
        check_writable(Path(target))


def emit(result: dict[str, Any], target: str | None, show: Callable[[Console, dict[str, Any]], None]) -> None:
    """Show the result to a person, or write it as JSON: to a file, or alone on standard output."""
    if target == "-":
        typer.echo(json.dumps(result, indent=2))
        return
    show(make_console(), result)
    if target is not None:
        write_whole(Path(target), json.dumps(result, indent=2) + "\n")


def make_console(stderr: bool = False) -> Console:
    """A console without emoji codes: ``:bomb:`` in a name is a name, not a picture. All consoles are made here.

    Texts from outside still have to be escaped, because ``[bold]`` is markup.
    """
    return Console(stderr=stderr, emoji=False)


def plain_table(title: str, texts: Iterable[str] = (), numbers: Iterable[str] = (), last: Iterable[str] = ()) -> Table:
    """A table without borders: it fits 80 columns and survives being pasted into a message.

    Columns of numbers, between the texts before and the ``last`` texts behind them, are never cut or broken. Where
    space is short, texts are folded.
    """
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in texts:
        table.add_column(column, overflow="fold")
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    for column in last:
        table.add_column(column, overflow="fold")
    return table


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[Callable[[str], Advance]]:
    """A progress bar, silent when not on a terminal; yields a function that makes progress callbacks.

    On standard error, unless something else is printed meanwhile: then it must share that console.
    """
    console = console or make_console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    # Steps may take minutes: the time left is estimated from the last hour, not from the last half minute.
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, speed_estimate_period=3600
    ) as bar:

        def start(description: str) -> Advance:
            task = bar.add_task(description, total=None, visible=False, note="")

            def report(done: int, total: int, note: str | None = None) -> None:
                text = f"{done:,}/{total:,}" if note is None else note
                bar.update(task, completed=done, total=total, visible=done < total, note=text)

            return report

        yield start


DEAD_LETTERS, STOPPED = 3, 130


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C or SIGTERM came; a second one ends the process at once."""
    asked = False

    def note(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


Rows = list[dict[str, Any]]
STYLES = ("table", "json", "csv", "parquet")

# Characters with which a formula begins in a spreadsheet.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_LINE_END = "\r\n"


def check_style(style: str, out: Path | None) -> None:
    """Refuse a format that is none, and a place that cannot be written, before anything is done."""
    if style not in STYLES:
        raise typer.BadParameter(f"expected table, json, csv or parquet, got {style!r}", param_hint="--format")
    if style == "parquet" and out is None:
        raise StreamCcsdError("parquet is not for a terminal: name a file with --out")
    if out is not None:
        check_writable(out)


def export(
    rows: Rows, style: str, out: Path | None, columns: Sequence[str], kinds: Mapping[str, Collection[str]]
) -> None:
    """Write rows to standard output or to a file; columns of a table are separated by tabs.

    ``kinds`` names the columns that are not text: those of ``int64``, ``float64`` and ``bool_``.
    """
    if out is None:
        typer.echo(text_of(rows, style, columns), nl=False)
    else:
        write_whole(out, _parquet(rows, columns, kinds) if style == "parquet" else text_of(rows, style, columns))


def text_of(rows: Rows, style: str, columns: Sequence[str]) -> str:
    """Rows as text: a line of JSON each, CSV, or a table with columns separated by tabs."""
    if style == "json":
        return "".join(json.dumps(row) + "\n" for row in rows)
    lines: list[str] = []
    # Lines end with both characters, so that the writer quotes texts with either: one alone begins a new row, too.
    sink = SimpleNamespace(write=lines.append)
    writer = csv.writer(sink, delimiter="\t" if style == "table" else ",", lineterminator=_LINE_END)
    writer.writerow([*map(_defused, columns)])
    writer.writerows([_defused(row[name]) for name in columns] for row in rows)
    return "".join(line.removesuffix(_LINE_END) + "\n" for line in lines)


def _defused(value: Any) -> Any:
    """A text that a spreadsheet shows and does not evaluate; numbers stay as they are."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _parquet(rows: Rows, columns: Sequence[str], kinds: Mapping[str, Collection[str]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {name: getattr(pa, kind)() for kind, names in kinds.items() for name in names}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in (*columns, "json")])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([row | {"json": json.dumps(row)} for row in rows], schema), sink)
    return bytes(sink.getvalue())
