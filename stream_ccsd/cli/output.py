"""What all commands share: machine-readable results, and progress that keeps out of the way.

How long commands are asked to stop, and the exit codes that say how they ended.

Rows for other programs: lines of JSON, CSV, Parquet.
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
    """Tells a bar how far the work is, and what else there is to say."""

    def __call__(self, done: int, total: int, note: str | None = None) -> None:
        """Without a note, the bar says how many of how many."""


def check_target(target: str | None) -> None:
    """Refuse a place for the result that cannot be written before hours of work, not after."""
    if target is not None and target != "-":
        if not target:
            raise StreamCcsdError("cannot write to '': name a file for the result, or - for standard output")
        check_writable(Path(target))


def emit(result: dict[str, Any], target: str | None, show: Callable[[Console, dict[str, Any]], None]) -> None:
    """Show the result to a person, or write it for a machine: to a file, or alone on standard output."""
    if target == "-":
        typer.echo(json.dumps(result, indent=2))
        return
    show(make_console(), result)
    if target is not None:
        write_whole(Path(target), json.dumps(result, indent=2) + "\n")


def make_console(stderr: bool = False) -> Console:
    """The one way to make a console: ``:bomb:`` in somebody's name is a name, not a picture.

    Texts from outside are still to be escaped, since ``[bold]`` is markup.
    """
    return Console(stderr=stderr, emoji=False)


def plain_table(title: str, texts: Iterable[str] = (), numbers: Iterable[str] = (), last: Iterable[str] = ()) -> Table:
    """A table without borders: it fits 80 columns and survives being pasted into a message.

    Columns of numbers, between the texts before and the ``last`` texts behind them, are never cut or broken: where
    there is too little room, texts are folded.
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
    """A bar, silent when not on a terminal; gives a maker of progress callbacks.

    On standard error, unless something else is printed meanwhile: then it must share that console.
    """
    console = console or make_console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    # Steps may take minutes: the time left is told from the last hour's, not from the last half minute's.
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
    """Whether Ctrl-C or a wish to terminate came; a second one ends the process at once."""
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

# What a spreadsheet takes for the beginning of a formula.
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
    """Write rows to standard output or to a file; a table there has its columns apart by tabs.

    ``kinds`` names the columns that are no texts: those of ``int64``, ``float64`` and ``bool_``.
    """
    if out is None:
        typer.echo(text_of(rows, style, columns), nl=False)
    else:
        write_whole(out, _parquet(rows, columns, kinds) if style == "parquet" else text_of(rows, style, columns))


def text_of(rows: Rows, style: str, columns: Sequence[str]) -> str:
    """Rows as a text: a line of JSON each, CSV, or a table with its columns apart by tabs."""
    if style == "json":
        return "".join(json.dumps(row) + "\n" for row in rows)
    lines: list[str] = []
    # A line ends with both characters for the writer, which quotes texts with either: one alone begins a new row, too.
    sink = SimpleNamespace(write=lines.append)
    writer = csv.writer(sink, delimiter="\t" if style == "table" else ",", lineterminator=_LINE_END)
    writer.writerow([*map(_defused, columns)])
    writer.writerows([_defused(row[name]) for name in columns] for row in rows)
    return "".join(line.removesuffix(_LINE_END) + "\n" for line in lines)


def _defused(value: Any) -> Any:
    """A text that a spreadsheet shows and does not run; numbers stay as they are."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _parquet(rows: Rows, columns: Sequence[str], kinds: Mapping[str, Collection[str]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {name: getattr(pa, kind)() for kind, names in kinds.items() for name in names}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in (*columns, "json")])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([row | {"json": json.dumps(row)} for row in rows], schema), sink)
    return bytes(sink.getvalue())
