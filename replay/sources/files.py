"""Transaction files: CSV and JSON lines (plain, .gz, .xz) and Parquet, row by row, each row parsed or refused.

Parquet rows may hold moments of any resolution and any year, whether or not pandas is installed.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import stat
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from replay.sources.csv import LONGEST, GrowingFile, Lines, csv_records, is_growing
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.transaction import Guess, Refusal, Schema, Transaction, TransactionError

_EPOCH = datetime(1970, 1, 1)
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UNREADABLE_PARQUET = "a value that cannot be read"


def parquet_rows(file: IO[bytes]) -> tuple[list[str], int, Iterator[dict[str, Any]]]:
    """Names of the columns, how many rows there are, and the rows."""
    opened = pq.ParquetFile(file)
    names = opened.schema_arrow.names
    return names, opened.metadata.num_rows, _rows(opened, names)


def _rows(opened: pq.ParquetFile, names: list[str]) -> Iterator[dict[str, Any]]:
    for batch in opened.iter_batches():
        columns = [_values(batch.column(i)) for i in range(batch.num_columns)]
        for number in range(batch.num_rows):
            yield {name: column[number] for name, column in zip(names, columns, strict=True)}


def _values(column: pa.Array) -> list[Any]:
    """A column as Python has it; a value that Python cannot hold says so and leaves the others alone."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _moments(column.cast(pa.int64()), _PER_SECOND[kind.unit], kind.tz is not None)
    if pa.types.is_date32(kind):
        return _moments(column.cast(pa.int32()), 1, False, 86_400)
    if pa.types.is_date64(kind):
        return _moments(column.cast(pa.int64()), 1000, False)
    try:
        return column.to_pylist()
    except (ValueError, OverflowError, TypeError, ArithmeticError, ImportError, LookupError, pa.ArrowException):
        return [_value(scalar.as_py) for scalar in column]


def _value(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (ValueError, OverflowError, TypeError, ArithmeticError, ImportError, LookupError, pa.ArrowException):
        return _UNREADABLE_PARQUET


def _moments(numbers: pa.Array, per_second: int, zoned: bool, factor: int = 1) -> list[Any]:
    return [None if n is None else _moment(n * factor, per_second, zoned) for n in numbers.to_pylist()]


def _moment(number: int, per_second: int, zoned: bool) -> datetime | float:
    """A moment where Python has one; in finer steps than its own, or beyond its years, seconds since 1970."""
    microseconds, finer = divmod(number * 10**6, per_second)
    if not finer:
        try:
            moment = _EPOCH + timedelta(microseconds=microseconds)
        except OverflowError:
            pass
        else:
            return moment.replace(tzinfo=UTC) if zoned else moment
    return round(number / per_second, 6)


BANKSIM = Schema(account="customer", time="step", id=None)
"""The columns of the public BankSim file."""

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
_JSON_LINES = (".jsonl", ".ndjson")
# Longest raw record that a dead letter keeps; what is longer is damage, not data.
_MAX_RAW = 10_000
# Rows between two looks at how far the file was read, which ask the operating system.
_LOOK_EVERY = 64
# Most names in a message, and most characters of one.
_NAMED = 30
# What damage below the rows looks like. A ValueError is a name with a zero byte, an unknown codec's, or one of Arrow's.
_UNREADABLE = (OSError, EOFError, lzma.LZMAError, zlib.error, ValueError, LookupError, OverflowError, pa.ArrowException)
# In the order they are tried: the longer marks begin with the shorter ones.
_BYTE_ORDER_MARKS = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)


class Row(NamedTuple):
    """One row of a file: its line (in Parquet its number), its named values or why there are none, and its text."""

    line: str
    values: dict[str, Any] | None
    raw: str
    problem: str | None = None
    is_table: bool = True  # every row has the same columns; lines of JSON may differ
    is_ended: bool = True  # a line end closes it: nothing of it can follow when the file grows
    left_out: int = 0  # a checksum of what ``raw`` does not show

    def refusal(self) -> Refusal:
        """Of a row without values."""
        return Refusal(self.problem or "not a record", None, self.raw[:80], self.line)


