"""What the producer says of a message is where it lies, however many of them are sent together."""

import asyncio

import pytest
from aiokafka.partitioner import DefaultPartitioner

from stream_ccsd.kafka.client import BrokerError
from stream_ccsd.kafka.codec import OutgoingRecord
from stream_ccsd.kafka.producer import Producer
from tests.kafka.cluster import PARTITIONS


def confirmed(cluster, *outputs):
    """Offsets of messages that are sent together, a list for each call."""

    async def run():
        producer = Producer(cluster.settings)
        await producer.start()
        try:
            return [await producer.confirm(together) for together in outputs]
        finally:
            await producer.stop()

    return asyncio.run(run())


def test_messages_lie_where_the_producer_says(cluster):
    """More of them than fit into a batch, and one that is larger than any."""
    topics = (cluster.settings.scores, cluster.settings.alerts)
    sizes = [400_000 if number == 700 else 900 for number in range(2000)]
    outputs = [
        OutgoingRecord(topics[n % 5 == 0], f"C{n % 37}".encode(), f"{n} ".encode() + b"x" * size, [("n", b"%d" % n)])
        for n, size in enumerate(sizes)
    ]
    first, second = confirmed(cluster, outputs[:1500], outputs[1500:])
    found = {(t, r.partition, r.offset): r for t in topics for r in cluster.records(t)}
    assert len(found) == len(outputs)
    for output, offset in zip(outputs, first + second, strict=True):
        partition = DefaultPartitioner()(output.key, list(range(PARTITIONS)), [])
        record = found[output.topic, partition, offset]
        assert (record.key, record.value, list(record.headers)) == (output.key, output.value, output.headers)


def test_a_partition_that_is_named_is_taken_in_order(cluster):
    outputs = [OutgoingRecord(cluster.settings.scores, b"C%d" % n, b"s" * 3000, [], 2) for n in range(500)]
    (offsets,) = confirmed(cluster, outputs)
    assert offsets == list(range(500))
    records = cluster.records(cluster.settings.scores)
    assert [(r.partition, r.key) for r in records] == [(2, o.key) for o in outputs]


def test_messages_without_a_key_lie_anywhere(cluster):
    topic = cluster.settings.dead_letters
    (offsets,) = confirmed(cluster, [OutgoingRecord(topic, None, b"%d" % n, []) for n in range(50)])
    records = cluster.records(topic)
    assert {int(r.value) for r in records} == set(range(50))
    assert all(offsets[int(r.value)] == r.offset for r in records)


def test_what_is_too_large_for_its_topic_is_said(cluster):
    """Of dead letters the beginning is sent; a score that cannot be sent ends the worker."""
    large = b"x" * 1_500_000
    letters, scores = cluster.settings.dead_letters, cluster.settings.scores
    (offsets,) = confirmed(cluster, [OutgoingRecord(letters, b"k", v, []) for v in (b"a", large, b"b")])
    sent = {(r.partition, r.offset): r for r in cluster.records(letters)}
    assert sorted(offsets) == [0, 1, 2]
    assert sorted(len(r.value) for r in sent.values()) == [1, 1, 65_536]
    with pytest.raises(BrokerError):
        confirmed(cluster, [OutgoingRecord(scores, b"k", large, [])])
