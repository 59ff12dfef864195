"""``stream-ccsd models``: which versions of a model there are, which is in use, and choosing another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from stream_ccsd.cli.output import JsonOption, check_target, emit, plain_table
from stream_ccsd.errors import StreamCcsdError

app = typer.Typer(
    help="List the versions of a model in a folder, and choose which one is used.",
    invoke_without_command=True,
    rich_markup_mode=None,
)

_FOLDER = typer.Option("--in", metavar="FOLDER", help="Folder of model versions, each a model directory.")
FolderOption = Annotated[Path, _FOLDER]
VersionArgument = Annotated[str, typer.Argument(metavar="VERSION", help="Its name, its number or the model's version.")]
# Facts that say what a model was made from, where only a few fit.
_MADE_FROM = ("accounts", "transactions")


@app.callback()
def models(
    context: typer.Context,
    folder: Annotated[Path | None, _FOLDER] = None,
    json_target: JsonOption = None,
) -> None:
    """List the versions of a model in a folder with what each was made from and measured at; choose which one is used.

    The newest is used, unless one is pinned: then what a learner adds waits until it is unpinned. Workers and replays
    that are given the folder as their model follow.
    """
    if context.invoked_subcommand is not None:
        return
    if folder is None:
        raise StreamCcsdError("name the folder with the model versions: stream-ccsd models --in FOLDER")
    check_target(json_target)
    emit(_listed(folder), json_target, _show)


@app.command()
def add(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Directory of a model, as 'fit' wrote it.")],
    folder: FolderOption,
    json_target: JsonOption = None,
) -> None:
    """Add a model as the newest version; one that is there already stays as it is."""
    from stream_ccsd.model.model import Model
    from stream_ccsd.model.registry import Registry

    check_target(json_target)
    _done(folder, "added", Registry(folder).add(Model.load(model)), json_target)


@app.command()
def pin(version: VersionArgument, folder: FolderOption, json_target: JsonOption = None) -> None:
    """Use this version until it is unpinned, whatever is added."""
    from stream_ccsd.model.registry import Registry

    check_target(json_target)
    _done(folder, "pinned", Registry(_known(folder)).pin(version), json_target)


@app.command()
def unpin(folder: FolderOption, json_target: JsonOption = None) -> None:
    """Use the newest version again, and those that will be added."""
    from stream_ccsd.model.registry import Registry

    check_target(json_target)
    _done(folder, "unpinned", Registry(_known(folder)).unpin(), json_target)


@app.command()
def rollback(folder: FolderOption, json_target: JsonOption = None) -> None:
    """Go back to the version before the one in use, and pin it."""
    from stream_ccsd.model.registry import Registry

    check_target(json_target)
    _done(folder, "rolled back", Registry(_known(folder)).rollback(), json_target)


def _known(folder: Path) -> Path:
    """An existing folder, because a mistyped name must not make one."""
    from stream_ccsd.model.registry import is_registry

    if not is_registry(folder):
        raise StreamCcsdError(
            f"there are no model versions in {folder}: add one with 'stream-ccsd models add MODEL --in {folder}'"
        )
    return folder


def _listed(folder: Path) -> dict[str, Any]:
    from stream_ccsd.model.registry import Registry

    versions = Registry(_known(folder))
    choice = versions.choice()
    return {
        "folder": str(folder),
        "current": versions.current(),
        "pinned": choice.pinned,
        "versions": versions.describe(),
        "history": list(choice.history),
    }


def _done(folder: Path, what: str, name: str | None, json_target: str | None) -> None:
    from stream_ccsd.model.registry import Registry

    current = Registry(folder).current()
    emit(
        {"folder": str(folder), "done": what, "version": name, "current": current},
        json_target,
        lambda console, result: console.print(
            f"{what}: {escape(str(name))}; in use: {escape(str(current))}", highlight=False, soft_wrap=True
        ),
    )


def _show(console: Console, result: dict[str, Any]) -> None:
    table = plain_table(
        f"{len(result['versions']):,} model versions in {escape(result['folder'])}",
        ["version", ""],
        _MADE_FROM,
        ["measured, lessons"],
    )
    for row in result["versions"]:
        mark = "pinned" if row["pinned"] else "current" if row["current"] else ""
        if "problem" in row:
            table.add_row(escape(row["name"]), mark, "-", "-", escape(row["problem"]))
            continue
        made = [row["made_from"].get(name) for name in _MADE_FROM]
        said = "; ".join(_said(row[name]) for name in ("measured", "lessons") if row[name])
        table.add_row(escape(row["name"]), mark, *("-" if n is None else f"{n:,}" for n in made), escape(said))
    console.print(table)
    for entry in result["history"][-3:]:
        what = f"{entry.get('when')}  {entry.get('who')}: {entry.get('what')} {entry.get('name') or ''}"
        console.print(escape(what.rstrip()), highlight=False, soft_wrap=True)


def _said(facts: Any) -> str:
    """Plain facts by name; lists and nested values are only in --json."""
    if not isinstance(facts, dict):
        return str(facts)
    plain = {name: value for name, value in facts.items() if isinstance(value, str | int | float | bool)}
    return ", ".join(
        f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in plain.items()
    )
