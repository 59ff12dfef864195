"""Which commands there are: packages bring their own, as entry points of the group ``stream_ccsd.commands``."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import typer

from stream_ccsd.cli.command import SectionedCommand
from stream_ccsd.errors import StreamCcsdError

GROUP = "stream_ccsd.commands"
_PROJECT = "stream-ccsd"
# In the order in which people need them; what other packages bring follows by name.
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
