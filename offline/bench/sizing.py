"""What a cluster needs: costs of one worker, measured, and multiplied out for rates and numbers of accounts.

The worker is measured at its dearest: nearly every account has its full history, and most transactions of a batch are
of different accounts, so that they bring states to read, to send and to store. Among millions of accounts each does:
the changelog is multiplied out with a state a transaction.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

import rocksdict

from offline.bench.kafka import population_model
from offline.bench.kafka_run import PARTITIONS, Run, check_broker, make_consumer, running_broker
from offline.peers import peer
from replay.sources.simulator.population import simulate
from stream_ccsd.files import Progress
from stream_ccsd.kafka.codec import is_account, transaction_message
from stream_ccsd.kafka.faust.table import store_options
from stream_ccsd.model.model import Model
from stream_ccsd.transaction import Transaction

RATES = (1_000, 10_000, 100_000)
ACCOUNTS = (1_000_000, 10_000_000, 100_000_000)
_POPULATION = 400  # accounts; more are copies of theirs
_LAST = 0.2  # share of the stream that is measured, when histories are full
_WEIGHED, _WRITES = 20_000, 3  # states in the database that is weighed, and how often each is written
_TOGETHER = 1000
_FRESH = 1.2  # seconds after which a worker's metrics are made anew
_GB = 1e9


@dataclass(frozen=True)
class Assumed:
    """What is neither measured nor asked for: how much room to leave."""

    busy: float = 0.6  # share of a worker's core that is planned with
    partitions_a_worker: int = 2  # more than one: a topic that has states cannot get further ones
    fewest_partitions: int = 4
    uncompacted_hours: float = 6.0  # the changelog keeps every state that long (min.compaction.lag.ms)
    cache_mb_a_partition: float = 72.0  # RocksDB's block cache and write buffers at their fullest; here they hardly are


@dataclass(frozen=True)
class Measured:
    """Costs of one worker in this run."""

    transactions: int  # that were measured
    accounts: int
    states_per_transaction: float  # written to the changelog; 1 if no batch had an account twice
    cpu_us_per_transaction: float  # of the worker's process, all of its threads
    worker_mb: float  # resident, at the end
    state_bytes_per_account: float  # a full one, with its key, as the changelog holds it
    store_bytes_per_account: float  # in RocksDB, each written several times
    transaction_bytes: float  # of messages, keys included
    score_bytes: float
    alert_bytes_per_transaction: float


def measure_sizing(
    broker: str | None, accounts: int, days: int, progress: Progress, model: Model | None = None
) -> dict[str, Any]:
    """Costs of one worker with that many accounts of so many days, and what follows from them."""
    peer("confluent_kafka")
    check_broker(broker)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (model or population_model()).save(folder / "model")
        load = [(t.account.encode(), transaction_message(t)) for t in _stream(accounts, days)]
        progress(1, 5)
        with running_broker(broker, folder) as brokers, Run(brokers, folder, 1) as run:
            first = int(len(load) * (1 - _LAST))
            run.send(load[:first])
            run.wait(lambda: run.scored() >= first, "the first scores")
            progress(2, 5)
            cpu, before = _cpu_seconds(run), _weigh(run, run.changelog)
            run.send(load[first:])
            run.wait(lambda: run.scored() >= len(load), "all scores")
            cpu = _cpu_seconds(run) - cpu
            progress(3, 5)
            weights = {kind: _weigh(run, run.topics[kind]) for kind in ("transactions", "scores", "alerts")}
            after = _weigh(run, run.changelog)
            memory = run.metric("process_resident_memory_bytes")
        progress(4, 5)
        count = len(load) - first
        state = after.newest_bytes / after.keys
        measured = Measured(
            transactions=count,
            accounts=after.keys,
            states_per_transaction=(after.messages - before.messages) / count,
            cpu_us_per_transaction=1e6 * cpu / count,
            worker_mb=memory / 1e6,
            state_bytes_per_account=state,
            store_bytes_per_account=_stored_bytes(folder / "weighed", round(state)),
            transaction_bytes=weights["transactions"].all_bytes / len(load),
            score_bytes=weights["scores"].all_bytes / len(load),
            alert_bytes_per_transaction=weights["alerts"].all_bytes / len(load),
        )
        progress(5, 5)
    return sizing(measured)


def sizing(measured: Measured, assumed: Assumed | None = None) -> dict[str, Any]:
    """What was measured, what was assumed, and what follows for each rate and number of accounts, kept apart."""
    assumed = assumed or Assumed()
    rows = [multiplied(measured, assumed, rate, accounts) for rate in RATES for accounts in ACCOUNTS]
    return {"measured": asdict(measured), "assumed": asdict(assumed), "multiplied": rows}


def multiplied(measured: Measured, assumed: Assumed, rate: int, accounts: int) -> dict[str, float]:
    """Workers for that rate and that many accounts, and disks; brokers' for one replica."""
    workers = max(1, ceil(rate * measured.cpu_us_per_transaction / 1e6 / assumed.busy))
    partitions = max(assumed.fewest_partitions, workers * assumed.partitions_a_worker)
    messages = measured.transaction_bytes + measured.score_bytes + measured.alert_bytes_per_transaction
    uncompacted = rate * 3600 * assumed.uncompacted_hours * measured.state_bytes_per_account
    return {
        "rate": rate,
        "accounts": accounts,
        "cores": workers,  # one a worker
        "partitions": partitions,
        "memory_gb": (workers * measured.worker_mb + partitions * assumed.cache_mb_a_partition) / 1e3,
        "store_gb": accounts * measured.store_bytes_per_account / _GB,
        "changelog_gb": (accounts * measured.state_bytes_per_account + uncompacted) / _GB,
        "topics_gb_a_day": rate * 86_400 * messages / _GB,
    }


