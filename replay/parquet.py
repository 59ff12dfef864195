"""Rows of a Parquet file, with moments of any resolution and any year, whether or not pandas is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

_EPOCH = datetime(1970, 1, 1)
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UNREADABLE = "a value that cannot be read"


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
        return _UNREADABLE


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