class Reading:
    """A file being read; ``share`` of it is behind us, for progress bars."""

    def __init__(self, path: Path, encoding: str | None = None, record: str = "transaction") -> None:
        self.path, self.encoding, self._record = path, encoding, record
        self.share = 0.0
        self._suffixes = [s.lower() for s in path.suffixes]
        self._kind = next((s for s in reversed(self._suffixes) if s not in _OPENERS), "")
        self._passed: Callable[[], float] = lambda: 0.0

    @property
    def can_grow(self) -> bool:
        """Whether rows may be added behind the ones that are there; a Parquet file can only be written anew."""
        return self._kind != ".parquet"

    def rows(self) -> Iterator[Row]:
        """Every row, in the order of the file. Damage stays in its row.

        A last line without a line end is waited for as long as the file grows, and then read as it is.

        Raises
        ------
        StreamCcsdError
            If the file cannot be read, breaks off inside its compression, is empty, has no known format, or two columns
            of one name.
        """
        kinds = {".csv": self._csv, ".parquet": self._parquet, **dict.fromkeys(_JSON_LINES, self._json_lines)}
        if self._kind not in kinds:
            raise StreamCcsdError(f"{self.path}: unknown format; .csv, .jsonl (also .gz, .xz) and .parquet are read")
        number = 0
        with readable(self.path):
            for row in kinds[self._kind]():
                if not number % _LOOK_EVERY:
                    self.share = self._passed()
                number += 1
                yield row
        if not number:
            raise StreamCcsdError(f"{self.path} holds no {self._record}: it is empty, or has a header only")
        self.share = 1.0

    @contextmanager
    def _text(self) -> Iterator[IO[str]]:
        suffix = self._suffixes[-1]
        with self.path.open("rb", buffering=0) as file:
            size = max(1, self.path.stat().st_size)
            self._passed = lambda: min(1.0, file.tell() / size)
            binary = _OPENERS[suffix](file, "rb") if suffix in _OPENERS else GrowingFile(file)
            buffered = io.BufferedReader(binary, 1 << 16)
            encoding = self.encoding or _guess_encoding(buffered.peek(4)[:4])
            yield io.TextIOWrapper(buffered, encoding=encoding, errors="surrogateescape", newline="")

    def _csv(self) -> Iterator[Row]:
        records = csv_records(self._text, lambda: self._suffixes[-1] not in _OPENERS and is_growing(self.path))
        first = next((record for record in records if record.raw.strip()), None)
        if first is None:
            return
        if first.problem:
            raise StreamCcsdError(f"{self.path}: the first line is no header but {first.problem}")
        header = first.values
        self._check_names(header)
        for record in records:
            problem = record.problem
            if problem is None and len(record.values) != len(header):
                problem = f"the row has {len(record.values)} values, the header {len(header)}"
            values = dict(zip(header, record.values, strict=True)) if problem is None else None
            yield Row(str(record.line), values, record.raw, problem, True, record.is_ended, record.left_out)

    def _json_lines(self) -> Iterator[Row]:
        with self._text() as file:
            lines = Lines(file)
            while line := lines.read():
                if not line.strip():
                    continue
                number, left_out = str(lines.number), lines.skip_line()
                record, problem = _json_object(line)
                yield Row(number, record, line.rstrip("\r\n"), problem, False, lines.is_whole, left_out)

    def _parquet(self) -> Iterator[Row]:
        with self.path.open("rb") as file:
            names, total, rows = parquet_rows(file)
            self._check_names(names)
            number = 0
            self._passed = lambda: min(1.0, number / max(1, total))
            for values in rows:
                number += 1
                yield Row(str(number), values, "")

    def _check_names(self, names: list[str]) -> None:
        """Columns without a name may be many: nothing can ask for them."""
        twice = [name for name, count in Counter(names).items() if count > 1 and name]
        if twice:
            raise StreamCcsdError(f"{self.path} has two columns named {listed(twice)}: give each a name of its own")


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """What can go wrong with a file that is read inside, in a sentence.

    Raises
    ------
    StreamCcsdError
        If it is no plain file, or anything below the rows fails.
    """
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            raise StreamCcsdError(f"{path} is a folder: name a file in it")
        if not stat.S_ISREG(kind):
            raise StreamCcsdError(f"{path} is a pipe or a device, which cannot be read twice: write it to a file")
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StreamCcsdError(f"there is no file {path}") from error
    except _UNREADABLE as error:
        raise StreamCcsdError(f"{path} cannot be read: {error}") from error


