"""Kafka workers: how many transactions a second, how soon each is scored; beside a bare Faust agent and Quix Streams.

Everything runs on this machine, the broker and the load included. Workers are measured from the first message that is
sent; the peers find all of them there, and are measured from the first that they read.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

from offline.bench.peers import peer
from replay.simulator import simulate
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.fitting import fit
from stream_ccsd.kafka.connection import parse_brokers
from stream_ccsd.kafka.messages import transaction_message
from stream_ccsd.progress import Progress
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import Transaction

PARTITIONS = 4
_RATE = 1000
_LIBRARY_ACCOUNTS = 700
# The first seconds at a rate are those of a cold broker and a new group.
_WARM_UP = 20.0
_PATIENCE = 300.0


def measure_kafka(broker: str | None, transactions: int, seconds: float, progress: Progress) -> dict[str, Any]:
    """Rates of one and two workers, latency at a thousand a second, and both peers."""
    peer("confluent_kafka")
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        town = simulate(accounts=_LIBRARY_ACCOUNTS, days=180, seed=1)
        normal = town.normal_accounts()
        model = fit((t for t in town.transactions if t.account in normal), Settings())
        model.save(folder / "model")
        # Long enough that most transactions have a window behind them, and cost all that they can.
        stream = simulate(accounts=transactions // 150, days=150, seed=0).transactions[:transactions]
        progress(1, 6)
        brokers = stack.enter_context(_broker(broker, folder))
        load = [(t.account.encode(), transaction_message(t)) for t in stream]
        rates = []
        for count in (1, 2):
            with _Run(brokers, folder, count) as run:
                rates.append({"workers": count, "tx_per_s": run.rate(load)})
            progress(1 + count, 6)
        with _Run(brokers, folder, 1) as run, _no_pauses():
            latencies = run.latencies(stream, seconds)
        progress(4, 6)
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        _send(brokers, topic, load)
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


class _Run:
    """Workers on topics of their own."""

    def __init__(self, brokers: str, folder: Path, workers: int) -> None:
        self._brokers = brokers
        name = uuid.uuid4().hex[:8]
        self._topics = {kind: f"{kind}-{name}" for kind in ("transactions", "scores", "alerts", "dead_letters")}
        command = [sys.executable, "-m", "stream_ccsd", "worker", "--broker", f"kafka://{brokers}"]
        command += ["--model", str(folder / "model"), "--group", f"bench-{name}", "--log-level", "warning"]
        command += ["--partitions", str(PARTITIONS)]
        for kind, topic in self._topics.items():
            command += [f"--{kind.replace('_', '-')}", topic]
        self._ports = [_free_port() for _ in range(workers)]
        self._log = (folder / f"{name}.log").open("w+")
        self._processes = [
            subprocess.Popen(
                [*command, "--web-port", str(port), "--state-dir", str(folder / f"{name}-{port}")],
                stdout=self._log,
                stderr=self._log,
            )
            for port in self._ports
        ]

    def __enter__(self) -> _Run:
        try:
            self._wait(self._all_ready, "the workers to be ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(timeout=60)
        self._log.close()

    def rate(self, load: Sequence[tuple[bytes, bytes]]) -> float:
        """Transactions a second, from the first that is sent to the last that is scored."""
        # The first transactions compile and load code; they are not part of the measurement.
        _send(self._brokers, self._topics["transactions"], load[:_RATE])
        self._wait(lambda: self._scored() >= _RATE, "the first scores")
        rest = load[_RATE:]
        begun = time.perf_counter()
        _send(self._brokers, self._topics["transactions"], rest)
        self._wait(lambda: self._scored() >= len(load), "all scores")
        return len(rest) / (time.perf_counter() - begun)

    def latencies(self, stream: Sequence[Transaction], seconds: float) -> list[float]:
        """Milliseconds from sending to having the score, at a steady rate."""
        sent: dict[str, float] = {}
        latencies: list[float] = []
        wanted = min(len(stream), int(_RATE * (seconds + _WARM_UP)))
        reader = threading.Thread(target=self._read_scores, args=(sent, latencies, wanted), daemon=True)
        reader.start()
        producer = _producer(self._brokers, linger=0)
        begun = time.perf_counter()
        for number, t in enumerate(stream[:wanted]):
            while time.perf_counter() < begun + number / _RATE:
                producer.poll(0)
                time.sleep(0.001)
            sent[t.id] = time.perf_counter()
            producer.produce(self._topics["transactions"], transaction_message(t), t.account.encode())
        producer.flush()
        reader.join(timeout=60)
        if len(latencies) < wanted:
            raise StreamCcsdError(f"only {len(latencies)} of {wanted} transactions were scored")
        return latencies[int(_RATE * _WARM_UP) :]

    def _read_scores(self, sent: dict[str, float], latencies: list[float], wanted: int) -> None:
        consumer = _consumer(self._brokers)
        consumer.subscribe([self._topics["scores"]])
        deadline = time.monotonic() + _PATIENCE
        while len(latencies) < wanted and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            now = time.perf_counter()
            if message is not None and not message.error():
                latencies.append(1000 * (now - sent[json.loads(message.value())["id"]]))
        consumer.close()

    def _scored(self) -> int:
        if not hasattr(self, "_counter"):
            self._counter = _consumer(self._brokers)
        from confluent_kafka import TopicPartition

        ends = [
            self._counter.get_watermark_offsets(TopicPartition(self._topics["scores"], p), timeout=10)[1]
            for p in range(PARTITIONS)
        ]
        return sum(ends)

    def _all_ready(self) -> bool:
        assigned = 0
        for port in self._ports:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                    assigned += len(json.load(answer)["partitions"])
            except (OSError, urllib.error.HTTPError):
                return False
        return assigned == PARTITIONS

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not condition():
            if any(p.poll() is not None for p in self._processes) or time.monotonic() > deadline:
                self._log.seek(0)
                raise StreamCcsdError(f"waited for {what} in vain: {self._log.read()[-500:]}")
            time.sleep(0.02)


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
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE)
    try:
        return float(json.loads(done.stdout.strip().splitlines()[-1]))
    except (IndexError, ValueError) as error:
        raise StreamCcsdError(f"the peer {name} failed: {done.stderr[-500:]}") from error


def _send(brokers: str, topic: str, load: Sequence[tuple[bytes, bytes]]) -> None:
    _create(brokers, topic)
    producer = _producer(brokers, linger=20)
    for key, value in load:
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush()


def _create(brokers: str, topic: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": brokers})
    if topic not in admin.list_topics(timeout=10).topics:
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(timeout=20)


def _producer(brokers: str, linger: int) -> Any:
    from confluent_kafka import Producer

    # The partitioner of Java's and aiokafka's clients: the workers' outputs lie where their inputs do.
    return Producer({"bootstrap.servers": brokers, "linger.ms": linger, "partitioner": "murmur2_random"})


def _consumer(brokers: str) -> Any:
    from confluent_kafka import Consumer

    settings = {"group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 5}
    return Consumer({"bootstrap.servers": brokers, **settings})


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _broker(url: str | None, folder: Path) -> Iterator[str]:
    """The broker that was named, or one for development, started for the time of the measurement."""
    known = parse_brokers(url) if url else os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if known:
        yield known
        return
    path = Path(__file__).parents[2] / "deploy" / "kafka" / "broker.py"
    spec = spec_from_file_location("development_broker", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise StreamCcsdError("name a broker with --broker kafka://host:port, or run this in a checkout")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if module.missing():
        raise StreamCcsdError(f"name a broker with --broker kafka://host:port: to start one, {module.missing()}")
    broker = module.start(folder / "broker", jars=module.fetch_jars(folder / "jars"))
    try:
        yield broker.address
    finally:
        broker.stop()
