"""Transaction files: CSV (plain, .gz, .xz), JSON lines and Parquet, row by row, each row parsed or refused."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.transaction import Refusal, Schema, Transaction, TransactionError

BANKSIM = Schema(account="customer", time="step", id=None)
"""The columns of the public BankSim file."""

_OPENERS: dict[str, Callable[..., IO[str]]] = {".gz": gzip.open, ".xz": lzma.open}


def read_transactions(path: Path, schema: Schema | None = None) -> Iterator[Transaction | Refusal]:
    """Every row of a file in its order: a transaction, or the refusal that says which line is wrong and why.

    Without a schema, BankSim's columns are recognised, and otherwise the field names themselves expected. A file
    without ids has its rows numbered by line.

    Raises
    ------
    StreamCcsdError
        If the file cannot be read, has no known format, or lacks a column.
    """
    chosen: Schema | None = None
    for row in read_records(path):
        if isinstance(row, Refusal):
            yield row
            continue
        position, record = row
        if chosen is None:
            chosen = schema or guess_schema(list(record))
            missing = [c for c in chosen.columns.values() if c not in record]
            if missing and not {".jsonl", ".ndjson"} & set(path.suffixes):  # lines of JSON may differ in their fields
                names = f"{', '.join(missing)}: it has {', '.join(record)}"
                raise StreamCcsdError(f"{path} has no column named {names}. Map the columns.")
        yield parse_record(chosen, record, position)


def parse_record(schema: Schema, record: dict[str, Any], position: str) -> Transaction | Refusal:
    """A row as a transaction, or the refusal."""
    try:
        return schema.parse(record, position)
    except TransactionError as error:
        return error.refusal


def read_records(path: Path) -> Iterator[tuple[str, dict[str, Any]] | Refusal]:
    """Every row of a file as its line (or row) number and its named values, or the refusal of a row without them."""
    suffixes = [s.lower() for s in path.suffixes]
    try:
        if suffixes and suffixes[-1] == ".parquet":
            yield from _parquet(path)
            return
        opener: Callable[..., Any] = _OPENERS.get(suffixes[-1] if suffixes else "", open)
        with opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            kind = next((s for s in reversed(suffixes) if s not in _OPENERS), "")
            if kind == ".csv":
                yield from _csv(file)
            elif kind in (".jsonl", ".ndjson"):
                yield from _json_lines(file)
            else:
                raise StreamCcsdError(f"{path}: unknown format; .csv, .jsonl (also .gz, .xz) and .parquet are read")
    except (OSError, EOFError, lzma.LZMAError, pa.ArrowException) as error:
        raise StreamCcsdError(f"{path} cannot be read: {error}") from error


def _csv(file: IO[str]) -> Iterator[tuple[str, dict[str, Any]] | Refusal]:
    first, second = file.readline(), file.readline()
    # BankSim quotes with apostrophes, everybody else with quotation marks.
    quote = "'" if second.count("'") >= 2 and '"' not in second else '"'
    header = next(csv.reader([first], quotechar=quote), [])
    rows = csv.reader(_chain(second, file), quotechar=quote)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:  # a field beyond all bounds, or a quote that never closes: this row only
            yield Refusal(f"not a row of values: {error}", None, None, str(rows.line_num + 1))
            continue
        position = str(rows.line_num + 1)
        if len(row) == len(header):
            yield position, dict(zip(header, row, strict=True))
        elif row:
            reason = f"the row has {len(row)} values, the header {len(header)}"
            yield Refusal(reason, None, ",".join(row)[:80], position)


def _json_lines(file: IO[str]) -> Iterator[tuple[str, dict[str, Any]] | Refusal]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield Refusal(f"not valid JSON: {error}", None, line[:80], str(number))
            continue
        if isinstance(record, dict):
            yield str(number), record
        else:
            yield Refusal("expected a JSON object with named fields", None, line[:80], str(number))


def _parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]] | Refusal]:
    position = 0
    for batch in pq.ParquetFile(path).iter_batches():
        for record in batch.to_pylist():
            position += 1
            yield str(position), record


def guess_schema(columns: list[str]) -> Schema:
    """BankSim's columns where they are all there; otherwise the field names, without category or id if absent."""
    if {"customer", "step", "amount", "merchant"} <= set(columns):
        return BANKSIM
    return Schema(category="category" if "category" in columns else None, id="id" if "id" in columns else None)


def _chain(first: str, rest: IO[str]) -> Iterator[str]:
    if first:
        yield first
    yield from rest
