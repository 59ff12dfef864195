"""Models for a replay: fitted on a file's accounts, on a file's first part, or on part of a simulated population.

A fit on a file takes all accounts, or a share of those that no label speaks against. The built-in stream has a model of
some normal accounts of a simulated population, and replays the transactions of the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from replay.sources.simulator.behaviour import country_name, device_name
from replay.sources.simulator.population import (
    FIELDS,
    PATTERNS,
    TIME_ORIGIN,
    TIME_UNIT,
    Population,
    account_name,
    merchant_name,
    simulate,
    transaction_id,
)
from replay.sources.source import FileSource, ListSource, Source, Wanted
from stream_ccsd.alerts.policy import threshold_by_budget
from stream_ccsd.calendar import Calendar
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import Progress, replacing
from stream_ccsd.fitting import fit
from stream_ccsd.model.model import Model
from stream_ccsd.numerics.arrays import FloatArray, shuffled
from stream_ccsd.settings import Settings
from stream_ccsd.stores import ALERT_CAP
from stream_ccsd.transaction import Guess, Refusal, Schema, Transaction

CONTAMINATION = 0.015
"""Share of what is fitted on that may be fraud, where no label says what is normal."""
FIRST_PART = 0.3
"""Share of a file's time that a replay without a model fits on."""

# Fewer transactions say nothing about how rare anything is.
_FEWEST = 100
# Times at either end of a file that may be mistakes: 1 in so many.
_STRAY = 1000
# A score that no transaction has.
_NEVER = float(np.finfo(float).max)
_BATCH = 2000
PER_DAY = "transactions_per_day"
"""Of a model's facts: how many there were in what it was fitted on, those of left out accounts too."""


@dataclass(frozen=True)
class FittedFile:
    """A model, the accounts it knows, how many were left out and why, and how many records were no transactions."""

    model: Model
    accounts: frozenset[str]
    left_out_label: int
    left_out_share: int
    refused: int


def fit_file(
    path: Path,
    settings: Settings,
    *,
    schema: Schema | Guess | None = None,
    encoding: str | None = None,
    label: str | None = None,
    share: float = 1.0,
    seed: int = 0,
    until: float | None = None,
    progress: Progress | None = None,
) -> FittedFile:
    """Fit on a file's accounts; with a ``label`` column, on those without any labelled transaction."""
    by_account: dict[str, list[Transaction]] = {}
    suspect: set[str] = set()
    refused = 0
    source = FileSource(path, schema, label=label, encoding=encoding, wanted=Wanted(until=until))
    for item in source.items():
        if isinstance(item.parsed, Refusal):
            refused += 1
            continue
        by_account.setdefault(item.parsed.account, []).append(item.parsed)
        if item.label:
            suspect.add(item.parsed.account)
    normal = set(by_account) - suspect
    accounts = frozenset(shuffled(normal, seed)[: math.ceil(share * len(normal))])
    if not accounts:
        raise StreamCcsdError(f"{path} has no account to fit on ({refused:,} records refused)")
    # In time order within each account; the order among accounts does not matter to a fit.
    rows = (t for account in sorted(accounts) for t in sorted(by_account[account], key=lambda t: t.time))
    model = with_facts(fit(rows, settings, progress), [t.time for own in by_account.values() for t in own])
    return FittedFile(model, accounts, len(by_account) - len(normal), len(normal) - len(accounts), refused)


def with_facts(model: Model, times: Sequence[float], **facts: Any) -> Model:
    """The model, with how many transactions a day there were at these times, and what else is to be known of it."""
    return replace(model, facts={**model.facts, PER_DAY: per_day(times, model.calendar), **facts})


def per_day(times: Sequence[float], calendar: Calendar) -> float | None:
    """Transactions a day; None where time has no unit, or does not pass."""
    day, span = calendar.of_days(1.0), (max(times) - min(times)) if len(times) else 0.0
    return len(times) * day / span if day is not None and span > 0 else None


def with_rate(model: Model, rate: float) -> Model:
    """The model with another alert budget: everything else stays as it was fitted."""
    settings = replace(model.settings, alert_rate=rate)
    return replace(model, settings=settings, threshold=threshold_by_budget(rate))


def rate_of(model: Model, alerts_per_day: float) -> float:
    """So many alerts a day as a share of the transactions that the model was fitted among.

    Raises
    ------
    StreamCcsdError
        If nobody knows how many there are a day, or there are not so many.
    """
    transactions = model.facts.get(PER_DAY)
    if model.calendar.unit == "number":
        raise StreamCcsdError(
            "--alerts-per-day needs to know what a day is: fit with --set time_unit=seconds (or milliseconds, days), "
            "or give --alert-rate, a share of the transactions"
        )
    if transactions is None:
        raise StreamCcsdError(
            "--alerts-per-day needs to know how many transactions there are a day, and the model does not say: fit it "
            "again, or give --alert-rate, a share of the transactions"
        )
    if not 0 < alerts_per_day < transactions:
        raise StreamCcsdError(
            f"--alerts-per-day must lie between 0 and the {transactions:,.1f} transactions a day, got "
            f"{alerts_per_day:g}"
        )
    return float(alerts_per_day / transactions)


