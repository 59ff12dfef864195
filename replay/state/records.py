"""What a replay recorded, asked of its SQLite file: the questions of :class:`stream_ccsd.stores.RecordStore`.

Rows are compared with their checksums as they are read, and found through an index. Scores are stored a batch a row,
as compressed Arrow. Each score says which batch holds its account's scores before that, and the account's own row which
is the newest such batch: an account's history is followed from there, and no batch without it is read. A row for each
account and batch would be as many rows as there are transactions, to write and to check.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.state.schema import checked_rows, explained
from replay.state.statistics import COUNTED, Timeline
from stream_ccsd.calendar import Calendar
from stream_ccsd.records import score_records
from stream_ccsd.stores import AccountSummary, DeadLetterCount, Ranking, Record, TimeBin, Totals

_PREVIOUS = "previous"
# The largest number SQLite knows; there are never so many of anything.
_ALL = 2**63 - 1
_RANKED: dict[Ranking, str] = {"score": "score", "loss": "expected_loss"}


class SqliteRecords:
    """A :class:`~stream_ccsd.stores.RecordStore` of a state file, also while a replay writes to it."""

    def __init__(self, path: Path, connection: sqlite3.Connection, facts: Mapping[str, Any]) -> None:
        self._path, self._connection = path, connection
        self.facts = facts
        self.calendar = Calendar.from_dict(facts["calendar"])

    @contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """See :class:`~stream_ccsd.stores.RecordStore`."""
        if self._connection.in_transaction:
            yield
            return
        with explained(self._path):
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def totals(self) -> Totals:
        """See :class:`~stream_ccsd.stores.RecordStore`."""
        with self.at_one_moment():
            transactions, late, alerts, _ = sum(
                self._timeline().bins.values(), start=np.zeros(len(COUNTED), int)
            ).tolist()
            ((position, *_),) = self._rows("progress")
            ((accounts,),) = self._values("SELECT count(*) FROM accounts")
            ((dead_letters,),) = self._values("SELECT count(*) FROM dead_letters")
        return Totals(position, transactions, late, accounts, alerts, dead_letters)

    def alerts(
        self, *, account: str | None = None, since: float | None = None, after: int = 0, limit: int | None = None
    ) -> Iterator[Record]:
        """See :class:`~stream_ccsd.stores.RecordStore`."""
        chosen = _chosen_alerts("position > :bound", "ASC", account, since)
        values = {"account": account, "since": since, "bound": after, "limit": _limited(limit)}
        return (json.loads(row[-1]) for row in self._rows("alerts", chosen, values))

    def newest_alerts(
        self, limit: int, *, account: str | None = None, since: float | None = None, before: int | None = None
    ) -> list[Record]:
        """See :class:`~stream_ccsd.stores.RecordStore`."""
        chosen = _chosen_alerts("position < :bound", "DESC", account, since)
        bound = _ALL if before is None else before
        values = {"account": account, "since": since, "bound": bound, "limit": _limited(limit)}
        return [json.loads(row[-1]) for row in self._rows("alerts", chosen, values)]

    def highest_alerts(
        self, limit: int | None, *, by: Ranking = "score", account: str | None = None, since: float | None = None
    ) -> list[Record]:
        """See :class:`~stream_ccsd.stores.RecordStore`."""
        conditions = ["account = :account"] if account is not None else []
        conditions += ["time >= :since"] if since is not None else []
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        chosen = f"{where} ORDER BY {_RANKED[by]} DESC, position LIMIT :limit"
        values = {"limit": _limited(limit), "account": account, "since": since}
        return [json.loads(row[-1]) for row in self._rows("alerts", chosen, values)]

    def alert_at(self, position: int) -> Record | None:
        """See :class:`~stream_ccsd.stores.RecordStore`."""
        rows = self._rows("alerts", "WHERE position = :position", {"position": min(position, _ALL)})
        return next((json.loads(row[-1]) for row in rows), None)

    def alert_of(self, identity: str) -> Record | None:
        """See :class:`~stream_ccsd.stores.RecordStore`."""
        rows = self._rows("alerts", "INDEXED BY alerts_by_id WHERE id = :id ORDER BY position DESC", {"id": identity})
        return next((json.loads(row[-1]) for row in rows), None)

    def alerts_named(self, name: str) -> list[Record]:
        """See :class:`~stream_ccsd.stores.RecordStore`."""
        chosen = "WHERE id = :name OR json_extract(json, '$.transaction') = :name ORDER BY position"
        rows = self._rows("alerts", chosen, {"name": name})
        return [json.loads(row[-1]) for row in rows]

    def scored(self, transactions: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
        """See :class:`~stream_ccsd.stores.RecordStore`.

        All batches are gone through: opening a file does as much, and an account's own would be read again for each.
        """
        wanted, found = set(transactions), set[tuple[str, str]]()
        ids = pa.array(sorted({transaction for _, transaction in wanted}), pa.string())
        for batch in self.score_batches() if wanted else ():
            own = batch.filter(pc.is_in(batch.column("id"), value_set=ids))
            found |= wanted & {*zip(own.column("account").to_pylist(), own.column("id").to_pylist(), strict=True)}
            if len(found) == len(wanted):
                break
        return found

    def newest_time(self) -> float | None:
        """See :class:`~stream_ccsd.stores.RecordStore`."""
        ((newest,),) = self._values("SELECT max(last_time) FROM accounts")
        return newest

    def account(self, account: str) -> AccountSummary | None:
        """See :class:`~stream_ccsd.stores.RecordStore`."""
        row = self._account_row(account)
        return None if row is None else AccountSummary(*row[:-1])

    def accounts_by_maximum(self, limit: int, *, after: AccountSummary | None = None) -> list[AccountSummary]:
        """See :class:`~stream_ccsd.stores.RecordStore`."""
        where, values = "", dict[str, Any](limit=_limited(limit))
        if after is not None:
            where = "WHERE maximum <= :maximum AND (maximum < :maximum OR account > :account)"
            values |= {"maximum": after.maximum, "account": after.account}
        rows = self._rows("accounts", f"{where} ORDER BY maximum DESC, account LIMIT :limit", values)
        return [AccountSummary(*row[:-1]) for row in rows]

    def scores_of(
        self,
        account: str,
        *,
        before: int | None = None,
        limit: int | None = None,
        columns: tuple[str, ...] | None = None,
    ) -> list[Record]:
        """See :class:`~stream_ccsd.stores.RecordStore`."""
        records: list[Record] = []  # the newest first
        needed = None if columns is None else tuple(dict.fromkeys((*columns, "account", "position", _PREVIOUS)))
        with self.at_one_moment():
            row = self._account_row(account)
            batch = None if row is None else row[-1]
            while batch is not None and (limit is None or len(records) < limit):
                found = next(self._rows("scores", "WHERE position = :batch", {"batch": batch}), None)
                if found is None:  # of a file of bounded size, the oldest batches are gone: the history begins here
                    break
                own = pa.Table.from_batches(unpacked(found[-1], needed))
                own = own.filter(pc.equal(own.column("account"), account))
                batch = own.column(_PREVIOUS)[0].as_py()
                if before is not None:
                    own = own.filter(pc.less(own.column("position"), before))
                chosen = own.drop_columns(_PREVIOUS) if columns is None else own.select(columns)
                records += reversed(score_records(chosen))
        return records[:limit][::-1]

    def counts_over_time(self, width: float = 0.0) -> list[TimeBin]:
        """See :class:`~stream_ccsd.stores.RecordStore`."""
        with self.at_one_moment():
            timeline = self._timeline().at_least(width)
        step = float(timeline.width)
        return [TimeBin(place * step, step, *counts.tolist()) for place, counts in sorted(timeline.bins.items())]

    def dead_letters(self, *, kind: str | None = None, after: int = 0, limit: int | None = None) -> Iterator[Record]:
        """See :class:`~stream_ccsd.stores.RecordStore`."""
        return map(json.loads, self.dead_letter_lines(kind=kind, after=after, limit=limit))

    def dead_letter_counts(self) -> list[DeadLetterCount]:
        """See :class:`~stream_ccsd.stores.RecordStore`."""
        query = (
            "SELECT kind, field, count(*) FROM dead_letters GROUP BY kind, field ORDER BY count(*) DESC, kind, field"
        )
        return [DeadLetterCount(*row) for row in self._values(query)]

    def alert_lines(self) -> Iterator[str]:
        """All alerts in order, as they are in ``alerts.jsonl``."""
        return (row[-1] for row in self._rows("alerts"))

    def score_batches(self) -> Iterator[pa.RecordBatch]:
        """All scores in order, a batch at a time, as they are in ``scores.parquet``."""
        for _, packed in self._rows("scores"):
            for batch in unpacked(packed):
                yield batch.drop_columns(_PREVIOUS)

    def dead_letter_lines(self, kind: str | None = None, after: int = 0, limit: int | None = None) -> Iterator[str]:
        """Dead letters in order, as they are in ``dead_letters.jsonl``."""
        of_kind = "" if kind is None else "AND kind = :kind"
        source = "dead_letters" + ("" if kind is None else " INDEXED BY dead_letters_by_kind")
        chosen = _in_order(f"SELECT position FROM {source} WHERE position > :after {of_kind}", "ASC")
        values = {"kind": kind, "after": after, "limit": _limited(limit)}
        return (row[-1] for row in self._rows("dead_letters", chosen, values))

    def _rows(
        self, table: str, chosen: str = "ORDER BY rowid", values: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        with explained(self._path):
            yield from checked_rows(self._path, self._connection, table, chosen, values)

    def _values(self, query: str) -> list[tuple[Any, ...]]:
        with explained(self._path):
            return self._connection.execute(query).fetchall()

    def _account_row(self, account: str) -> tuple[Any, ...] | None:
        return next(iter(self._rows("accounts", "WHERE account = :account", {"account": account})), None)

    def _timeline(self) -> Timeline:
        ((*_, width, _, _),) = self._rows("progress")
        return Timeline(self.calendar, width, {place: np.array(counts) for place, *counts in self._rows("timeline")})


def packed_scores(scores: pa.RecordBatch, previous: Mapping[str, int | None]) -> bytes:
    """A batch as it is stored; ``previous`` says which batch holds an account's scores before this one."""
    places = pa.array([previous[account] for account in scores.column("account").to_pylist()], pa.int64())
    schema = scores.schema.append(pa.field(_PREVIOUS, pa.int64()))
    linked = pa.RecordBatch.from_arrays([*scores.columns, places], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(linked)
    return sink.getvalue().to_pybytes()


def unpacked(packed: bytes, columns: tuple[str, ...] | None = None) -> Iterator[pa.RecordBatch]:
    """A stored batch again; columns that nobody asks for are not even decompressed."""
    options = None
    if columns is not None:
        schema = pa.ipc.open_stream(pa.py_buffer(packed)).schema
        places = [schema.get_field_index(name) for name in columns]
        # A batch is small: to hand its columns to threads takes longer than to decompress them.
        options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
    yield from pa.ipc.open_stream(pa.py_buffer(packed), options=options)


def unpacked_scores(packed: bytes) -> tuple[pa.RecordBatch, dict[str, int | None]]:
    """The inverse of :func:`packed_scores`."""
    table = pa.Table.from_batches(unpacked(packed)).combine_chunks()
    previous = dict(zip(table.column("account").to_pylist(), table.column(_PREVIOUS).to_pylist(), strict=True))
    (batch,) = table.drop_columns(_PREVIOUS).to_batches()
    return batch, previous


def _limited(limit: int | None) -> int:
    return _ALL if limit is None else min(limit, _ALL)


def _chosen_alerts(bound: str, direction: str, account: str | None, since: float | None) -> str:
    """Which alerts, as SQL. The index is named: left to itself, SQLite may read all alerts in order to sort none."""
    index, conditions = "", [bound]
    if since is not None:
        index = "INDEXED BY alerts_by_time"
        conditions.append("time >= :since")
    if account is not None:
        index = "INDEXED BY alerts_by_account"
        conditions.append("account = :account")
    return _in_order(f"SELECT position FROM alerts {index} WHERE {' AND '.join(conditions)}", direction)


def _in_order(positions: str, direction: str) -> str:
    """Rows of these positions; they are sorted and counted off before any row is read as a whole."""
    return f"WHERE position IN ({positions} ORDER BY position {direction} LIMIT :limit) ORDER BY position {direction}"
