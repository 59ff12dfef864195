"""Transaction files: CSV (plain, .gz, .xz), JSON lines and Parquet, row by row, each row parsed or refused."""

from __future__ import annotations

import csv
import gzip
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

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
    suffixes = [s.lower() for s in path.suffixes]
    try:
        if suffixes and suffixes[-1] == ".parquet":
            yield from _parquet(path, schema)
            return
        opener: Callable[..., Any] = _OPENERS.get(suffixes[-1] if suffixes else "", open)
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            kind = next((s for s in reversed(suffixes) if s not in _OPENERS), "")
            if kind == ".csv":
                yield from _csv(path, file, schema)
            elif kind in (".jsonl", ".ndjson"):
                yield from _json_lines(file, schema or Schema())
            else:
                raise StreamCcsdError(f"{path}: unknown format; .csv, .jsonl (also .gz, .xz) and .parquet are read")
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise StreamCcsdError(f"{path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise StreamCcsdError(f"{path} is not UTF-8 text: {error}") from error


def _csv(path: Path, file: IO[str], schema: Schema | None) -> Iterator[Transaction | Refusal]:
    first = file.readline()
    second = file.readline()
    # BankSim quotes with apostrophes, everybody else with quotation marks.
    quote = "'" if second.count("'") >= 2 and '"' not in second else '"'
    header = next(csv.reader([first], quotechar=quote), [])
    schema = schema or _guess(header)
    missing = [c for c in schema.columns.values() if c not in header]
    if missing:
        raise StreamCcsdError(
            f"{path} has no column named {', '.join(missing)}: it has {', '.join(header) or 'none'}. Map the columns."
        )
    rows = csv.reader(_chain(second, file), quotechar=quote)
    for row in rows:
        if not row:
            continue
        position = str(rows.line_num + 1)
        try:
            yield schema.parse_row(header, row, position)
        except TransactionError as error:
            yield error.refusal


def _json_lines(file: IO[str], schema: Schema) -> Iterator[Transaction | Refusal]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            yield schema.parse_json(line, str(number))
        except TransactionError as error:
            yield error.refusal


def _parquet(path: Path, schema: Schema | None) -> Iterator[Transaction | Refusal]:
    file = pq.ParquetFile(path)
    schema = schema or _guess(file.schema_arrow.names)
    wanted = [c for c in schema.columns.values() if c in file.schema_arrow.names]
    position = 1
    for batch in file.iter_batches(columns=wanted):
        yield from schema.parse_arrow(batch, position)
        position += len(batch)


def _guess(columns: list[str]) -> Schema:
    if {"customer", "step", "amount", "merchant"} <= set(columns):
        return BANKSIM
    return Schema(category="category" if "category" in columns else None, id="id" if "id" in columns else None)


def _chain(first: str, rest: IO[str]) -> Iterator[str]:
    if first:
        yield first
    yield from rest