def listed(names: Iterable[str]) -> str:
    """Names for a message, however many, long or odd they are."""
    names = list(names)
    shown = [n if n.isprintable() and len(n) <= _NAMED else repr(n[:_NAMED]) for n in names[:_NAMED]]
    return ", ".join(shown) + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")


def read_transactions(
    path: Path, schema: Schema | Guess | None = None, encoding: str | None = None
) -> Iterator[Transaction | Refusal]:
    """Every row of a file in its order: a transaction, or the refusal that says which line is wrong and why.

    Without a schema, BankSim's columns are recognised, and otherwise the field names themselves expected. A file
    without ids has its rows numbered by line.

    Raises
    ------
    StreamCcsdError
        If the file cannot be read, has no known format, or lacks a column.
    """
    for _, parsed in parsed_rows(Reading(path, encoding), schema):
        yield parsed


def parsed_rows(reading: Reading, schema: Schema | Guess | None = None) -> Iterator[tuple[Row, Transaction | Refusal]]:
    """Every row with what became of it."""
    known = schema if isinstance(schema, Schema) else None
    guess = schema if isinstance(schema, Guess) else Guess()
    chosen: Schema | None = None
    seen: tuple[str, ...] = ()
    for row in reading.rows():
        if row.values is None:
            yield row, row.refusal()
            continue
        if chosen is None or (known is None and not row.is_table and seen != tuple(row.values)):
            # Lines of JSON may differ in their fields: each is read by its own.
            seen = tuple(row.values)
            chosen = known or guess_schema(list(row.values), guess)
            missing = [c for c in chosen.columns.values() if c not in row.values]
            if missing and row.is_table:
                names = f"{listed(missing)}: it has {listed(row.values)}"
                raise StreamCcsdError(f"{reading.path} has no column named {names}. Map the columns with --columns.")
        yield row, parse_record(chosen, row.values, row.line)


def parse_record(schema: Schema, record: dict[str, Any], position: str) -> Transaction | Refusal:
    """A row as a transaction, or the refusal."""
    try:
        return schema.parse(record, position)
    except TransactionError as error:
        return error.refusal


def guess_schema(columns: list[str], guess: Guess | None = None) -> Schema:
    """BankSim's columns where they are all there; otherwise the field names, without category or id if absent."""
    guess = guess or Guess()
    if {"customer", "step", "amount", "merchant"} <= set(columns):
        return replace(BANKSIM, fields=guess.fields, renamed=guess.renamed)
    category, own_id = ("category" if "category" in columns else None), ("id" if "id" in columns else None)
    return Schema(category=category, id=own_id, fields=guess.fields, renamed=guess.renamed)


def raw_text(row: Row) -> str:
    """The record as it stood in the file; of Parquet, its values as JSON."""
    if row.raw or row.values is None:
        return row.raw[:_MAX_RAW]
    return json.dumps(row.values, default=str, ensure_ascii=False)[:_MAX_RAW]


def _guess_encoding(start: bytes) -> str:
    return next((name for mark, name in _BYTE_ORDER_MARKS if start.startswith(mark)), "utf-8-sig")


def _json_object(line: str) -> tuple[dict[str, Any] | None, str | None]:
    """The object in a line, or what is wrong with it."""
    if len(line) > LONGEST:
        return None, f"more than {LONGEST:,} characters"
    try:
        record = json.loads(line, object_pairs_hook=_unrepeated)
    except (ValueError, RecursionError) as error:
        return None, f"not valid JSON: {error}"
    return (record, None) if isinstance(record, dict) else (None, "expected a JSON object with named fields")


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the name {listed([twice])} stands there twice")
    return record
