"""TLS and SASL on a real broker that wants both."""

import json
import logging
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from stream_ccsd.cli.main import app
from stream_ccsd.kafka.client import BrokerError, Security, parse_brokers
from stream_ccsd.kafka.ops import logs
from stream_ccsd.kafka.settings import WorkerSettings
from tests.kafka.cluster import Cluster, Expectation, messages

PASSWORD = "keep-me-out-of-the-logs-7d1f"


@pytest.fixture(scope="module")
def secured(broker_module, jars, tmp_path_factory):
    login = broker_module.Login("worker", PASSWORD)
    broker = broker_module.start(tmp_path_factory.mktemp("secured") / "broker", jars=jars, login=login)
    yield broker
    broker.stop()


@pytest.fixture
def cluster(secured, tmp_path, model_folder):
    broker = secured
    security = Security(True, broker.certificate, None, None, "SCRAM-SHA-512", "worker", PASSWORD)
    cluster = Cluster(
        broker.address,
        tmp_path,
        model_folder,
        security,
        {"STREAM_CCSD_SASL_PASSWORD": PASSWORD},
        tls=True,
        ca_file=str(broker.certificate),
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="worker",
        log_level="debug",
    )
    yield cluster
    cluster.stop()


def test_a_worker_works_and_keeps_its_secret(cluster, many, model, monkeypatch):
    part = many[:1500]
    worker = cluster.worker("a")
    cluster.send(messages(part))
    cluster.wait_until_done(len(part))
    Expectation(model, part).check(cluster, exactly_once_each=True)
    assert worker.stop() == 0
    log = worker.log.read_text()
    assert '"level": "debug"' in log
    assert PASSWORD not in log
    monkeypatch.setenv("STREAM_CCSD_SASL_PASSWORD", PASSWORD)
    source = f"kafka://{cluster.brokers}/{cluster.settings.alerts}"
    arguments = ["alerts", "--from", source, "--beginning", "--limit", "3", "--kafka-config", str(cluster.config)]
    followed = CliRunner().invoke(app, [*arguments, "--format", "json"])
    assert followed.exit_code == 0, followed.output
    assert len([json.loads(line) for line in followed.stdout.splitlines()]) == 3
    target = f"kafka://{cluster.brokers}/{cluster.settings.transactions}"
    arguments = ["replay", "--customers", "10", "--days", "10", "--to", target, "--kafka-config", str(cluster.config)]
    sent = CliRunner().invoke(app, [*arguments, "--json", "-"])
    assert json.loads(sent.stdout)["sent"] > 50


def check(cluster, **changes):
    command = [sys.executable, "-m", "stream_ccsd", "worker", "--check", "--config", str(cluster.config)]
    for name, value in changes.items():
        command += [f"--{name.replace('_', '-')}"] + ([str(value)] if value is not None else [])
    environment = {**cluster.environment, "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_the_check_says_what_is_wrong(cluster, tmp_path):
    good = check(cluster)
    assert good.returncode == 0, good.stderr
    assert "SASL_SSL, SCRAM-SHA-512" in good.stdout
    assert "SCRAM-SHA-256" in check(cluster, sasl_mechanism="SCRAM-SHA-256").stdout
    file = tmp_path / "password"
    file.write_text("wrong\n")
    wrong = check(cluster, sasl_password_file=file)
    assert wrong.returncode == 1
    assert "refused the login" in wrong.stderr
    file.write_text(PASSWORD + "\n")
    assert check(cluster, sasl_password_file=file).returncode == 0
    stranger = tmp_path / "stranger.pem"
    stranger.write_text(_other_certificate(tmp_path))
    untrusted = check(cluster, ca_file=stranger)
    assert untrusted.returncode == 1
    assert "no TLS" in untrusted.stderr
    for answer in (good, wrong, untrusted):
        assert PASSWORD not in answer.stdout + answer.stderr


def _other_certificate(folder):
    store = ["-keystore", str(folder / "x.p12"), "-storepass", "changeit", "-alias", "x"]
    subprocess.run(["keytool", "-genkeypair", "-keyalg", "RSA", "-dname", "CN=x", *store], check=True)
    return subprocess.run(["keytool", "-exportcert", "-rfc", *store], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ca_file": "x"}, "without tls"),
        ({"tls": True, "key_file": "x"}, "needs cert_file"),
        ({"sasl_username": "u"}, "needs sasl_mechanism"),
        ({"sasl_mechanism": "MD5", "sasl_username": "u", "sasl_password": "p"}, "expected one of"),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "u"}, "STREAM_CCSD_SASL_PASSWORD"),
    ],
)
def test_settings_that_do_not_fit_together(given, said):
    with pytest.raises(BrokerError, match=said):
        Security(**given)


def test_a_certificate_that_is_none(tmp_path):
    file = tmp_path / "x.pem"
    file.write_text("no certificate")
    with pytest.raises(BrokerError, match="cannot be used"):
        Security(tls=True, ca_file=file).client_options()


def test_the_client_never_logs_what_it_sends():
    """With PLAIN that is the password itself."""
    before = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        logs.set_up(WorkerSettings(log_level="debug"))
        assert not logging.getLogger("aiokafka.conn").isEnabledFor(logging.DEBUG)
        assert logging.getLogger("aiokafka.consumer").isEnabledFor(logging.DEBUG)
    finally:
        logging.getLogger().handlers[:], level = before
        logging.getLogger().setLevel(level)
    with pytest.raises(BrokerError):
        parse_brokers(f"kafka://u:{PASSWORD}@h:1")


def test_no_representation_holds_the_password():
    security = Security(sasl_mechanism="PLAIN", sasl_username="u", sasl_password=PASSWORD)
    assert PASSWORD not in repr(security)
    assert security.protocol == "SASL_PLAINTEXT"
    assert Security().protocol == "PLAINTEXT"
    assert Security(tls=True).protocol == "SSL"
