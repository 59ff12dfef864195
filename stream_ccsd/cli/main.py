"""The ``stream-ccsd`` command."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from stream_ccsd.cli import bench, evaluate
from stream_ccsd.cli.alerts import alerts, explain
from stream_ccsd.cli.fit import fit, simulate
from stream_ccsd.cli.replay import replay
from stream_ccsd.cli.worker import worker
from stream_ccsd.errors import StreamCcsdError

app = typer.Typer(
    help="Streaming fraud detection with the conditional Cauchy-Schwarz divergence.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help texts are texts: brackets in them are no markup
)
app.command()(replay)
app.command()(fit)
app.command()(simulate)
app.command()(alerts)
app.command()(explain)
app.command()(worker)
app.add_typer(evaluate.app, name="evaluate")
app.add_typer(bench.app, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("stream-ccsd"))
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Streaming fraud detection with the conditional Cauchy-Schwarz divergence."""


def run() -> None:
    """Entry point: exit code 0 for success, 1 for an error that was explained, 2 for wrong usage."""
    try:
        app()
    except StreamCcsdError as error:
        typer.echo(f"stream-ccsd: {error}", err=True)
        sys.exit(1)
