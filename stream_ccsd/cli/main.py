"""The ``stream-ccsd`` command."""

from __future__ import annotations

import io
import signal
import sys
from typing import Annotated, Any

import typer

from stream_ccsd import __version__
from stream_ccsd.cli.discovery import add_command, declared_commands
from stream_ccsd.errors import StreamCcsdError

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
        typer.echo(__version__)
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
    """What to say of an error, and the exit code."""
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
