"""A real broker: the one KAFKA_BOOTSTRAP_SERVERS names, or one started here where Java and Maven are present."""

import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest

from replay.sources.simulator.population import simulate
from tests.kafka.cluster import Cluster, Expectation

_PATH = Path(__file__).parents[2] / "deploy" / "kafka" / "broker.py"


# Brokers of tests live for minutes: compiling them well would take longer than they ever gain by it.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def load_broker_module():
    spec = importlib.util.spec_from_file_location("development_broker", _PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["development_broker"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def broker_module():
    """What starts brokers; tests that need to start one themselves are skipped where that cannot be."""
    module = load_broker_module()
    if module.missing():
        pytest.skip(f"no Kafka broker: install Java 17 and Maven ({module.missing()}), or set KAFKA_BOOTSTRAP_SERVERS")
    return module


@pytest.fixture(scope="session")
def jars(broker_module, tmp_path_factory):
    return broker_module.fetch_jars(tmp_path_factory.mktemp("jars"))


@pytest.fixture(scope="session")
def brokers(request, tmp_path_factory):
    """Address of a broker, host:port."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        # One for the whole run: were these tests spread over processes, each would have its own, at twice the load.
        (tmp_path_factory.getbasetemp().parent / "broker").touch(exist_ok=False)
    known = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if known:
        yield known
        return
    module, jars = request.getfixturevalue("broker_module"), request.getfixturevalue("jars")
    broker = module.start(tmp_path_factory.mktemp("kafka") / "broker", jars=jars)
    yield broker.address
    broker.stop()


class OwnBroker:
    """A broker that a test may stop and start."""

    def __init__(self, module, folder, jars):
        self._start = lambda: module.start(folder, self._broker.port if self._broker else None, jars)
        self._broker = None

    @property
    def address(self):
        return self._broker.address

    def start(self):
        if self._broker is None or self._broker.process.poll() is not None:
            self._broker = self._start()

    def stop(self):
        self._broker.stop(signal.SIGKILL)


@pytest.fixture(scope="session")
def breakable(broker_module, jars, tmp_path_factory):
    broker = OwnBroker(broker_module, tmp_path_factory.mktemp("breakable") / "broker", jars)
    yield broker
    broker.stop()


@pytest.fixture
def own_broker(breakable):
    """It runs when a test begins; one for all tests that break it, since each start takes seconds of both cores."""
    breakable.start()
    return breakable


@pytest.fixture(scope="session")
def many():
    """Twenty thousand transactions."""
    transactions = simulate(accounts=350, days=51, fraud_share=0.2, seed=11).transactions
    assert len(transactions) >= 20_000
    return transactions[:20_000]


@pytest.fixture(scope="session")
def expected(model, many):
    """What an in-process engine says about them."""
    expectation = Expectation(model, many)
    assert len(expectation.entered) == len(many)
    assert len(expectation.alerts) > 50
    return expectation


@pytest.fixture
def cluster(brokers, tmp_path, model_folder):
    """Topics and settings of a test's own; its workers end with it."""
    cluster = Cluster(brokers, tmp_path, model_folder)
    yield cluster
    cluster.stop()
