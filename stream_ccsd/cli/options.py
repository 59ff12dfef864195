"""The mapping of columns, which several packages' commands take."""

from __future__ import annotations

from typing import Annotated, Any

import typer

ColumnsOption = Annotated[
    str,
    typer.Option(
        metavar="MAP", help="Column mapping like account=user,time=when,category=none,id=none; by default guessed."
    ),
]


def columns_schema(columns: str) -> Any:
    """The schema that ``--columns`` describes; None to guess."""
    from stream_ccsd.transaction import Schema

    if not columns:
        return None
    try:
        pairs = dict(part.split("=", 1) for part in columns.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"expected field=column pairs, got {columns!r}", param_hint="--columns") from error
    unknown = set(pairs) - {"account", "time", "amount", "category", "merchant", "id"}
    if unknown:
        raise typer.BadParameter(f"unknown field {', '.join(sorted(unknown))}", param_hint="--columns")
    mapped: dict[str, Any] = {k: None if v == "none" and k in ("category", "id") else v for k, v in pairs.items()}
    return Schema(**mapped)