def _stream(accounts: int, days: int) -> Iterator[Transaction]:
    """A population that is copied until it has that many accounts, all copies of a transaction one after the other."""
    copies = range(max(1, accounts // _POPULATION))
    for t in simulate(accounts=min(accounts, _POPULATION), days=days, seed=0).transactions:
        for copy in copies:
            yield replace(t, account=f"{t.account}-{copy}", id=f"{t.id}-{copy}")


def _cpu_seconds(run: Run) -> float:
    """Of the workers so far."""
    time.sleep(_FRESH)
    return run.metric("process_cpu_seconds_total")


@dataclass
class _Weight:
    """What a topic holds; ``newest`` are the bytes of each account's newest message."""

    messages: int
    all_bytes: int
    newest: Mapping[bytes, int]

    @property
    def keys(self) -> int:
        return len(self.newest)

    @property
    def newest_bytes(self) -> int:
        return sum(self.newest.values())


def _weigh(run: Run, topic: str) -> _Weight:
    """Keys and values; what Kafka puts around them, some ten bytes a message, is left out."""
    from confluent_kafka import TopicPartition

    consumer = make_consumer(run.brokers)
    places = [TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)]
    ends = [consumer.get_watermark_offsets(place, timeout=10)[1] for place in places]
    consumer.assign(places)
    wanted, count, total = sum(ends), 0, 0
    newest: dict[bytes, int] = {}
    while count < wanted:
        for message in consumer.consume(10_000, timeout=1.0):
            count += 1
            size = len(message.key() or b"") + len(message.value() or b"")
            total += size
            if is_account(message.key()):
                newest[message.key()] = size
    consumer.close()
    return _Weight(wanted, total, newest)


def _stored_bytes(folder: Path, size: int) -> float:
    """Bytes an account of a store like a worker's, in which each state was written several times, in any order."""
    database = rocksdict.Rdict(str(folder), store_options().as_options())
    for turn in range(_WRITES):
        numbers = Random(turn).sample(range(_WEIGHED), _WEIGHED)
        for first in range(0, _WEIGHED, _TOGETHER):
            batch = rocksdict.WriteBatch(raw_mode=True)
            for number in numbers[first : first + _TOGETHER]:
                key = b"account-%09d" % number
                batch.put(key, os.urandom(max(1, size - len(key))))
            database.write(batch)
    database.close()
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / _WEIGHED
