"""Real workers on a real broker: start them, kill them, feed them, read what they wrote, and say what it should be."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections import defaultdict
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from stream_ccsd.engine import Engine
from stream_ccsd.kafka.client import Security
from stream_ccsd.kafka.codec import transaction_message
from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.model.model import Model

PARTITIONS = 4
SCORE_FIELDS = ("status", "evidence", "takeover", "divergence", "score", "maximum", "model")
PATIENCE = 90.0


class Worker:
    """A worker process of its own, with its own state folder."""

    kind = "worker"

    def __init__(self, cluster, name, **settings):
        self.folder = cluster.folder / name
        self.log = cluster.folder / f"{name}.log"
        self._command = [sys.executable, "-m", "stream_ccsd", self.kind, "--config", str(cluster.config)]
        given = {**self.needed(), **settings}
        for option, value in given.items():
            self._command += [f"--{option.replace('_', '-')}", str(value)]
        self._environment = {**os.environ, **cluster.environment}
        self.process = None
        self.start()

    def needed(self):
        return {"state_dir": self.folder}

    def start(self):
        self._begun = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stderr=log, stdout=log, env=self._environment)

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Ask it to end; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        return self.process.wait(timeout=40)

    def said(self, message=None):
        """The lines it has logged since it was last started: each a JSON object."""
        text = self.log.read_bytes()[self._begun :].decode()
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n")]
        return [line for line in lines if message is None or line["message"] == message]

    def url(self):
        starts = f"{self.kind}{'er' if self.kind == 'learn' else ''} starts"
        wait_for(lambda: self.said(starts), f"{self.log} to begin", self)
        return self.said(starts)[-1]["web"]

    def ask(self, path):
        """Status and text of a page."""
        try:
            with urllib.request.urlopen(self.url() + path, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name):
        """The sum of a metric over its labels."""
        _, text = self.ask("/metrics")
        lines = [line for line in text.splitlines() if line.startswith((name + " ", name + "{"))]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def wait_until_ready(self):
        wait_for(lambda: self.said("ready"), f"{self.log} to be ready", self)


class Learner(Worker):
    """A learner process."""

    kind = "learn"

    def needed(self):
        return {"web_port": 0, "grace": 0.5}


def wait_for(condition, what, worker=None, patience=PATIENCE):
    deadline = time.monotonic() + patience
    while not condition():
        if worker is not None and worker.process.poll() is not None:
            raise AssertionError(f"the worker ended while waiting for {what}: {worker.log.read_text()[-2000:]}")
        if time.monotonic() > deadline:
            raise AssertionError(
                f"waited {patience:g} s for {what}: {worker.log.read_text()[-2000:] if worker else ''}"
            )
        time.sleep(0.1)


class Cluster:
    """Topics of its own on a broker, workers on them, and everything that went in."""

    def __init__(self, brokers, folder: Path, model_folder: Path, security=None, environment=None, **settings):
        self.brokers, self.folder = brokers, folder
        self.security = security or Security()
        self.environment = environment or {}
        name = uuid.uuid4().hex[:8]
        values = {
            "broker": f"kafka://{brokers}",
            "model": str(model_folder),
            "group": f"g-{name}",
            "transactions": f"transactions-{name}",
            "scores": f"scores-{name}",
            "alerts": f"alerts-{name}",
            "dead_letters": f"dead-letters-{name}",
            "verdicts": f"verdicts-{name}",
            "partitions": PARTITIONS,
            "web_port": 0,
            "session_timeout": 3.0,
            "heartbeat_interval": 0.5,
            "commit_interval": 0.5,
            "model_poll": 0.5,
            "log_format": "json",
            **settings,
        }
        self.config = folder / "worker.toml"
        self.config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
        self.settings = WorkerSettings.load({}, self.config, self.environment)
        self.workers = []
        asyncio.run(self._create())

    async def _create(self):
        admin = AIOKafkaAdminClient(bootstrap_servers=self.brokers, **self.security.client_options())
        await admin.start()
        topics = ("transactions", "scores", "alerts", "dead_letters", "verdicts")
        names = [getattr(self.settings, topic) for topic in topics]
        await admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])
        await admin.close()

    def worker(self, name, **settings):
        worker = Worker(self, name, **settings)
        self.workers.append(worker)
        return worker

    def learner(self, name, models, **settings):
        learner = Learner(self, name, models=models, **settings)
        self.workers.append(learner)
        return learner

    def stop(self):
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGCONT)
                worker.kill()

    def send(self, messages, rate=None, during=lambda sent: None, topic=None):
        """Messages as (key, value), at so many a second; ``during`` is called some times a second with the count."""

        async def run():
            producer = AIOKafkaProducer(
                bootstrap_servers=self.brokers,
                enable_idempotence=True,
                max_request_size=1 << 24,
                **self.security.client_options(),
            )
            await producer.start()
            begun, chunk = time.monotonic(), max(1, (rate or 20_000) // 10)
            try:
                for start in range(0, len(messages), chunk):
                    for key, value in messages[start : start + chunk]:
                        await producer.send(topic or self.settings.transactions, value, key=key)
                    await producer.flush()
                    await asyncio.to_thread(during, start + chunk)
                    if rate:
                        await asyncio.sleep(max(0.0, begun + (start + chunk) / rate - time.monotonic()))
            finally:
                await producer.stop()

        asyncio.run(run())

    def records(self, topic):
        """Everything a topic holds, by partition, in order."""

        async def run():
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.brokers, auto_offset_reset="earliest", **self.security.client_options()
            )
            await consumer.start()
            try:
                places = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic) or ())]
                places = places or [TopicPartition(topic, p) for p in range(PARTITIONS)]
                ends = await consumer.end_offsets(places)
                consumer.assign(places)
                found = []
                for place in places:
                    while await consumer.position(place) < ends[place]:
                        batches = await consumer.getmany(timeout_ms=1000)
                        found += [record for batch in batches.values() for record in batch]
                return sorted(found, key=lambda r: (r.partition, r.offset))
            finally:
                await consumer.stop()

        return asyncio.run(run())

    def count(self, *topics):
        """How many messages topics hold."""

        async def run():
            consumer = AIOKafkaConsumer(bootstrap_servers=self.brokers, **self.security.client_options())
            await consumer.start()
            try:
                places = [TopicPartition(topic, p) for topic in topics for p in range(PARTITIONS)]
                return sum((await consumer.end_offsets(places)).values())
            finally:
                await consumer.stop()

        return asyncio.run(run())

    def wait_until_done(self, effects, patience=PATIENCE):
        """Until so many different messages had an effect or were refused."""
        deadline = time.monotonic() + patience
        while True:
            if self.count(self.settings.scores, self.settings.dead_letters) >= effects:
                answered = {place_of(r) for r in self.records(self.settings.scores)}
                answered |= {place_of(r) for r in self.records(self.settings.dead_letters)}
                if len(answered) >= effects:
                    return
            for worker in self.workers:
                code = worker.process.poll()
                assert code in (None, 0, -signal.SIGKILL), worker.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self._what_is_missing(patience)
            time.sleep(0.3)

    def _what_is_missing(self, patience):
        sent = {(r.partition, r.offset) for r in self.records(self.settings.transactions)}
        topics = (self.settings.scores, self.settings.dead_letters)
        missing = sorted(sent - {place_of(r) for topic in topics for r in self.records(topic)})
        said = [f"{w.log}: {w.ask('/readyz')}" for w in self.workers if w.process.poll() is None]
        return f"not done after {patience:g} s: {len(missing)} missing, {missing[:3]} to {missing[-3:]}; {said}"


def place_of(record):
    """Partition and offset of the transaction that a record is about."""
    headers = dict(record.headers)
    if "position" in headers:
        return int(headers["partition"]), int(headers["position"])
    said = json.loads(record.value)
    return said["partition"], said["position"]


def messages(transactions):
    return [(t.account.encode(), transaction_message(t)) for t in transactions]


class Expectation:
    """What an in-process engine says about the same transactions."""

    def __init__(self, model: Model, transactions, threshold=None):
        self.results = Engine(model, threshold=threshold).process_many(list(transactions))
        self.entered = [r for r in self.results if r.entered]
        self.refused = [r for r in self.results if not r.entered]
        self.alerts = [r.alert for r in self.entered if r.alert]

    def check(self, cluster, exactly_once_each=False, models=None):
        """Every score and alert is there, with its bits, in its account's order, and none is there twice."""
        scores = self._unique(cluster.records(cluster.settings.scores), exactly_once_each)
        alerts = self._unique(cluster.records(cluster.settings.alerts), exactly_once_each)
        said = defaultdict(list)
        for record in scores:
            score = json.loads(record.value)
            assert record.key.decode() == score["account"]
            said[score["account"]].append(score)
        meant = defaultdict(list)
        for result in self.entered:
            meant[result.transaction.account].append(result)
        assert {a: [s["id"] for s in found] for a, found in said.items()} == {
            a: [r.transaction.id for r in wanted] for a, wanted in meant.items()
        }
        for account, wanted in meant.items():
            for score, result in zip(said[account], wanted, strict=True):
                for name in SCORE_FIELDS:
                    assert score[name] == getattr(result, name), (name, score)
                assert score["alert"] == (result.alert is not None)
        found = {json.loads(r.value)["id"]: json.loads(r.value) for r in alerts}
        assert len(found) == len(alerts) == len(self.alerts)
        for alert in self.alerts:
            sent = found[alert.id]
            assert sent["headline"] == alert.headline
            assert {name: sent[name] for name in alert.to_dict()} == json.loads(json.dumps(alert.to_dict()))

    def _unique(self, records, exactly_once_each):
        """First occurrences; further ones must be the same to the byte, and come only where failures are."""
        first = {}
        for record in records:
            place = place_of(record)
            if place in first:
                assert not exactly_once_each, f"{place} is there twice"
                assert (record.key, record.value) == (first[place].key, first[place].value)
            first.setdefault(place, record)
        return list(first.values())
