"""Declared fields and the mapping of columns, which several packages' commands take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

ColumnsOption = Annotated[
    str,
    typer.Option(
        metavar="MAP",
        help="Column mapping like account=user,time=when,category=none,id=none; by default guessed. Declared fields "
        "are renamed in the same way.",
    ),
]
FieldOption = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        metavar="NAME:KIND",
        help="Look at this column, too: country:category, distance:number. Again for each further one.",
    ),
]

_OWN = ("account", "time", "amount", "category", "merchant", "id")


def declared_fields(given: Sequence[str] | None) -> Any:
    """The fields that ``--field`` declares, in the order of their names."""
    from stream_ccsd.fields import FieldError, declared

    try:
        return declared(given or ())
    except FieldError as error:
        raise typer.BadParameter(str(error), param_hint="--field") from error


def columns_schema(columns: str, fields: Sequence[Any] = (), others: Sequence[Any] = ()) -> Any:
    """The schema that ``--columns`` describes, with declared fields; None, or a guess with those fields, to guess.

    ``others`` are fields that may be renamed there, too, and are not read by this schema.
    """
    from stream_ccsd.transaction import Guess, Schema

    try:
        pairs = dict(part.split("=", 1) for part in columns.split(",")) if columns else {}
    except ValueError as error:
        raise typer.BadParameter(f"expected field=column pairs, got {columns!r}", param_hint="--columns") from error
    names = [field.name for field in fields]
    others = [field.name for field in others if field.name not in names]
    unknown = set(pairs) - {*_OWN, *names, *others}
    if unknown:
        known = ", ".join(dict.fromkeys((*_OWN, *names, *others)))
        raise typer.BadParameter(
            f"unknown field {', '.join(sorted(unknown))}: there are {known}", param_hint="--columns"
        )
    renamed = {name: pairs.pop(name) for name in names if name in pairs}
    pairs = {name: column for name, column in pairs.items() if name not in others}
    if not pairs:
        return Guess(tuple(fields), renamed) if fields else None
    mapped: dict[str, Any] = {k: None if v == "none" and k in ("category", "id") else v for k, v in pairs.items()}
    return Schema(**mapped, fields=tuple(fields), renamed=renamed)
