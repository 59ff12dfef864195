"""Kafka workers: how many transactions a second, how soon each is scored; beside a bare Faust agent and Quix Streams.

Everything runs on this machine, the broker and the load included. Workers are measured from the first message that is
sent; the peers find all of them there, and are measured from the first that they read.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from offline.bench.kafka_run import (
    PARTITIONS,
    PATIENCE,
    Run,
    check_broker,
    make_consumer,
    make_producer,
    running_broker,
    send,
)
from offline.peers import peer
from replay.sources.simulator.population import simulate
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import Progress
from stream_ccsd.fitting import fit
from stream_ccsd.kafka.codec import transaction_message
from stream_ccsd.model.model import Model
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import Transaction

_RATE = 1000
_LIBRARY_ACCOUNTS = 700
# The first seconds at a rate are those of a cold broker and a new group.
_WARM_UP = 20.0


def measure_kafka(broker: str | None, transactions: int, seconds: float, progress: Progress) -> dict[str, Any]:
    """Rates of one and two workers, latency at a thousand a second, and both peers."""
    peer("confluent_kafka")
    check_broker(broker)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        model = population_model()
        model.save(folder / "model")
        # Long enough that most transactions have a window behind them, and cost all that they can.
        stream = simulate(accounts=transactions // 150, days=150, seed=0).transactions[:transactions]
        progress(1, 6)
        brokers = stack.enter_context(running_broker(broker, folder))
        load = [(t.account.encode(), transaction_message(t)) for t in stream]
        rates = []
        for count in (1, 2):
            with Run(brokers, folder, count) as run:
                rates.append({"workers": count, "tx_per_s": _rate(run, load)})
            progress(1 + count, 6)
        with Run(brokers, folder, 1) as run, _no_pauses():
            latencies = _latencies(run, stream, seconds)
        progress(4, 6)
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        send(brokers, topic, load)
        bare = _peer_rate("faust", brokers, topic, len(load))
        progress(5, 6)
        quix = _peer_rate("quix", brokers, topic, len(load))
        progress(6, 6)
    return {
        "transactions": len(load),
        "library_windows": model.facts["library_windows"],
        "with_divergence": _with_divergence(stream, model.settings.window),
        "partitions": PARTITIONS,
        "workers": rates,
        "p50_ms_at_1000": float(np.percentile(latencies, 50)),
        "p99_ms_at_1000": float(np.percentile(latencies, 99)),
        "bare_faust_per_s": bare,
        "quix_per_s": quix,
    }


def population_model() -> Model:
    """A model of the normal accounts of a simulated population."""
    population = simulate(accounts=_LIBRARY_ACCOUNTS, days=180, seed=1)
    normal = population.normal_accounts()
    return fit((t for t in population.transactions if t.account in normal), Settings())


def _rate(run: Run, load: Sequence[tuple[bytes, bytes]]) -> float:
    """Transactions a second, from the first that is sent to the last that is scored."""
    # The first transactions compile and load code; they are not part of the measurement.
    run.send(load[:_RATE])
    run.wait(lambda: run.scored() >= _RATE, "the first scores")
    rest = load[_RATE:]
    begun = time.perf_counter()
    run.send(rest)
    run.wait(lambda: run.scored() >= len(load), "all scores")
    return len(rest) / (time.perf_counter() - begun)


def _latencies(run: Run, stream: Sequence[Transaction], seconds: float) -> list[float]:
    """Milliseconds from sending to having the score, at a steady rate."""
    sent: dict[str, float] = {}
    latencies: list[float] = []
    wanted = min(len(stream), int(_RATE * (seconds + _WARM_UP)))
    reader = threading.Thread(target=_read_scores, args=(run, sent, latencies, wanted), daemon=True)
    reader.start()
    producer = make_producer(run.brokers, linger=0)
    begun = time.perf_counter()
    for number, t in enumerate(stream[:wanted]):
        while time.perf_counter() < begun + number / _RATE:
            producer.poll(0)
            time.sleep(0.001)
        sent[t.id] = time.perf_counter()
        producer.produce(run.topics["transactions"], transaction_message(t), t.account.encode())
    producer.flush()
    reader.join(timeout=60)
    if len(latencies) < wanted:
        raise StreamCcsdError(f"only {len(latencies)} of {wanted} transactions were scored")
    return latencies[int(_RATE * _WARM_UP) :]


def _read_scores(run: Run, sent: dict[str, float], latencies: list[float], wanted: int) -> None:
    consumer = make_consumer(run.brokers)
    consumer.subscribe([run.topics["scores"]])
    deadline = time.monotonic() + PATIENCE
    while len(latencies) < wanted and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        now = time.perf_counter()
        if message is not None and not message.error():
            latencies.append(1000 * (now - sent[json.loads(message.value())["id"]]))
    consumer.close()


@contextmanager
def _no_pauses() -> Iterator[None]:
    """The garbage collector would stop the clock of this process, not the workers'."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _with_divergence(stream: Sequence[Transaction], window: int) -> float:
    """Share of the transactions that have a full window behind them."""
    seen: Counter[str] = Counter()
    full = 0
    for t in stream:
        full += seen[t.account] >= window
        seen[t.account] += 1
    return full / len(stream)


def _peer_rate(name: str, brokers: str, topic: str, count: int) -> float:
    command = [sys.executable, "-m", "offline.bench.kafka_peers", name, brokers, topic, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    try:
        return float(json.loads(done.stdout.strip().splitlines()[-1]))
    except (IndexError, ValueError) as error:
        raise StreamCcsdError(f"the peer {name} failed: {done.stderr[-500:]}") from error
