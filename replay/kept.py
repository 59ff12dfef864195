"""Rows of a state file that are written again and again, each in the place of the one before: states, accounts, bins.

Whoever replaces a row must know the old one's checksum, to take it out of the file's sum, and mostly its values, to add
to them. Asked of SQLite a row at a time, that takes longer than to write. So the newest rows stay in memory: nobody
else writes to the file (a replay that finds out otherwise stops), and whatever is not in memory is read many at once.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from replay.database import COLUMNS, explained, row_checksum

Row = tuple[Any, ...]

# Rows read by one question: SQLite takes no more than 999 parameters where it is old.
_TOGETHER = 500


class KeptRows:
    """Rows of one table by their first column; ``most`` of them in memory, all of them in the file."""

    def __init__(self, path: Path, connection: sqlite3.Connection, table: str, most: int) -> None:
        self._path, self._connection, self._most = path, connection, most
        key, *others = names = COLUMNS[table].split(", ")
        marks = ", ".join("?" * (1 + len(names)))
        changed = ", ".join(f"{name} = excluded.{name}" for name in ("checksum", *others))
        # In its place, where a REPLACE would take the row and its entries in all indices away and put in new ones.
        self._write = (
            f"INSERT INTO {table} (checksum, {COLUMNS[table]}) VALUES ({marks}) "
            f"ON CONFLICT ({key}) DO UPDATE SET {changed}"
        )
        self._read = f"SELECT checksum, {COLUMNS[table]} FROM {table} WHERE {key}"
        self._remove = f"DELETE FROM {table} WHERE {key} = ?"
        self._rows: OrderedDict[Any, Row | None] = OrderedDict()  # with their checksums; None: there is no such row

    def get(self, key: Any) -> Row | None:
        """The row of this key; None if there is none."""
        found = self._rows.get(key) or self._found([key])[key]
        return None if found is None else found[1:]

    def get_all(self, keys: Iterable[Any]) -> dict[Any, Row | None]:
        """The rows of these keys."""
        return {key: None if row is None else row[1:] for key, row in self._found(keys).items()}

    def put(self, rows: Iterable[Row]) -> int:
        """Write rows, each key once; returns what that adds to the sum of all checksums."""
        new = {row[0]: (row_checksum(*row), *row) for row in rows}
        added = sum(row[0] for row in new.values()) - _sum(self._found(new))
        self._connection.executemany(self._write, new.values())
        self._keep(new)
        return added

    def remove(self, keys: Iterable[Any]) -> int:
        """Take rows out; returns what that adds to the sum of all checksums."""
        old = self._found(keys)
        self._connection.executemany(self._remove, [(key,) for key in old])
        for key in old:
            self._rows.pop(key, None)
        return -_sum(old)

    def forget(self) -> None:
        """What is in memory may not be in the file: read again what is needed."""
        self._rows.clear()

    def _found(self, keys: Iterable[Any]) -> dict[Any, Row | None]:
        """Rows with their checksums."""
        known = self._rows
        found = {key: known.get(key) for key in keys}
        unknown = [key for key, row in found.items() if row is None and key not in known]
        for first in range(0, len(unknown), _TOGETHER):
            some = unknown[first : first + _TOGETHER]
            with explained(self._path):
                read = self._connection.execute(f"{self._read} IN ({', '.join('?' * len(some))})", some).fetchall()
            found.update((row[1], row) for row in read)
        self._keep({key: found[key] for key in unknown})
        return found

    def _keep(self, rows: Mapping[Any, Row | None]) -> None:
        for key, row in rows.items():
            self._rows[key] = row
            self._rows.move_to_end(key)
        while len(self._rows) > self._most:
            self._rows.popitem(last=False)


def _sum(rows: Mapping[Any, Row | None]) -> int:
    return sum(row[0] for row in rows.values() if row is not None)
