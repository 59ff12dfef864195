"""Transaction files: CSV and JSON lines (plain, .gz, .xz) and Parquet, row by row, each row parsed or refused."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.transaction import Refusal, Schema, Transaction, TransactionError

BANKSIM = Schema(account="customer", time="step", id=None)
"""The columns of the public BankSim file."""

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
_JSON_LINES = (".jsonl", ".ndjson")
# Longest raw record that a dead letter keeps; what is longer is damage, not data.
_MAX_RAW = 10_000
# Most lines that one quoted field may run over.
_MAX_LINES = 20
# Lines looked at to see how fields are quoted.
_LOOKED_AT = 50
# In the order they are tried: the longer marks begin with the shorter ones.
_BYTE_ORDER_MARKS = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file: its line (in Parquet its number), its named values or why there are none, and its text."""

    line: str
    values: dict[str, Any] | None
    raw: str
    problem: str | None = None
    is_table: bool = True  # every row has the same columns; lines of JSON may differ

    def refusal(self) -> Refusal:
        """Of a row without values."""
        return Refusal(self.problem or "not a record", None, self.raw[:80], self.line)


class Reading:
    """A file being read; ``share`` of it is behind us, for progress bars."""

    def __init__(self, path: Path, encoding: str | None = None) -> None:
        self.path, self.encoding = path, encoding
        self.share = 0.0

    def rows(self) -> Iterator[Row]:
        """Every row, in the order of the file. Damage stays in its row.

        Raises
        ------
        StreamCcsdError
            If the file cannot be read, breaks off inside its compression, is empty, or has no known format.
        """
        suffixes = [s.lower() for s in self.path.suffixes]
        kind = next((s for s in reversed(suffixes) if s not in _OPENERS), "")
        if kind not in (".csv", ".parquet", *_JSON_LINES):
            raise StreamCcsdError(f"{self.path}: unknown format; .csv, .jsonl (also .gz, .xz) and .parquet are read")
        found = False
        try:
            rows = self._parquet() if kind == ".parquet" else self._text(suffixes[-1], kind)
            for row in rows:
                found = True
                yield row
        except (OSError, EOFError, lzma.LZMAError, zlib.error, UnicodeError, pa.ArrowException, LookupError) as error:
            raise StreamCcsdError(f"{self.path} cannot be read: {error}") from error
        if not found:
            raise StreamCcsdError(f"{self.path} holds no transaction: it is empty, or has a header only")

    def _text(self, suffix: str, kind: str) -> Iterator[Row]:
        size = max(1, self.path.stat().st_size)
        with self.path.open("rb") as raw:
            binary = _OPENERS[suffix](raw, "rb") if suffix in _OPENERS else raw
            buffered = io.BufferedReader(binary)
            encoding = self.encoding or _guess_encoding(buffered.peek(4)[:4])
            text = io.TextIOWrapper(buffered, encoding=encoding, errors="surrogateescape", newline="")
            for row in _csv(text) if kind == ".csv" else _json_lines(text):
                self.share = min(1.0, raw.tell() / size)
                yield row

    def _parquet(self) -> Iterator[Row]:
        file = pq.ParquetFile(self.path)
        total, number = max(1, file.metadata.num_rows), 0
        for batch in file.iter_batches():
            for record in batch.to_pylist():
                number += 1
                self.share = number / total
                yield Row(str(number), record, "")


def read_transactions(
    path: Path, schema: Schema | None = None, encoding: str | None = None
) -> Iterator[Transaction | Refusal]:
    """Every row of a file in its order: a transaction, or the refusal that says which line is wrong and why.

    Without a schema, BankSim's columns are recognised, and otherwise the field names themselves expected. A file
    without ids has its rows numbered by line.

    Raises
    ------
    StreamCcsdError
        If the file cannot be read, has no known format, or lacks a column.
    """
    for _, found in parsed_rows(Reading(path, encoding), schema):
        yield found


def parsed_rows(reading: Reading, schema: Schema | None = None) -> Iterator[tuple[Row, Transaction | Refusal]]:
    """Every row with what became of it."""
    chosen: Schema | None = None
    seen: tuple[str, ...] = ()
    for row in reading.rows():
        if row.values is None:
            yield row, row.refusal()
            continue
        if chosen is None or (schema is None and not row.is_table and seen != tuple(row.values)):
            # Lines of JSON may differ in their fields: each is read by its own.
            seen = tuple(row.values)
            chosen = schema or guess_schema(list(row.values))
            missing = [c for c in chosen.columns.values() if c not in row.values]
            if missing and row.is_table:
                names = f"{', '.join(missing)}: it has {', '.join(row.values)}"
                raise StreamCcsdError(f"{reading.path} has no column named {names}. Map the columns with --columns.")
        yield row, parse_record(chosen, row.values, row.line)


