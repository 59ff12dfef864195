"""How to reach a broker: addresses, TLS and SASL, for the workers and for everything that feeds or follows them."""

from __future__ import annotations

import contextlib
import logging
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
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
    match = re.fullmatch(_BROKERS + "/?", url)
    if not match:
        raise BrokerError(f"expected kafka://host:port, got {url!r}")
    return match[1]


def parse_target(url: str) -> tuple[str, str]:
    """Brokers and topic, from ``kafka://host:port/topic``.

    >>> parse_target("kafka://localhost:9092/transactions")
    ('localhost:9092', 'transactions')
    """
    match = re.fullmatch(f"{_BROKERS}/({_TOPIC})", url)
    if not match:
        raise BrokerError(f"expected kafka://host:port/topic, got {url!r}")
    return match[1], match[2]


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
        except (KafkaError, OSError, TimeoutError) as error:
            with contextlib.suppress(Exception):
                await (client.close() if hasattr(client, "close") else client.stop())
            raise BrokerError(explain(brokers, said[-1] if said else error)) from error


@contextlib.asynccontextmanager
async def admin_client(brokers: str, security: Security, name: str = "stream-ccsd") -> AsyncIterator[Any]:
    """A client that asks about topics and makes them.

    Raises
    ------
    BrokerError
        If the broker cannot be reached or entered, or refuses what is asked.
    """
    from aiokafka.admin import AIOKafkaAdminClient  # noqa: PLC0415  (an extra)
    from aiokafka.errors import KafkaError  # noqa: PLC0415

    options = security.client_options()
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers, client_id=name, request_timeout_ms=10_000, **options)
    await start_client(admin, brokers)
    try:
        yield admin
    except (KafkaError, OSError, TimeoutError) as error:
        raise BrokerError(explain(brokers, error)) from error
    finally:
        await admin.close()


def explain(brokers: str, error: BaseException) -> str:
    """A client's error in words, with what to look at; the kind of the error decides, never its text."""
    for cause in _causes(error):
        said = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
        for kinds, before, after in _kinds_of_errors():
            if isinstance(cause, kinds):
                return f"{before.format(brokers=brokers)} ({said}): {after}"
    said = str(error) or type(error).__name__
    return f"{brokers} does not answer ({said}): is the broker running, and do address, tls and sasl settings fit it?"


def _kinds_of_errors() -> list[tuple[tuple[type[BaseException], ...], str, str]]:
    """Kinds of errors, what they say, and what to do."""
    from aiokafka import errors  # noqa: PLC0415  (an extra)

    return [
        ((ssl.SSLError,), "no TLS with {brokers}", "check tls, ca_file and the broker's certificate"),
        (
            (
                errors.AuthenticationFailedError,
                errors.AuthenticationMethodNotSupported,
                errors.SaslAuthenticationFailed,
                errors.UnsupportedSaslMechanismError,
                errors.IllegalSaslStateError,
            ),
            "{brokers} refused the login",
            "check sasl_mechanism, sasl_username and the password",
        ),
        (
            (
                errors.TopicAuthorizationFailedError,
                errors.GroupAuthorizationFailedError,
                errors.ClusterAuthorizationFailedError,
            ),
            "{brokers} does not allow this",
            "the user needs read, write and describe on topics and group",
        ),
        (
            (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError, errors.RecordTooLargeError),
            "a topic on {brokers} takes too small messages",
            "raise its max.message.bytes",
        ),
        (
            (errors.UnsupportedCodecError,),
            "a message on {brokers} is compressed in a way that cannot be read here",
            "pip install 'stream-ccsd[kafka]' brings what is missing",
        ),
        (
            (errors.InvalidSessionTimeoutError,),
            "{brokers} refuses this session_timeout",
            "group.min.session.timeout.ms and group.max.session.timeout.ms of the broker say what it takes, by default "
            "6 seconds to 30 minutes",
        ),
        ((errors.NotEnoughReplicasError,), "{brokers} has too few replicas in sync", "start its other brokers"),
    ]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


class _Listener(logging.Handler):
    """Keeps the errors that one task logs, as they are: a client that gives up puts the error itself into its line."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[BaseException] = []
        self.listening = True

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        if _listener.get() is self and isinstance(record.args, tuple):
            self.heard += [argument for argument in record.args if isinstance(argument, BaseException)]


_listener: ContextVar[_Listener | None] = ContextVar("_listener", default=None)


def is_overheard() -> bool:
    """Whether what is logged now becomes part of an error, and need not be shown beside it."""
    listener = _listener.get()
    return listener is not None and listener.listening


@contextlib.contextmanager
def _overhearing(name: str) -> Iterator[list[BaseException]]:
    """Errors that this task logs meanwhile."""
    logger, listener = logging.getLogger(name), _Listener()
    logger.addHandler(listener)
    before = _listener.set(listener)
    try:
        yield listener.heard
    finally:
        listener.listening = False  # tasks that were begun meanwhile have a copy of the variable
        _listener.reset(before)
        logger.removeHandler(listener)
