#!/usr/bin/env python3
"""A Kafka broker for development and tests, without Docker: needs Java 17 and Maven, listens on loopback only.

    python deploy/kafka/broker.py start [FOLDER]    start one, print its address
    python deploy/kafka/broker.py stop [FOLDER]     stop it; its data goes with the folder

The jars are fetched once (Maven keeps them); data, log and process id live in the folder. Tests can ask for TLS and
SASL (SCRAM): certificate and user are made anew for each broker.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
DEFAULT_FOLDER = Path("/tmp/stream-ccsd-kafka")
# Any 22 characters of base64: the broker wants to know its cluster.
CLUSTER = "c3RyZWFtLWNjc2Qta2Fma2"

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=CLIENTS://127.0.0.1:{port},INTERNAL://127.0.0.1:{internal},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=CLIENTS://127.0.0.1:{port},INTERNAL://127.0.0.1:{internal}
controller.listener.names=CONTROLLER
inter.broker.listener.name=INTERNAL
listener.security.protocol.map=CLIENTS:{protocol},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
num.partitions=4
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
auto.create.topics.enable=true
"""

SECURE = """\
ssl.keystore.type=PKCS12
ssl.keystore.location={keystore}
ssl.keystore.password={password}
sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512
listener.name.clients.scram-sha-256.sasl.jaas.config={module} required;
listener.name.clients.scram-sha-512.sasl.jaas.config={module} required;
"""

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"

LOGGING = """\
status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1} %m%n
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
"""


class BrokerError(Exception):
    """The broker cannot be had, and why."""


@dataclass(frozen=True)
class Login:
    """A user of a broker that wants TLS and SASL (SCRAM-SHA-256 or SCRAM-SHA-512)."""

    username: str
    password: str


@dataclass
class Broker:
    """A running broker."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def certificate(self) -> Path:
        """What clients of a broker with TLS trust."""
        return self.folder / "certificate.pem"

    @property
    def address(self) -> str:
        """Host and port for clients."""
        return f"127.0.0.1:{self.port}"

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop it and wait until it is gone; its data stays, to be started again on."""
        self.process.send_signal(how)
        self.process.wait(timeout=60)


def missing() -> str | None:
    """What is needed and not there, in words; None if all is."""
    lacking = [name for name in ("java", "mvn") if shutil.which(name) is None]
    return f"{' and '.join(lacking)} not found" if lacking else None


def fetch_jars(folder: Path = DEFAULT_FOLDER / "jars") -> Path:
    """The broker's jars, from Maven's repository or its local copy."""
    if not (folder / "complete").exists():
        command = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
        done = subprocess.run([*command, f"-DoutputDirectory={folder}"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise BrokerError(f"Maven could not fetch the broker: {done.stdout[-500:]}")
        (folder / "complete").touch()
    return folder


def start(folder: Path, port: int | None = None, jars: Path | None = None, login: Login | None = None) -> Broker:
    """Start a broker with its data in the folder, on a free port unless one is named; returns when it answers.

    With a login, clients need TLS and SASL.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jars = jars or fetch_jars()
    known = folder / "server.properties"
    if port is None:
        port = free_port()
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise BrokerError(f"port {port} is taken: is a broker running already?")
    properties = PROPERTIES.format(
        folder=folder.absolute(),
        port=port,
        controller=free_port(),
        internal=free_port(),
        protocol="PLAINTEXT" if login is None else "SASL_SSL",
    )
    known.write_text(properties + ("" if login is None else _secured(folder)))
    (folder / "log4j2.properties").write_text(LOGGING)
    java = ["java", "-Xmx512m", "-Xms256m", f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"]
    java += ["-cp", f"{jars}/*"]
    if not (folder / "data").exists():
        scram = []
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512") if login else ():
            scram += ["--add-scram", f"{mechanism}=[name={login.username},password={login.password}]"]
        _run([*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(known), *scram])
    log = (folder / "broker.log").open("ab")
    process = subprocess.Popen([*java, "kafka.Kafka", str(known)], stdout=log, stderr=log, start_new_session=True)
    (folder / "pid").write_text(f"{process.pid} {port}")
    broker = Broker(folder, port, process)
    _wait_until_it_answers(broker)
    return broker


def _secured(folder: Path) -> str:
    """Settings of a listener with TLS and SASL; makes its key and certificate."""
    store, password = folder / "broker.p12", secrets.token_hex(16)
    keytool = ["keytool", "-keystore", str(store), "-storetype", "PKCS12", "-storepass", password, "-alias", "broker"]
    store.unlink(missing_ok=True)
    names = "SAN=IP:127.0.0.1,DNS:localhost"
    _run([*keytool, "-genkeypair", "-keyalg", "RSA", "-dname", "CN=localhost", "-ext", names, "-validity", "2"])
    _run([*keytool, "-exportcert", "-rfc", "-file", str(folder / "certificate.pem")])
    return SECURE.format(keystore=store.absolute(), password=password, module=SCRAM)


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrokerError(f"{command[-4:]} failed: {(done.stdout + done.stderr)[-800:]}")


def _wait_until_it_answers(broker: Broker, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if broker.process.poll() is not None:
            break
        try:
            with socket.create_connection(("127.0.0.1", broker.port), timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    log = (broker.folder / "broker.log").read_text(errors="replace")
    raise BrokerError(f"the broker does not answer on {broker.address}: {log[-800:]}")


def main() -> None:
    """Start or stop from the command line."""
    action = sys.argv[1] if len(sys.argv) > 1 else ""
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else DEFAULT_FOLDER / "broker"
    if action == "start":
        if missing():
            sys.exit(f"a broker needs Java 17 and Maven: {missing()}")
        try:
            print(f"kafka://{start(folder, 9092).address}")
        except BrokerError as error:
            sys.exit(str(error))
    elif action == "stop":
        try:
            os.kill(int((folder / "pid").read_text().split()[0]), signal.SIGTERM)
        except (OSError, ValueError) as error:
            sys.exit(f"no broker to stop in {folder}: {error}")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
