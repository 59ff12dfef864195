"""A real broker: the one KAFKA_BOOTSTRAP_SERVERS names, or one started here where Java and Maven are present."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

_PATH = Path(__file__).parents[2] / "deploy" / "kafka" / "broker.py"


def load_broker_module():
    spec = importlib.util.spec_from_file_location("development_broker", _PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["development_broker"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def brokers(tmp_path_factory):
    """Address of a broker, host:port."""
    known = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if known:
        yield known
        return
    broker_module = load_broker_module()
    if broker_module.missing():
        pytest.skip(
            f"no Kafka broker: set KAFKA_BOOTSTRAP_SERVERS, or install Java 17 and Maven ({broker_module.missing()})"
        )
    folder = tmp_path_factory.mktemp("kafka")
    broker = broker_module.start(folder / "broker", jars=broker_module.fetch_jars(folder / "jars"))
    yield broker.address
    broker.stop()
