"""``worker --check``: everything a worker needs, looked at without changing anything."""

from __future__ import annotations

from typing import Any

from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.kafka.topics import look_at_topics, topic_names
from stream_ccsd.library.model import Model


async def check_worker(settings: WorkerSettings, model: Model) -> dict[str, Any]:
    """What was found, and what the worker would do.

    Raises
    ------
    StreamCcsdError
        If it could not work.
    """
    security = settings.security()
    found, missing = await look_at_topics(settings)
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
            name: {"partitions": found.get(name, missing.get(name)), "exists": name in found}
            for name in topic_names(settings)
        },
    }
