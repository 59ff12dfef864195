"""What all commands share: machine-readable results, and progress that keeps out of the way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.writing import check_writable, write_whole

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
