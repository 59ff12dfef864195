"""How to reach a broker: addresses, TLS and SASL, for the workers and for everything that feeds or follows them."""

from __future__ import annotations

import contextlib
import logging
import re
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stream_ccsd.errors import StreamCcsdError

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
_BROKERS = r"kafka://([^/\s,@]+:\d{1,5}(?:,[^/\s,@]+:\d{1,5})*)"
_TOPIC = r"[A-Za-z0-9._-]{1,249}"


class BrokerError(StreamCcsdError):
    """The broker cannot be named, reached or entered; says what to do."""


def parse_brokers(url: str) -> str:
    """Host and port of each broker, from ``kafka://host:port,host:port``.

    >>> parse_brokers("kafka://localhost:9092")
    'localhost:9092'
    """
    found = re.fullmatch(_BROKERS + "/?", url)
    if not found:
        raise BrokerError(f"expected kafka://host:port, got {url!r}")
    return found[1]


def parse_target(url: str) -> tuple[str, str]:
    """Brokers and topic, from ``kafka://host:port/topic``.

    >>> parse_target("kafka://localhost:9092/transactions")
    ('localhost:9092', 'transactions')
    """
    found = re.fullmatch(f"{_BROKERS}/({_TOPIC})", url)
    if not found:
        raise BrokerError(f"expected kafka://host:port/topic, got {url!r}")
    return found[1], found[2]


def is_topic(name: str) -> bool:
    """Whether Kafka takes this as the name of a topic."""
    return re.fullmatch(_TOPIC, name) is not None and name not in (".", "..")


@dataclass(frozen=True)
class Security:
    """TLS and SASL. The password is never part of a representation, so no log can hold it."""

    tls: bool = False
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.ca_file or self.cert_file) and not self.tls:
            raise BrokerError("certificates were given without tls: switch it on, or leave them out")
        if self.key_file and not self.cert_file:
            raise BrokerError("key_file needs cert_file: the certificate that belongs to the key")
        if self.sasl_mechanism is None:
            if self.sasl_username or self.sasl_password:
                raise BrokerError(f"a SASL name or password needs sasl_mechanism: {', '.join(MECHANISMS)}")
            return
        if self.sasl_mechanism not in MECHANISMS:
            raise BrokerError(f"sasl_mechanism is {self.sasl_mechanism!r}, expected one of {', '.join(MECHANISMS)}")
        if not self.sasl_username or not self.sasl_password:
            raise BrokerError(
                "SASL needs sasl_username, and its password in STREAM_CCSD_SASL_PASSWORD or in sasl_password_file"
            )

    @property
    def protocol(self) -> str:
        """Kafka's name for the combination."""
        return f"{'SASL_' if self.sasl_mechanism else ''}{'SSL' if self.tls else 'PLAINTEXT'}".removesuffix("_")

    def ssl_context(self) -> ssl.SSLContext | None:
        """What TLS is done with; certificates and host names are always checked."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
            if self.cert_file is not None:
                context.load_cert_chain(str(self.cert_file), None if self.key_file is None else str(self.key_file))
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(f) for f in (self.ca_file, self.cert_file, self.key_file) if f)
            raise BrokerError(f"the certificates cannot be used ({files}): {error}") from error
        return context

    def client_options(self) -> dict[str, Any]:
        """Keyword arguments of aiokafka's clients."""
        options: dict[str, Any] = {"security_protocol": self.protocol}
        if self.tls:
            options["ssl_context"] = self.ssl_context()
        if self.sasl_mechanism:
            options["sasl_mechanism"] = self.sasl_mechanism
            options["sasl_plain_username"] = self.sasl_username
            options["sasl_plain_password"] = self.sasl_password
        return options


async def start_client(client: Any, brokers: str) -> None:
    """Connect one of aiokafka's clients.

    Raises
    ------
    BrokerError
        If that fails, with the cause, which the client itself only logs.
    """
    from aiokafka.errors import KafkaError  # noqa: PLC0415  (an extra)

    with _overhearing("aiokafka") as said:
        try:
            await client.start()
        except (KafkaError, OSError) as error:
            with contextlib.suppress(Exception):
                await (client.close() if hasattr(client, "close") else client.stop())
            raise BrokerError(explain(brokers, error, said)) from error


def explain(brokers: str, error: BaseException, said: Sequence[str] = ()) -> str:
    """A client's error in words, with what to look at."""
    cause = said[-1] if said else str(error) or type(error).__name__
    everything = f"{type(error).__name__} {cause}"
    if "CERTIFICATE" in everything or "ssl" in everything.lower():
        return f"no TLS with {brokers} ({cause}): check tls, ca_file and the broker's certificate"
    if "uthentication" in everything:
        return f"{brokers} refused the login ({cause}): check sasl_mechanism, sasl_username and the password"
    if "MessageSizeTooLarge" in everything or "RecordTooLarge" in everything:
        return f"a topic on {brokers} takes too small messages ({cause}): raise its max.message.bytes"
    if "uthorization" in everything:
        return f"{brokers} does not allow this ({cause}): the user needs read, write and describe on topics and group"
    return f"{brokers} does not answer ({cause}): is the broker running, and do address, tls and sasl settings fit it?"


@contextlib.contextmanager
def _overhearing(name: str) -> Iterator[list[str]]:
    """What is logged meanwhile, kept instead of shown."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(name)
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
