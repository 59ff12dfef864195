"""What topics hold and what happens to them: transactions, codecs, policies, partitions added, topics made anew."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import uuid

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from typer.testing import CliRunner

from stream_ccsd.cli.main import app
from stream_ccsd.kafka.client import BrokerError
from stream_ccsd.kafka.faust.metadata import Topic, describe
from stream_ccsd.kafka.follow import parse_alert
from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.kafka.topics import TopicsError, TopicsSeen, TopicWatch, look_at_topics
from stream_ccsd.transaction import Transaction
from tests.kafka.cluster import PARTITIONS, Expectation, messages, wait_for


def administer(brokers, act):
    """What an administrator does."""

    async def run():
        admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
        await admin.start()
        try:
            return await act(admin)
        finally:
            await admin.close()

    return asyncio.run(run())


def make_anew(brokers, name, config=None):
    async def act(admin):
        before = (await describe(admin, [name])).topics[name].id
        await admin.delete_topics([name])
        while True:
            await admin.create_topics([NewTopic(name, PARTITIONS, 1, topic_configs=config or {})])
            now = (await describe(admin, [name])).topics.get(name)
            if now is not None and now.id != before:
                return
            await asyncio.sleep(0.2)

    administer(brokers, act)


def in_transactions(cluster, parts, topic=None):
    """Send messages in transactions of their own, of which some are aborted."""

    async def run():
        producer = AIOKafkaProducer(bootstrap_servers=cluster.brokers, transactional_id=uuid.uuid4().hex)
        await producer.start()
        try:
            for part, committed in parts:
                await producer.begin_transaction()
                for key, value in part:
                    await producer.send(topic or cluster.settings.transactions, value, key=key)
                await (producer.commit_transaction() if committed else producer.abort_transaction())
        finally:
            await producer.stop()

    asyncio.run(run())


def compressed(cluster, topic, found, codec):
    async def run():
        producer = AIOKafkaProducer(bootstrap_servers=cluster.brokers, compression_type=codec)
        await producer.start()
        try:
            for key, value in found:
                await producer.send(topic, value, key=key)
        finally:
            await producer.stop()

    asyncio.run(run())


def last_words(worker):
    """How a worker ended that could not go on: the reason in the last line of its log."""
    assert worker.process.wait(timeout=60) == 1
    line = json.loads(worker.log.read_text().splitlines()[-1])
    assert line["message"] == "the worker ends"
    return line["reason"]


def test_only_committed_transactions_count(cluster, many, model):
    part = many[:2000]
    never = [Transaction(t.account, t.time, 10 * t.amount + 1, t.category, t.merchant, "no" + t.id) for t in part]
    parts = []
    for start in range(0, len(part), 200):
        parts += [(messages(part[start : start + 200]), True), (messages(never[start : start + 100]), False)]
    worker = cluster.worker("a")
    in_transactions(cluster, parts[:10])
    cluster.wait_until_done(len(part) // 2)
    assert worker.stop() == 0
    # Recovery passes over what was aborted in the changelog too, and ends although a marker is its end.
    states = cluster.records(cluster.settings.changelog)
    in_transactions(cluster, [([(r.key, b"never") for r in states[:40]], False)], cluster.settings.changelog)
    shutil.rmtree(worker.folder)
    worker.start()
    worker.wait_until_ready()
    in_transactions(cluster, parts[10:])
    cluster.wait_until_done(len(part))
    wait_for(lambda: worker.metric("stream_ccsd_lag") == 0, "no lag across the markers", worker)
    Expectation(model, part).check(cluster, exactly_once_each=True)
    assert cluster.count(cluster.settings.dead_letters) == 0
    assert "stream_ccsd_lag{" in worker.ask("/metrics")[1]
    assert worker.stop() == 0


def check(cluster, **environment):
    command = [sys.executable, "-m", "stream_ccsd", "worker", "--check", "--config", str(cluster.config), "--json", "-"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


def test_a_check_before_there_are_any_topics(brokers, model_folder):
    """On a new broker, which is where people begin."""
    names = {
        kind: f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("group", "transactions", "scores", "alerts", "verdicts")
    }
    command = [sys.executable, "-m", "stream_ccsd", "worker", "--check", "--broker", f"kafka://{brokers}"]
    command += ["--model", str(model_folder), "--dead-letters", f"letters-{names['group']}", "--json", "-"]
    command += [part for kind, name in names.items() for part in (f"--{kind}", name)]
    looked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert looked.returncode == 0, looked.stderr
    topics = json.loads(looked.stdout)["topics"]
    assert names["transactions"] in topics
    assert not any(topic["exists"] or topic["messages_read"] for topic in topics.values())


def test_every_codec_is_read(cluster, many, model, tmp_path):
    part = many[:2000]
    worker = cluster.worker("a")
    for number, codec in enumerate(("zstd", "lz4", "snappy", "gzip")):
        sent = messages(part[500 * number : 500 * number + 500])
        compressed(cluster, cluster.settings.transactions, sent, codec)
    cluster.wait_until_done(len(part))
    Expectation(model, part).check(cluster, exactly_once_each=True)
    assert worker.stop() == 0
    # Messages of a changelog are compressed where its topic says so: the newest states, once more.
    states = [(r.key, r.value) for r in cluster.records(cluster.settings.changelog)]
    compressed(cluster, cluster.settings.changelog, states[-10:], "zstd")
    shutil.rmtree(worker.folder)
    worker.start()
    worker.wait_until_ready()
    assert worker.stop() == 0
    good = check(cluster)
    assert good.returncode == 0, good.stderr
    read = {name: topic["messages_read"] for name, topic in json.loads(good.stdout)["topics"].items()}
    assert read[cluster.settings.transactions] > 0
    assert read[cluster.settings.dead_letters] == 0
    (tmp_path / "cramjam.py").write_text("raise ImportError('none', name='cramjam')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    lacking = check(cluster, PYTHONPATH=path)
    assert lacking.returncode == 1
    assert "pip install 'stream-ccsd[kafka]'" in lacking.stderr


FOREIGN = [
    None,
    b"",
    b"[" * 100_000,
    b"7",
    b'{"headline": "h"}',
    b'{"headline": "h", "account": "a", "partition": 0, "position": 1}',
    b'{"headline": "h", "account": "a", "partition": 0, "position": 1, "time": "noon"}',
    b'{"headline": "h", "account": "a", "partition": 0, "position": 1, "time": NaN}',
    b'{"headline": "h", "account": "a", "partition": 0, "position": 1, "time": true}',
    b'{"headline": "h", "account": "a", "partition": 0, "position": 1, "time": ' + b"9" * 400 + b"}",
    b'{"headline": 1, "account": "a", "partition": 0, "position": 1, "time": 1}',
    b'{"headline": "h", "account": ["a"], "partition": 0, "position": 1, "time": 1}',
    b'{"headline": "h", "account": "a", "partition": [], "position": 1.5, "time": 1}',
]


@pytest.mark.parametrize("value", FOREIGN, ids=range(len(FOREIGN)))
def test_what_is_no_alert(value):
    assert parse_alert(value) is None


def test_foreign_messages_among_alerts_are_passed_over(cluster):
    topic = cluster.settings.alerts
    alert = json.dumps({"headline": "much", "account": "a", "partition": 0, "position": 1, "time": 17.5}).encode()
    key = b"one"  # all in one partition, in order
    compressed(cluster, topic, [*((key, v) for v in FOREIGN), (key, alert)], "zstd")
    url = f"kafka://{cluster.brokers}/{topic}"
    for style in ("table", "json"):
        arguments = ["alerts", "--from", url, "--beginning", "--limit", "1", "--since", "3", "--format", style]
        found = CliRunner().invoke(app, arguments)
        assert found.exit_code == 0, found.output
        assert "much" in found.stdout
        assert f"{len(FOREIGN)} messages of {topic} are no alerts" in found.stderr


def test_a_mistyped_topic_is_said_and_not_made(brokers):
    name = f"alrets-{uuid.uuid4().hex[:8]}"
    found = CliRunner().invoke(app, ["alerts", "--from", f"kafka://{brokers}/{name}"])
    assert isinstance(found.exception, BrokerError)
    assert f"no topic {name!r}" in str(found.exception)
    assert name not in administer(brokers, lambda admin: admin.list_topics())


@pytest.mark.parametrize(
    ("which", "config", "changes", "said"),
    [
        ("changelog", {"cleanup.policy": "delete"}, {}, "would be deleted with time"),
        ("changelog", {"cleanup.policy": "compact,delete"}, {}, "cleanup.policy=compact,delete"),
        ("changelog", {"cleanup.policy": "compact"}, {}, None),
        ("transactions", {"cleanup.policy": "compact"}, {}, "vanish before they are read"),
        ("transactions", {"min.insync.replicas": "2"}, {}, "could ever be confirmed"),
        ("transactions", {}, {"replication": 3}, "has 1 brokers"),
        ("transactions", {}, {}, None),
    ],
)
def test_topics_that_would_lose_something_are_refused(brokers, which, config, changes, said):
    name = uuid.uuid4().hex[:8]
    topics = {field: f"{field}-{name}" for field in ("group", "transactions", "scores", "alerts", "dead_letters")}
    settings = WorkerSettings(broker=f"kafka://{brokers}", **topics, **changes)
    new = NewTopic(getattr(settings, which), PARTITIONS, 1, topic_configs=config)
    administer(brokers, lambda admin: admin.create_topics([new]))
    # The controller has made it; a broker under load may hear of it a little later.
    wait_for(lambda: new.name in administer(brokers, lambda admin: admin.list_topics()), "the topic")
    if said is None:
        assert getattr(settings, which) in asyncio.run(look_at_topics(settings)).topics
    else:
        with pytest.raises(TopicsError, match=said):
            asyncio.run(look_at_topics(settings))


def test_partitions_that_are_added_end_the_worker(cluster, many):
    worker = cluster.worker("a")
    worker.wait_until_ready()
    cluster.send(messages(many[:200]))
    cluster.wait_until_done(200)
    more = {cluster.settings.transactions: NewPartitions(PARTITIONS + 2)}
    administer(cluster.brokers, lambda admin: admin.create_partitions(more))
    assert "accounts would lose their state" in last_words(worker)
    worker.start()  # and it says the same when it is started again
    assert "accounts would lose their state" in last_words(worker)


def test_a_topic_made_anew_ends_the_worker(cluster, many):
    worker = cluster.worker("a")
    cluster.send(messages(many[:500]))
    cluster.wait_until_done(500)
    make_anew(cluster.brokers, cluster.settings.transactions)
    assert "made anew" in last_words(worker)
    cluster.send(messages(many[:2000]))  # more than the states have seen: only the topic's id tells
    worker.start()
    assert "made anew" in last_words(worker)


def test_a_changelog_that_came_back_by_itself_ends_the_worker(cluster, many):
    worker = cluster.worker("a")
    cluster.send(messages(many[:500]))
    cluster.wait_until_done(500)
    make_anew(cluster.brokers, cluster.settings.changelog)
    assert "made anew" in last_words(worker)
    worker.start()
    assert "cleanup.policy=delete" in last_words(worker)
    make_anew(cluster.brokers, cluster.settings.changelog, {"cleanup.policy": "compact"})
    worker.start()  # the store has seen more than there is
    assert "delete the folder" in last_words(worker)


def test_topics_are_compared_by_what_matters():
    settings = WorkerSettings()
    known = {settings.transactions: Topic(4, "a"), settings.changelog: Topic(4, "b")}
    watch = TopicWatch(settings, TopicsSeen(known))
    watch.compare(known)
    watch.compare({**known, settings.transactions: Topic(4, None)})  # an older broker of a cluster does not say
    watch.compare({settings.changelog: Topic(4, "b")})  # one look may miss a topic
    watch.compare(known)
    watch.compare({settings.changelog: Topic(4, "b")})
    watch.compare({settings.changelog: Topic(4, "b")})
    with pytest.raises(TopicsError, match="was deleted"):
        watch.compare({settings.changelog: Topic(4, "b")})
    with pytest.raises(TopicsError, match="made anew"):
        watch.compare({**known, settings.changelog: Topic(4, "c")})
    with pytest.raises(TopicsError, match="and had 4"):
        watch.compare({settings.transactions: Topic(5, "a"), settings.changelog: Topic(5, "b")})
