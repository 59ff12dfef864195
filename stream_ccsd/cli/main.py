"""The ``stream-ccsd`` command: finds its subcommands and runs one.

Packages bring subcommands of their own, as entry points of the group ``stream_ccsd.commands``.
"""

from __future__ import annotations

import io
import signal
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

import stream_ccsd
from stream_ccsd.cli.command import SectionedCommand
from stream_ccsd.errors import StreamCcsdError

GROUP = "stream_ccsd.commands"
_PROJECT = "stream-ccsd"
# In the order in which people need them; commands of other packages follow by name.
_ORDER = (
    *("replay", "fit", "simulate", "alerts", "explain", "verdict", "verdicts", "budget", "audit", "watch"),
    *("compare", "models", "learn", "worker", "evaluate", "bench"),
)


def declared_commands() -> list[EntryPoint]:
    """Where each command is, in the order of the help.

    In a source tree, what its pyproject.toml says counts: what was noted at its installation may be older.
    """
    points = [*entry_points(group=GROUP)]
    ours = _source_tree(Path(__file__).parents[2] / "pyproject.toml")
    if ours is not None:
        points = [point for point in points if point.dist is None or point.dist.name != _PROJECT] + ours
    ranks = {name: rank for rank, name in enumerate(_ORDER)}
    return sorted(points, key=lambda point: (ranks.get(point.name, len(ranks)), point.name))


def add_command(app: typer.Typer, point: EntryPoint) -> None:
    """Load a command and add it; one that cannot be loaded says so when it is called, and the others are there."""
    try:
        command: Any = point.load()
        if not callable(command):
            raise TypeError(f"{point.value} is no function and no Typer")
    except Exception as error:
        app.command(
            point.name,
            help=f"Cannot be loaded ({type(error).__name__}).",
            context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        )(_broken(point, error))
        return
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=point.name)
    else:
        app.command(point.name, cls=SectionedCommand)(command)


def _source_tree(file: Path) -> list[EntryPoint] | None:
    """The commands that a source tree declares; None where there is none, as once it is installed."""
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        if project["name"] != _PROJECT:
            return None
        return [EntryPoint(name, value, GROUP) for name, value in project["entry-points"][GROUP].items()]
    except (OSError, ValueError, KeyError):
        return None


def _broken(point: EntryPoint, error: Exception) -> Callable[[], None]:
    def command() -> None:
        raise StreamCcsdError(
            f"the command {point.name!r} cannot be loaded from {point.value} ({type(error).__name__}: {error}): "
            "install the package that brings it anew"
        ) from error

    return command


_DEBUG = "--debug"

app = typer.Typer(
    help="Streaming fraud detection with the conditional Cauchy-Schwarz divergence.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help texts are texts: brackets in them are no markup
)
for _command in declared_commands():
    add_command(app, _command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(stream_ccsd.__version__)
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
    _debug: Annotated[
        bool, typer.Option(_DEBUG, help="Show the details (a traceback) of an error; goes with every command.")
    ] = False,
) -> None:
    """Streaming fraud detection with the conditional Cauchy-Schwarz divergence."""


def run() -> None:
    """Entry point.

    Exit code 0: success; 1: an error that was explained; 2: wrong usage; 3: done, with dead letters; 70: a fault of
    this software; 128 and a signal's number: ended by it.
    """
    debug = _DEBUG in sys.argv
    sys.argv[1:] = [argument for argument in sys.argv[1:] if argument != _DEBUG]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a console may be unable to show a name
    signal.signal(signal.SIGTERM, _end)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app()
    except Exception as error:
        if debug:
            raise
        said, code = _explained(error)
        typer.echo(f"stream-ccsd: {said}", err=True)
        sys.exit(code)


def _end(number: int, frame: Any) -> None:
    """Asked to terminate: leave through every ``finally``, so that nothing half-written stays."""
    sys.exit(128 + number)


def _explained(error: Exception) -> tuple[str, int]:
    """The message for an error, and the exit code."""
    if isinstance(error, StreamCcsdError):
        return str(error), 1
    if isinstance(error, MemoryError):
        return f"there is not enough memory for this ({error or 'no details'}): try fewer or smaller things at once", 1
    if isinstance(error, OSError):
        return f"the system refused something: {error}. Look at that place, then try again", 1
    kind = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return (
        f"this should not have happened, and is a fault of stream-ccsd ({kind}). What was recorded is kept. The same "
        f"command with {_DEBUG} shows the details: please report them",
        70,
    )