def time_at(share: float, times: FloatArray) -> float:
    """When so much of a stream's time has passed: what decides is where nearly all of its times lie."""
    ordered = np.sort(times)
    stray = len(ordered) // _STRAY
    first, last = float(ordered[stray]), float(ordered[-1 - stray])
    return first + share * (last - first)


@dataclass(frozen=True)
class FirstPart:
    """The beginning of a stream: where it ends, and everything in it."""

    until: float
    transactions: list[Transaction]

    @classmethod
    def of(cls, source: Source) -> FirstPart:
        """The first part of a stream's time, in the stream's own order.

        A few times at either end may be mistakes: what decides is where nearly all of them lie.

        Raises
        ------
        StreamCcsdError
            If there is too little in it to fit on.
        """
        times = np.fromiter((t.time for t in _transactions(source)), float)
        if not len(times):
            raise StreamCcsdError(f"{source.name} has no transaction to fit on")
        until = time_at(FIRST_PART, times)
        return cls(until, [t for t in _transactions(source) if t.time < until]).checked(source.name)

    def checked(self, name: str) -> FirstPart:
        """Itself, if there is enough in it to fit on; raises as :meth:`of`."""
        accounts = len({t.account for t in self.transactions})
        if len(self.transactions) < _FEWEST or accounts < 2:
            raise StreamCcsdError(
                f"the first {FIRST_PART:.0%} of the time of {name} hold {len(self.transactions):,} transactions "
                f"of {accounts:,} accounts, too few to fit a model on: at least {_FEWEST} of 2 are needed. Take a "
                "longer file, or a model of another one (stream-ccsd fit, then --model)"
            )
        return self

    def fit(self, settings: Settings, progress: Progress | None = None) -> Model:
        """A model of all of it. It says until when it was fitted: a resumed replay goes on from there."""
        model = fit(self.transactions, settings, progress)
        return with_facts(model, [t.time for t in self.transactions], fitted_until=self.until)

    def states(self, model: Model) -> dict[str, bytes]:
        """What its accounts are like at its end: as if it had been streamed, but for alerts."""
        states: dict[str, bytes] = {}
        engine = Engine(model, states, threshold=_NEVER)
        for batch in _batches(self.transactions):
            engine.process_many(batch)
        states.pop(ALERT_CAP, None)  # it begins with the stream
        return states


def _transactions(source: Source) -> Iterator[Transaction]:
    return (item.parsed for item in source.items() if isinstance(item.parsed, Transaction))


def _batches(transactions: Sequence[Transaction]) -> Iterable[Sequence[Transaction]]:
    return (transactions[i : i + _BATCH] for i in range(0, len(transactions), _BATCH))


# Share of the normal accounts that the model is fitted on; their transactions are not streamed.
_FITTED = 0.6


def simulated_replay(
    accounts: int, days: int, seed: int, settings: Settings, progress: Progress | None = None
) -> tuple[Model, ListSource]:
    """A model, and a source of transactions it has not seen, with the simulator's labels beside them."""
    stream = simulate(accounts=accounts, days=days, seed=seed)
    normal = shuffled(stream.normal_accounts(), seed)
    fitted = set(normal[: int(_FITTED * len(normal))])
    settings = population_settings(settings)
    model = fit((t for t in stream.transactions if t.account in fitted), settings, progress)
    events = [t for t in stream.transactions if t.account not in fitted]
    return with_facts(model, [t.time for t in events]), ListSource(
        f"simulated stream, seed {seed}", events, stream.fraud
    )


def population_settings(settings: Settings) -> Settings:
    """These settings, with the fields and the calendar of a simulated population where they leave them open."""
    unknown = set(settings.fields) - set(FIELDS)
    if unknown:
        raise StreamCcsdError(f"a simulated town has no {', '.join(sorted(unknown))}: it has {', '.join(FIELDS)}")
    settings = replace(settings, fields=settings.fields or FIELDS)
    if settings.time_unit not in (None, TIME_UNIT):  # another unit was chosen: our origin would be none of it
        return settings
    return replace(settings, time_unit=TIME_UNIT, time_origin=settings.time_origin or TIME_ORIGIN)


def write_simulated(population: Population, path: Path, progress: Progress | None = None) -> tuple[int, int]:
    """A stream of any size to a file, a day at a time: ``.csv`` or ``.parquet``, also ``.csv.gz``.

    Columns are those of a transaction, ``country`` and ``device``, then ``fraud`` (0 or 1) and ``pattern``. Returns
    transactions and frauds.
    """
    categories = np.array([population.category_name(m) for m in range(len(population.popularity))])
    patterns = np.array([*PATTERNS, ""])
    position = frauds = 0
    with _writer(path) as write:
        for number in range(population.days):
            rows = population.day(number)
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
                progress(number + 1, population.days)
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
