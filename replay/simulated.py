"""The built-in stream: a model fitted on some normal accounts of a simulated town, and the transactions of the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from replay.daily_life import country_name, device_name
from replay.fitting import with_facts
from replay.simulator import (
    FIELDS,
    PATTERNS,
    TIME_ORIGIN,
    TIME_UNIT,
    Town,
    account_name,
    merchant_name,
    simulate,
    transaction_id,
)
from replay.source import ListSource
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.fitting import fit
from stream_ccsd.library.model import Model
from stream_ccsd.progress import Progress
from stream_ccsd.sampling import shuffled
from stream_ccsd.settings import Settings
from stream_ccsd.writing import replacing

# Share of the normal accounts that the model is fitted on; their transactions are not streamed.
_FITTED = 0.6


def simulated_replay(
    accounts: int, days: int, seed: int, settings: Settings, progress: Progress | None = None
) -> tuple[Model, ListSource]:
    """A model, and a source of transactions it has not seen, with the simulator's labels beside them."""
    stream = simulate(accounts=accounts, days=days, seed=seed)
    normal = shuffled(stream.normal_accounts(), seed)
    fitted = set(normal[: int(_FITTED * len(normal))])
    settings = town_settings(settings)
    model = fit((t for t in stream.transactions if t.account in fitted), settings, progress)
    events = [t for t in stream.transactions if t.account not in fitted]
    return with_facts(model, [t.time for t in events]), ListSource(
        f"simulated stream, seed {seed}", events, stream.fraud
    )


def town_settings(settings: Settings) -> Settings:
    """These settings, with the fields and the calendar of a simulated town where they leave them open."""
    unknown = set(settings.fields) - set(FIELDS)
    if unknown:
        raise StreamCcsdError(f"a simulated town has no {', '.join(sorted(unknown))}: it has {', '.join(FIELDS)}")
    settings = replace(settings, fields=settings.fields or FIELDS)
    if settings.time_unit not in (None, TIME_UNIT):  # another unit was chosen: our origin would be none of it
        return settings
    return replace(settings, time_unit=TIME_UNIT, time_origin=settings.time_origin or TIME_ORIGIN)


def write_simulated(town: Town, path: Path, progress: Progress | None = None) -> tuple[int, int]:
    """A stream of any size to a file, a day at a time: ``.csv`` or ``.parquet``, also ``.csv.gz``.

    Columns are those of a transaction, ``country`` and ``device``, then ``fraud`` (0 or 1) and ``pattern``. Returns
    transactions and frauds.
    """
    categories = np.array([town.category_name(m) for m in range(len(town.popularity))])
    patterns = np.array([*PATTERNS, ""])
    position = frauds = 0
    with _writer(path) as write:
        for number in range(town.days):
            rows = town.day(number)
            count = len(rows.time)
            frauds += int((rows.pattern >= 0).sum())
            table = pa.table(
                {
                    "account": [account_name(c) for c in rows.customer.tolist()],
                    "time": rows.time,
                    "amount": rows.amount,
                    "category": categories[rows.merchant],
                    "merchant": [merchant_name(m) for m in rows.merchant.tolist()],
                    "id": [transaction_id(i) for i in range(position, position + count)],
                    "country": [country_name(c) for c in rows.country.tolist()],
                    "device": [*map(device_name, rows.customer.tolist(), rows.device.tolist())],
                    "fraud": (rows.pattern >= 0).astype(np.int8),
                    "pattern": patterns[rows.pattern],
                }
            )
            write(table)
            position += count
            if progress:
                progress(number + 1, town.days)
    return position, frauds


@contextmanager
def _writer(path: Path) -> Iterator[Callable[[pa.Table], None]]:
    """Something that takes tables and appends them to the file, which appears under its name when it is whole."""
    suffixes = "".join(path.suffixes[-2:]).lower()
    writer: _TableFile | None = None
    if not suffixes.endswith((".parquet", ".csv", ".csv.gz")):
        raise StreamCcsdError(f"{path}: a simulated stream is written as .csv, .csv.gz or .parquet")
    with replacing(path) as place:

        def write(table: pa.Table) -> None:
            nonlocal writer
            if writer is None:
                writer = _TableFile(place, suffixes, table.schema)
            writer.write_table(table)

        try:
            yield write
        finally:
            if writer is not None:
                writer.close()


class _TableFile:
    """Tables into one file. It is opened here: Arrow takes no names that are not UTF-8, and leaves its sinks open."""

    def __init__(self, path: Path, suffixes: str, schema: pa.Schema) -> None:
        self._open = [path.open("wb")]
        self._writer: Any
        if suffixes.endswith(".parquet"):
            self._writer = pq.ParquetWriter(self._open[0], schema, compression="zstd")
            return
        if suffixes.endswith(".gz"):
            self._open.append(pa.CompressedOutputStream(self._open[0], "gzip"))
        self._writer = csv.CSVWriter(self._open[-1], schema, write_options=csv.WriteOptions(quoting_style="needed"))

    def write_table(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def close(self) -> None:
        self._writer.close()
        for sink in reversed(self._open):
            sink.close()