def parse_record(schema: Schema, record: dict[str, Any], position: str) -> Transaction | Refusal:
    """A row as a transaction, or the refusal."""
    try:
        return schema.parse(record, position)
    except TransactionError as error:
        return error.refusal


def guess_schema(columns: list[str]) -> Schema:
    """BankSim's columns where they are all there; otherwise the field names, without category or id if absent."""
    if {"customer", "step", "amount", "merchant"} <= set(columns):
        return BANKSIM
    return Schema(category="category" if "category" in columns else None, id="id" if "id" in columns else None)


def raw_text(row: Row) -> str:
    """The record as it stood in the file; of Parquet, its values as JSON."""
    if row.raw or row.values is None:
        return row.raw[:_MAX_RAW]
    return json.dumps(row.values, default=str, ensure_ascii=False)[:_MAX_RAW]


def _guess_encoding(start: bytes) -> str:
    return next((name for mark, name in _BYTE_ORDER_MARKS if start.startswith(mark)), "utf-8-sig")


def _csv(file: IO[str]) -> Iterator[Row]:
    number, first = 1, file.readline()
    while first and not first.strip():
        number, first = number + 1, file.readline()
    waiting = deque(line for line in (file.readline() for _ in range(_LOOKED_AT)) if line)
    quote = _quote_of(waiting)
    header = next(csv.reader([first], quotechar=quote), [])
    while line := waiting.popleft() if waiting else file.readline():
        number += 1
        text, extra = line, 0
        if line.count(quote) % 2:  # perhaps a field that goes on in the next line
            text, extra = _joined(line, waiting, file, quote, len(header))
        raw = text.rstrip("\r\n")
        try:
            row = next(csv.reader([raw] if not extra else raw.splitlines(keepends=True), quotechar=quote), [])
        except csv.Error as error:  # a field beyond all bounds
            yield Row(str(number), None, raw, f"not a row of values: {error}")
            continue
        if row and len(row) == len(header):
            yield Row(str(number), dict(zip(header, row, strict=True)), raw)
        elif row:
            yield Row(str(number), None, raw, f"the row has {len(row)} values, the header {len(header)}")
        number += extra


def _joined(line: str, waiting: deque[str], file: IO[str], quote: str, width: int) -> tuple[str, int]:
    """The line with those that its quoted field runs over, and how many; alone where no such field ever closes.

    Lines that were looked at in vain wait for their own turn: a stray quote must not swallow good rows.
    """
    lines = [line]
    for _ in range(_MAX_LINES):
        try:
            if len(next(csv.reader(lines, quotechar=quote, strict=True))) == width:
                return "".join(lines), len(lines) - 1
        except (csv.Error, StopIteration):
            pass
        following = waiting.popleft() if waiting else file.readline()
        if not following:
            break
        lines.append(following)
        if _is_row(following, quote, width):  # a good row of its own: the quote before it was a stray one
            break
    waiting.extendleft(reversed(lines[1:]))
    return line, 0


def _is_row(line: str, quote: str, width: int) -> bool:
    try:
        return len(next(csv.reader([line], quotechar=quote, strict=True), [])) == width
    except csv.Error:
        return False


def _quote_of(lines: Iterable[str]) -> str:
    """BankSim quotes with apostrophes, everybody else with quotation marks: whichever encloses more whole fields."""
    counts = {q: sum(len(re.findall(rf"(?:^|,){q}[^{q}]*{q}(?=,|\s*$)", line)) for line in lines) for q in "'\""}
    return "'" if counts["'"] > counts['"'] else '"'


def _json_lines(file: IO[str]) -> Iterator[Row]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        raw = line.rstrip("\r\n")
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield Row(str(number), None, raw, f"not valid JSON: {error}", is_table=False)
            continue
        if isinstance(record, dict):
            yield Row(str(number), record, raw, is_table=False)
        else:
            yield Row(str(number), None, raw, "expected a JSON object with named fields", is_table=False)
