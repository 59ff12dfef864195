"""``replay --to kafka://``: what is in the topic is what was in the source, once, and in each account's order."""

import asyncio
import json
import uuid

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from typer.testing import CliRunner

from replay.produce import produce
from replay.sources.simulator.population import FIELDS
from replay.sources.source import ListSource
from stream_ccsd.cli.main import app
from stream_ccsd.fields import declared
from stream_ccsd.fitting import fit
from stream_ccsd.kafka.client import BrokerError, parse_target
from stream_ccsd.kafka.codec import transaction_message
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import Schema
from tests.kafka.cluster import Cluster, Expectation


@pytest.fixture
def topic(brokers):
    name = f"t-{uuid.uuid4().hex[:8]}"

    async def create():
        admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
        await admin.start()
        await admin.create_topics([NewTopic(name, num_partitions=4, replication_factor=1)])
        await admin.close()

    asyncio.run(create())
    return name


def consumed(brokers, topic, count):
    """The messages of a topic, by partition, in order."""

    async def run():
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=brokers, auto_offset_reset="earliest")
        await consumer.start()
        found = {}
        try:
            while sum(map(len, found.values())) < count:
                batches = await consumer.getmany(timeout_ms=5000)
                assert batches, f"only {sum(map(len, found.values()))} of {count} messages"
                for place, records in batches.items():
                    found.setdefault(place.partition, []).extend(records)
            assert not await consumer.getmany(timeout_ms=300)  # and nothing more
        finally:
            await consumer.stop()
        return found

    return asyncio.run(run())


def test_the_topic_holds_the_stream(brokers, topic, stream):
    events = stream.transactions[:2000]
    done = produce(ListSource("x", events), brokers, topic)
    assert done.sent == len(events)
    by_partition = consumed(brokers, topic, len(events))
    assert len(by_partition) == 4
    read = Schema(fields=declared(FIELDS))
    for records in by_partition.values():
        found = [read.parse_json(r.value) for r in records]
        assert [r.key.decode() for r in records] == [t.account for t in found]
        accounts = {t.account for t in found}
        assert found == [t for t in events if t.account in accounts]  # all of these accounts, in order


def test_the_command_sends_good_records_and_keeps_bad_ones(brokers, topic, stream_file, tmp_path):
    url = f"kafka://{brokers}/{topic}"
    done = CliRunner().invoke(
        app, ["replay", "--data", str(stream_file), "--to", url, "--out", str(tmp_path), "--until", "20", "--json", "-"]
    )
    assert done.exit_code == 3, done.output
    result = json.loads(done.stdout)
    dead = (tmp_path / "dead_letters.jsonl").read_text().splitlines()
    assert len(dead) == result["dead_letters"] > 0
    records = consumed(brokers, topic, result["sent"])
    assert max(json.loads(r.value)["time"] for part in records.values() for r in part) < 20


def test_a_pace_is_kept(brokers, topic, stream):
    url = f"kafka://{brokers}/{topic}"
    arguments = ["replay", "--to", url, "--customers", "10", "--days", "10", "--speed", "40x", "--json", "-"]
    done = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert done["complete"]
    # Ten days, forty a second: no faster, however long the machine takes for other things.
    assert done["sent"] / done["events_per_s"] > 9 / 40


def test_no_broker_is_said_in_words(stream):
    with pytest.raises(BrokerError, match="is the broker running"):
        produce(ListSource("x", stream.transactions[:1]), "127.0.0.1:1", "t")


@pytest.mark.parametrize(
    "url", ["localhost:9092/t", "kafka://localhost/t", "kafka://localhost:9092", "kafka://h:1/a b"]
)
def test_addresses_that_are_none(url):
    with pytest.raises(BrokerError, match="expected kafka://"):
        parse_target(url)


def test_a_message_is_the_documented_json(stream):
    t = stream.transactions[0]
    assert Schema(fields=declared(FIELDS)).parse_json(transaction_message(t)) == t


def test_declared_fields_travel(brokers, stream, tmp_path):
    """As keys of a message beside the others; a worker knows them from its model, and says what one process says."""
    normal = stream.normal_accounts()
    settings = Settings(window=8, local_history=12, divergence=False, alert_rate=0.02, fields=FIELDS)
    model = fit((t for t in stream.transactions if t.account in normal), settings)
    model.save(tmp_path / "model")
    cluster = Cluster(brokers, tmp_path, tmp_path / "model", columns="device=gadget")
    events = stream.transactions[:1500]
    try:
        cluster.worker("a").wait_until_ready()
        sent = [(t.account.encode(), transaction_message(t)) for t in events]
        assert json.loads(sent[0][1])["country"] == events[0].fields["country"]
        sent = [(key, value.replace(b'"device":', b'"gadget":')) for key, value in sent]
        bad = json.dumps({**json.loads(sent[0][1]), "id": "bad", "country": ["x"]}).encode()
        cluster.send([*sent, (sent[0][0], bad)])
        cluster.wait_until_done(len(events) + 1)
        expected = Expectation(model, events)
        assert expected.alerts
        expected.check(cluster, exactly_once_each=True)
        (letter,) = cluster.records(cluster.settings.dead_letters)
        assert dict(letter.headers)["field"] == b"country"
        scores = [json.loads(r.value) for r in cluster.records(cluster.settings.scores)]
        by_id = {t.id: t.fields for t in events}
        assert all(score["fields"] == by_id[score["id"]] for score in scores)
        assert {"amount", "country_own"} <= {name for score in scores for name in score["terms"]}
    finally:
        cluster.stop()
