"""Workers and a broker for the time of a measurement: started, fed, watched and taken down."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.client import parse_brokers

PARTITIONS = 4
PATIENCE = 300.0


class Run:
    """Workers on topics of their own."""

    def __init__(self, brokers: str, folder: Path, workers: int) -> None:
        self.brokers = brokers
        name = uuid.uuid4().hex[:8]
        self.topics = {kind: f"{kind}-{name}" for kind in ("transactions", "scores", "alerts", "dead_letters")}
        command = [sys.executable, "-m", "stream_ccsd", "worker", "--broker", f"kafka://{brokers}"]
        command += ["--model", str(folder / "model"), "--group", f"bench-{name}", "--log-level", "warning"]
        command += ["--partitions", str(PARTITIONS)]
        for kind, topic in self.topics.items():
            command += [f"--{kind.replace('_', '-')}", topic]
        self.changelog = f"bench-{name}-accounts-changelog"
        self._ports = [free_port() for _ in range(workers)]
        self._log = (folder / f"{name}.log").open("w+")
        self._processes = [
            subprocess.Popen(
                [*command, "--web-port", str(port), "--state-dir", str(folder / f"{name}-{port}")],
                stdout=self._log,
                stderr=self._log,
            )
            for port in self._ports
        ]

    def __enter__(self) -> Run:
        try:
            self.wait(self._all_ready, "the workers to be ready")
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

    def send(self, load: Sequence[tuple[bytes, bytes]]) -> None:
        """Keys and values of transactions."""
        send(self.brokers, self.topics["transactions"], load)

    def metric(self, name: str) -> float:
        """The sum of a metric over the workers."""
        total = 0.0
        for port in self._ports:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
            total += sum(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))
        return total

    def scored(self) -> int:
        """How many scores there are."""
        if not hasattr(self, "_counter"):
            self._counter = make_consumer(self.brokers)
        from confluent_kafka import TopicPartition

        ends = [
            self._counter.get_watermark_offsets(TopicPartition(self.topics["scores"], p), timeout=10)[1]
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

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until it holds; not for ever, and not for workers that have ended."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if any(p.poll() is not None for p in self._processes) or time.monotonic() > deadline:
                self._log.seek(0)
                raise StreamCcsdError(f"waited for {what} in vain: {self._log.read()[-500:]}")
            time.sleep(0.02)


def send(brokers: str, topic: str, load: Sequence[tuple[bytes, bytes]]) -> None:
    """Keys and values to a topic, which is made if it is not there; returns when the broker has them."""
    create_topic(brokers, topic)
    producer = make_producer(brokers, linger=20)
    for key, value in load:
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush()


def create_topic(brokers: str, topic: str) -> None:
    """With as many partitions as all have here, unless it is there."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": brokers})
    if topic not in admin.list_topics(timeout=10).topics:
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(timeout=20)


def make_producer(brokers: str, linger: int) -> Any:
    """librdkafka's."""
    from confluent_kafka import Producer

    # The partitioner of Java's and aiokafka's clients: the workers' outputs lie where their inputs do.
    return Producer({"bootstrap.servers": brokers, "linger.ms": linger, "partitioner": "murmur2_random"})


def make_consumer(brokers: str) -> Any:
    """librdkafka's."""
    from confluent_kafka import Consumer

    settings = {"group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 5}
    return Consumer({"bootstrap.servers": brokers, **settings})


def free_port() -> int:
    """Of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_broker(url: str | None) -> None:
    """Raise if that is no address, before minutes go into what is measured there."""
    if url is not None:
        parse_brokers(url)


@contextmanager
def running_broker(url: str | None, folder: Path) -> Iterator[str]:
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
