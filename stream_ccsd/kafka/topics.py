"""The topics a worker needs: what is there, what is missing, what does not fit, and what changes while it works."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokafka.admin import NewTopic
from aiokafka.errors import TopicAlreadyExistsError, for_code

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.client import BrokerError, admin_client
from stream_ccsd.kafka.faust.metadata import Topic, configs, describe
from stream_ccsd.kafka.settings import WorkerSettings

# Old states of a worker that was taken for dead must not outlive the new ones they were written behind.
_CHANGELOG = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(6 * 3600 * 1000)}
# The learner goes by the order in which brokers got messages, whatever the clocks of those who sent them.
_BROKERS_TIME = {"message.timestamp.type": "LogAppendTime"}
# Seconds between looks at topics, and how often one must be missing: a broker that starts knows none for a moment.
_LOOK, _PATIENCE = 2.0, 3
_ADMIN = "stream-ccsd-admin"


class TopicsError(StreamCcsdError):
    """Topics are missing or do not fit; says which and what to do."""


@dataclass(frozen=True)
class TopicsSeen:
    """What there is on the brokers, and what would have to be created, with so many partitions."""

    topics: dict[str, Topic]
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)

    def largest_message(self, name: str) -> int | None:
        """Bytes that a topic takes in one message; None if it does not say."""
        said = self.configs.get(name, {}).get("max.message.bytes")
        return None if said is None else int(said)


async def look_at_topics(settings: WorkerSettings) -> TopicsSeen:
    """The worker's topics that exist, and those that it would have to create.

    Raises
    ------
    BrokerError
        If the broker cannot be reached or entered.
    TopicsError
        If the worker could not work with what is there.
    """
    async with admin_client(settings.brokers, settings.security(), _ADMIN) as admin:
        brokers, topics = await describe(admin, topic_names(settings))
        seen = TopicsSeen(topics, await configs(admin, list(topics)), missing_topics(settings, topics))
    check_topics(settings, topics)
    check_policies(settings, seen, brokers)
    if seen.missing and not settings.create_topics:
        raise TopicsError(
            f"no topic {', '.join(seen.missing)} on {settings.brokers}: create it, or allow create_topics"
        )
    return seen


async def prepare_topics(settings: WorkerSettings) -> TopicsSeen:
    """Create what is missing; returns what there is then."""
    seen = await look_at_topics(settings)
    if not seen.missing:
        return seen
    async with admin_client(settings.brokers, settings.security(), _ADMIN) as admin:
        await _create(admin, settings, seen.missing)
    for _ in range(50):  # every broker hears of new topics, but not all at once
        seen = await look_at_topics(settings)
        if not seen.missing:
            return seen
        await asyncio.sleep(0.1)
    raise TopicsError(f"{', '.join(seen.missing)} was created on {settings.brokers}, and is not there: start again")


def missing_topics(settings: WorkerSettings, topics: Mapping[str, Topic]) -> dict[str, int]:
    """Topics that are not there, and how many partitions each should have."""
    known = topics.get(settings.transactions) or topics.get(settings.changelog) or Topic(settings.partitions)
    return {name: known.partitions for name in topic_names(settings) if name not in topics}


def check_topics(settings: WorkerSettings, topics: Mapping[str, Topic]) -> None:
    """The changelog's partitions are the transactions': a state lives beside its account."""
    transactions, changelog = topics.get(settings.transactions), topics.get(settings.changelog)
    if transactions is not None and changelog is not None and transactions.partitions != changelog.partitions:
        raise TopicsError(
            f"topic {settings.transactions!r} has {transactions.partitions} partitions, its changelog "
            f"{settings.changelog!r} {changelog.partitions}: accounts would lose their state. Take another --group, "
            "whose changelog is made to fit"
        )


def check_policies(settings: WorkerSettings, seen: TopicsSeen, brokers: int) -> None:
    """Topics must keep what they are told to keep, and be able to confirm it."""
    if seen.missing and settings.replication > brokers:
        raise TopicsError(
            f"replication is {settings.replication}, and {settings.brokers} has {brokers} brokers: start more of them, "
            f"or change replication; {', '.join(seen.missing)} could not be created"
        )
    policies = {name: _policies(values) for name, values in seen.configs.items()}
    changelog = policies.get(settings.changelog)
    if changelog is not None and changelog != {"compact"}:
        raise TopicsError(
            f"the changelog {settings.changelog!r} has cleanup.policy={','.join(sorted(changelog))}: account states "
            "would be deleted with time. Set it to compact; if the topic was deleted and came back by itself, states "
            "are gone: delete it, or take another --group"
        )
    if "compact" in policies.get(settings.transactions, set()):
        raise TopicsError(
            f"topic {settings.transactions!r} is compacted: of each account only the last transaction would be kept, "
            "and others vanish before they are read. Set its cleanup.policy to delete"
        )
    for name, values in seen.configs.items():
        wanted, replicas = int(values.get("min.insync.replicas") or 1), seen.topics[name].replicas
        if wanted > replicas:
            raise TopicsError(
                f"topic {name!r} has {replicas} replicas and min.insync.replicas={wanted}: no message could ever be "
                "confirmed. Lower it, or give the topic more replicas"
            )


def _policies(values: Mapping[str, str]) -> set[str]:
    return {policy.strip() for policy in (values.get("cleanup.policy") or "").split(",") if policy.strip()}


def topic_names(settings: WorkerSettings) -> list[str]:
    """All six."""
    read, written = (
        (settings.transactions, settings.verdicts),
        (settings.scores, settings.alerts, settings.dead_letters),
    )
    return [*read, *written, settings.changelog]


class TopicWatch:
    """Looks at the topics that states depend on, for as long as the worker works."""

    def __init__(self, settings: WorkerSettings, seen: TopicsSeen) -> None:
        self._settings = settings
        self._known = {name: seen.topics[name] for name in (settings.transactions, settings.changelog)}
        self._absent = 0
        self.answered = True
        """Whether the broker answered when it was last asked."""

    async def watch(self) -> None:
        """Until cancelled.

        Raises
        ------
        TopicsError
            If a topic is not the one it was.
        """
        while True:
            try:
                async with admin_client(self._settings.brokers, self._settings.security(), _ADMIN) as admin:
                    while True:
                        self.compare((await describe(admin, list(self._known))).topics)
                        self.answered = True
                        await asyncio.sleep(_LOOK)
            except BrokerError:
                self.answered = False
                await asyncio.sleep(_LOOK)

    def compare(self, now: Mapping[str, Topic]) -> None:
        """Raise if that is no longer what the worker began with."""
        missing = [name for name in self._known if name not in now]
        self._absent = self._absent + 1 if missing else 0
        if self._absent >= _PATIENCE:
            raise TopicsError(
                f"{', '.join(missing)} is no longer on {self._settings.brokers}: it was deleted. Account states belong "
                "to the topic that is gone: take another --group for a new one"
            )
        check_topics(self._settings, now)
        for name, known in self._known.items():
            today = now.get(name, known)
            if None not in (known.id, today.id) and today.id != known.id:
                raise TopicsError(
                    f"topic {name!r} was deleted and made anew while the worker ran: account states belong to the one "
                    "that is gone. Take another --group"
                )
            if today.partitions != known.partitions:
                raise TopicsError(
                    f"topic {name!r} has {today.partitions} partitions, and had {known.partitions} when the worker "
                    "began: accounts would lose their state. Take another --group, whose changelog is made to fit"
                )


def _config(settings: WorkerSettings, name: str) -> dict[str, str]:
    config = dict(_CHANGELOG) if name == settings.changelog else {}
    if name in (settings.scores, settings.verdicts):
        config |= _BROKERS_TIME
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
