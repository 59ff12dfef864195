"""Rows for other programs: lines of JSON, CSV, Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import typer

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.writing import check_writable, write_whole

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
