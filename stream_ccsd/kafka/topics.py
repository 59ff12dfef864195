"""The topics a worker needs: what is there, what is missing, what does not fit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.connection import BrokerError, explain, start_client
from stream_ccsd.kafka.settings import WorkerSettings

# Old states of a worker that was taken for dead must not outlive the new ones they were written behind.
_CHANGELOG = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(6 * 3600 * 1000)}


class TopicsError(StreamCcsdError):
    """Topics are missing or do not fit each other; says which and what to do."""


async def look_at_topics(settings: WorkerSettings) -> tuple[dict[str, int], dict[str, int]]:
    """Partitions of the worker's topics that exist, and of those that it would have to create.

    Raises
    ------
    BrokerError
        If the broker cannot be reached or entered.
    TopicsError
        If the worker could not work with what is there.
    """
    async with _admin(settings) as admin:
        found = await _partitions(admin, settings)
    check_topics(settings, found)
    missing = missing_topics(settings, found)
    if missing and not settings.create_topics:
        raise TopicsError(f"no topic {', '.join(missing)} on {settings.brokers}: create it, or allow create_topics")
    return found, missing


async def prepare_topics(settings: WorkerSettings) -> int:
    """Create what is missing; returns the partitions of the transactions' topic."""
    found, missing = await look_at_topics(settings)
    if missing:
        async with _admin(settings) as admin:
            await _create(admin, settings, missing)
    return {**missing, **found}[settings.transactions]


def missing_topics(settings: WorkerSettings, found: Mapping[str, int]) -> dict[str, int]:
    """Topics that are not there, and how many partitions each should have."""
    count = found.get(settings.transactions, found.get(settings.changelog, settings.partitions))
    return {name: count for name in topic_names(settings) if name not in found}


def check_topics(settings: WorkerSettings, found: Mapping[str, int]) -> None:
    """The changelog's partitions are the transactions': a state lives beside its account."""
    transactions, changelog = found.get(settings.transactions), found.get(settings.changelog)
    if transactions is not None and changelog is not None and transactions != changelog:
        raise TopicsError(
            f"topic {settings.transactions!r} has {transactions} partitions, its changelog {settings.changelog!r} "
            f"{changelog}: accounts would lose their state. Take another --group, whose changelog is made to fit"
        )


def topic_names(settings: WorkerSettings) -> list[str]:
    """All five."""
    return [settings.transactions, settings.scores, settings.alerts, settings.dead_letters, settings.changelog]


@asynccontextmanager
async def _admin(settings: WorkerSettings) -> AsyncIterator[Any]:
    admin = AIOKafkaAdminClient(
        bootstrap_servers=settings.brokers,
        client_id=f"{settings.group}-admin",
        request_timeout_ms=10_000,
        **settings.security().client_options(),
    )
    await start_client(admin, settings.brokers)
    try:
        yield admin
    except KafkaError as error:
        raise BrokerError(explain(settings.brokers, error)) from error
    finally:
        await admin.close()


async def _partitions(admin: Any, settings: WorkerSettings) -> dict[str, int]:
    known = set(await admin.list_topics()) & set(topic_names(settings))
    if not known:
        return {}
    described = await admin.describe_topics(sorted(known))
    return {topic["topic"]: len(topic["partitions"]) for topic in described if not topic["error_code"]}


def _config(settings: WorkerSettings, name: str) -> dict[str, str]:
    config = dict(_CHANGELOG) if name == settings.changelog else {}
    if settings.replication >= 3:  # a message that was confirmed is on two brokers at least
        config["min.insync.replicas"] = "2"
    return config


async def _create(admin: Any, settings: WorkerSettings, missing: Mapping[str, int]) -> None:
    wanted = [
        NewTopic(
            name,
            num_partitions=count,
            replication_factor=settings.replication,
            topic_configs=_config(settings, name),
        )
        for name, count in missing.items()
    ]
    answer = await admin.create_topics(wanted)
    for name, code, *said in answer.topic_errors:
        kind = for_code(code)
        # Another worker may have been quicker.
        if code and kind is not TopicAlreadyExistsError:
            detail = said[0] if said and said[0] else kind.__name__
            raise TopicsError(f"topic {name!r} cannot be created: {detail}. Create it, or change replication")
