"""``worker --check``: everything a worker needs, looked at without changing anything."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from stream_ccsd.kafka.client import BrokerError, explain, start_client
from stream_ccsd.kafka.faust.internals import check_parts
from stream_ccsd.kafka.faust.metadata import Topic
from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.kafka.topics import look_at_topics, topic_names
from stream_ccsd.model.model import Model

_SECONDS = 20.0


async def check_worker(settings: WorkerSettings, model: Model) -> dict[str, Any]:
    """What was found, and what the worker would do.

    Raises
    ------
    StreamCcsdError
        If it could not work.
    """
    security = settings.security()
    check_parts()
    seen = await look_at_topics(settings)
    decoded = await newest_messages(settings, seen.topics)
    return {
        "broker": settings.brokers,
        "protocol": security.protocol,
        "sasl_mechanism": security.sasl_mechanism,
        "group": settings.group,
        "model": model.version,
        "library_windows": model.facts.get("library_windows"),
        "guarantee": settings.guarantee,
        "store": settings.store,
        "topics": {
            name: {
                "partitions": seen.topics[name].partitions if name in seen.topics else seen.missing[name],
                "exists": name in seen.topics,
                "messages_read": decoded.get(name, 0),
            }
            for name in topic_names(settings)
        },
    }


async def newest_messages(settings: WorkerSettings, topics: Mapping[str, Topic]) -> dict[str, int]:
    """Read the newest message of each partition; how many there were, by topic.

    Raises
    ------
    BrokerError
        If one cannot be read: no rights, or a compression that nobody here knows.
    """
    read = dict.fromkeys(topics, 0)
    places = [TopicPartition(name, p) for name, topic in topics.items() for p in range(topic.partitions)]
    if not places:  # and a client that is stopped before it has asked anything raises its own cancellation
        return read
    consumer = AIOKafkaConsumer(bootstrap_servers=settings.brokers, **settings.security().client_options())
    try:
        await start_client(consumer, settings.brokers)
        begin, end = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
        full = [place for place in places if end[place] > begin[place]]
        consumer.assign(full)
        for place in full:
            consumer.seek(place, end[place] - 1)
        # The newest may be no message but the marker of a transaction: the client steps over it in silence.
        async with asyncio.timeout(_SECONDS):
            while any([await consumer.position(place) < end[place] for place in full]):
                for place, records in (await consumer.getmany(timeout_ms=200)).items():
                    read[place.topic] += len(records)
    except (KafkaError, TimeoutError) as error:
        raise BrokerError(explain(settings.brokers, error)) from error
    finally:
        await consumer.stop()
    return read
