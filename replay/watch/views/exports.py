"""What is on the screen as CSV or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.responses import Response

from replay.watch.formats import NotFoundError, json_text
from stream_ccsd.cli.output import Rows, text_of

# The tables of each view; the first is what ``.csv`` is unless ``?table=`` names another.
TABLES: dict[str, tuple[str, ...]] = {
    "now": ("newest", "drift", "dead_letters", "over_time"),
    "queue": ("cases",),
    "account": ("rows", "alerts", "timeline", "verdicts", "merchants", "suppressions"),
    "tune": ("curve", "changes", "suppressions"),
    "model": ("versions", "weeks", "fields", "drift"),
    "audit": ("entries", "reviewers"),
}


def exported(name: str, view: Mapping[str, Any], style: str, table: str | None = None) -> Response:
    """A view as a file to keep.

    Raises
    ------
    NotFoundError
        If it has no such table.
    """
    if style == "json":
        return _file(json_text(view, indent=2) + "\n", "application/json", f"{name}.json")
    columns, found = rows(name, view, table)
    return _file(text_of(found, "csv", columns), "text/csv; charset=utf-8", f"{name}.csv")


def rows(name: str, view: Mapping[str, Any], table: str | None = None) -> tuple[list[str], Rows]:
    """The columns and rows of one table of a view; values within values have columns of their own, like fields.country.

    Raises
    ------
    NotFoundError
        If it has no such table.
    """
    tables = TABLES[name]
    chosen = table or tables[0]
    if chosen not in tables:
        raise NotFoundError(f"{name} has no table {chosen[:60]!r}: it has {', '.join(tables)}")
    flat = [_flat(row) for row in _table(chosen, view)]
    columns = list(dict.fromkeys(column for row in flat for column in row))
    return columns, [{column: row.get(column) for column in columns} for row in flat]


def _table(name: str, view: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    found: Any = view.get(name) or []
    if name == "timeline":
        return found["points"] if found else []
    if name == "cases":  # a row each alert, with what its case adds
        own = ("claim", "reasons")
        return [{**alert, **{f"case_{n}": case.get(n) for n in own}} for case in found for alert in case["alerts"]]
    return list(found)


def _flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{key}.")
        elif isinstance(value, list | tuple):
            plain = all(isinstance(part, str) for part in value)
            flat[before + key] = "; ".join(value) if plain else json_text(value)
        else:
            flat[before + key] = value
    return flat


def _file(text: str, kind: str, name: str) -> Response:
    return Response(text, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})
