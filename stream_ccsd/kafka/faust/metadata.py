"""What a broker says of topics, their ids among it.

Kafka gives a topic made anew under an old name another id. aiokafka 0.14 asks in a version of the protocol that has no
ids, so the newer question is spelt out here, in aiokafka's own words and over its connections. The other way, a second
client library only for this, would need every setting of TLS and SASL a second time.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any, ClassVar, NamedTuple

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

from stream_ccsd.kafka.faust.internals import ask

_NOBODY = bytes(16)


class Topic(NamedTuple):
    """What is known of a topic."""

    partitions: int
    id: str | None = None
    """Another one for each topic of the same name; None where the broker is too old to say (before Kafka 3.1)."""
    replicas: int = 1


class Cluster(NamedTuple):
    """What a broker answered."""

    brokers: int
    topics: dict[str, Topic]


class _Uuid(AbstractType[bytes]):
    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """As it is."""
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        """Sixteen bytes."""
        return data.read(16)


class _Response(Response):
    API_KEY = 3
    API_VERSION = 12
    SCHEMA: ClassVar[Schema] = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString()),
                ("port", Int32),
                ("rack", CompactString()),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString()),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", CompactString()),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _Struct(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 12
    RESPONSE_TYPE = _Response
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("topic", CompactString()), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _Request(Request[_Struct]):
    API_KEY = 3

    def __init__(self, topics: list[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[_Struct]) -> _Struct:
        """The question: no topic is created by asking for it."""
        return request_struct_class([(_NOBODY, name, {}) for name in self._topics], False, False, {})


async def describe(admin: Any, names: list[str]) -> Cluster:
    """The named topics, as far as they exist; none is created by asking.

    Raises
    ------
    KafkaError
        If the broker does not answer, or does not show a topic.
    """
    try:
        answer = await ask(admin, _Request(names))
    except NotImplementedError:  # a broker that does not speak this version: no ids
        answer = await ask(admin, MetadataRequest(names, allow_auto_topic_creation=False))
    said = answer.to_object()
    topics = {}
    for topic in said["topics"]:
        error = for_code(topic["error_code"])
        if error is UnknownTopicOrPartitionError:
            continue
        if topic["error_code"] and not topic["partitions"]:
            raise error(topic["topic"])
        topic_id = topic.get("topic_id", _NOBODY)
        topics[topic["topic"]] = Topic(
            len(topic["partitions"]),
            None if topic_id == _NOBODY else topic_id.hex(),
            min((len(p["replicas"]) for p in topic["partitions"]), default=0),
        )
    return Cluster(len(said["brokers"]), topics)


async def configs(admin: Any, names: list[str]) -> dict[str, dict[str, str]]:
    """Settings of topics, as far as this user may see them."""
    if not names:
        return {}
    answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
    return {
        resource["resource_name"]: {e["config_names"]: e["config_value"] for e in resource["config_entries"]}
        for answer in answers
        for resource in answer.to_object()["resources"]
        if not resource["error_code"]
    }
