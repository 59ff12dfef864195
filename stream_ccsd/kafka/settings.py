"""Every setting of a worker: from flags, else from the environment, else from a file, else the default."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.client import MECHANISMS, Security, is_topic, parse_brokers

PREFIX = "STREAM_CCSD_"
Guarantee = Literal["effectively-once", "best-effort"]
_SECRET = "sasl_password"


class WorkerSettingsError(StreamCcsdError):
    """A setting is unknown, missing or out of its range; says which and where it came from."""


_TOPICS, _STATE, _WORK, _WEB, _SECURITY = "Topics", "State", "Work", "Operations", "Security"


def _option(text: str, panel: str | None = None, metavar: str | None = None) -> Any:
    """What the help says of a setting: this is the only place, and a test holds that each has it."""
    return typer.Option(help=text, rich_help_panel=panel, metavar=metavar)


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of a worker. Everything but the secret can be a flag, a variable, or a line of a TOML file."""

    broker: Annotated[str, _option("Brokers to begin with: kafka://host:port,host:port.")] = "kafka://127.0.0.1:9092"
    model: Annotated[
        Path | None,
        _option(
            "Model of 'stream-ccsd fit', or a folder of its versions: a new one is picked up.",
            None,
            "DIR",
        ),
    ] = None
    group: Annotated[
        str, _option("Consumer group, and the first part of the changelog's name: its workers share the work.")
    ] = "stream-ccsd"
    suffix: Annotated[
        str,
        _option(
            "Ends the names of group, changelog and all topics that are written: with 'challenger' a second model "
            "scores the same transactions beside the first.",
        ),
    ] = ""

    transactions: Annotated[str, _option("Topic to read: JSON, keyed by account.", _TOPICS)] = "transactions"
    scores: Annotated[str, _option("Topic for one score a transaction.", _TOPICS)] = "scores"
    alerts: Annotated[str, _option("Topic for alerts.", _TOPICS)] = "alerts"
    dead_letters: Annotated[str, _option("Topic for messages that had no effect, with the reason.", _TOPICS)] = (
        "dead-letters"
    )
    verdicts: Annotated[str, _option("Topic of verdicts, which 'stream-ccsd learn' learns from.", _TOPICS)] = "verdicts"
    partitions: Annotated[int, _option("Of topics that have to be created.", _TOPICS)] = 4
    replication: Annotated[
        int, _option("Of topics that have to be created; 3 where there are three brokers.", _TOPICS)
    ] = 1
    create_topics: Annotated[bool, _option("Create topics that are missing, or say so and stop.", _TOPICS)] = True
    columns: Annotated[
        str, _option("JSON fields like account=user,time=when; by default their own names.", _TOPICS, "MAP")
    ] = ""
    check_key: Annotated[
        bool,
        _option("Refuse messages whose key is not their account, or trust the topic to be split by account.", _TOPICS),
    ] = True

    store: Annotated[
        Literal["rocksdb", "memory"], _option("Where account states are kept beside the changelog.", _STATE)
    ] = "rocksdb"
    state_dir: Annotated[Path, _option("Folder of the rocksdb store: one a worker.", _STATE, "DIR")] = Path(
        "worker-state"
    )
    standby_replicas: Annotated[
        int, _option("Further workers that follow each changelog, to take over without reading it first.", _STATE)
    ] = 0

    batch: Annotated[int, _option("At most so many transactions are scored and confirmed together.", _WORK)] = 1000
    guarantee: Annotated[
        Guarantee,
        _option("effectively-once confirms outputs before states; best-effort sends both at once.", _WORK),
    ] = "effectively-once"
    commit_interval: Annotated[
        float, _option("Seconds between commits: how much is read again after a crash.", _WORK)
    ] = 1.0
    session_timeout: Annotated[
        float, _option("Seconds after which a silent worker's partitions are given to others.", _WORK)
    ] = 10.0
    heartbeat_interval: Annotated[float, _option("Seconds between signs of life to the group.", _WORK)] = 2.0
    threshold: Annotated[float | None, _option("Alert threshold in nats; by default the model's.", _WORK)] = None
    explore: Annotated[
        float | None,
        _option(
            "Share of the alert budget that goes, besides, to transactions drawn at random: 0.2; by default the "
            "model's.",
            _WORK,
        ),
    ] = None
    learning: Annotated[
        bool,
        _option(
            "Write what lessons learn from into scores ('inputs'), as always where the model is a folder of versions.",
            _WORK,
        ),
    ] = False
    model_poll: Annotated[float, _option("Seconds between looks at the model.", _WORK)] = 5.0

    web_host: Annotated[str, _option("Address for /healthz, /readyz and /metrics.", _WEB)] = "127.0.0.1"
    web_port: Annotated[int, _option("Port for the same; 0 takes a free one.", _WEB)] = 6066
    log_format: Annotated[
        Literal["json", "text"] | None,
        _option("A JSON object a line, or text for people; by default text on a terminal, else json.", _WEB),
    ] = None
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _option("What is worth a line.", _WEB)] = "info"

    tls: Annotated[bool, _option("Speak TLS with the broker.", _SECURITY)] = False
    ca_file: Annotated[Path | None, _option("Certificates to trust; by default the system's.", _SECURITY, "FILE")] = (
        None
    )
    cert_file: Annotated[Path | None, _option("Client certificate, where the broker wants one.", _SECURITY, "FILE")] = (
        None
    )
    key_file: Annotated[Path | None, _option("Its key.", _SECURITY, "FILE")] = None
    sasl_mechanism: Annotated[str | None, _option(f"{', '.join(MECHANISMS[:-1])} or {MECHANISMS[-1]}.", _SECURITY)] = (
        None
    )
    sasl_username: Annotated[str | None, _option("Who logs in.", _SECURITY)] = None
    sasl_password_file: Annotated[
        Path | None,
        _option(
            "File with the password and nothing else; or put it into STREAM_CCSD_SASL_PASSWORD.", _SECURITY, "FILE"
        ),
    ] = None

    def __post_init__(self) -> None:
        parse_brokers(self.broker)
        if self.suffix:  # a name that ends so already stays: settings are made of other settings
            for name in ("group", "scores", "alerts", "dead_letters"):
                base = getattr(self, name).removesuffix(f"-{self.suffix}")
                object.__setattr__(self, name, f"{base}-{self.suffix}")
        for name in ("group", "transactions", "scores", "alerts", "dead_letters", "verdicts"):
            value = getattr(self, name)
            _require(is_topic(value), name, value, "letters, digits, '.', '_' and '-', at most 249")
        _require(is_topic(self.changelog), "group", self.group, "at most 230 characters")
        topics = [self.transactions, self.scores, self.alerts, self.dead_letters, self.verdicts, self.changelog]
        _require(len(set(topics)) == len(topics), "topics", topics, "six different names")
        for name in ("partitions", "replication", "batch"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        _require(0 <= self.standby_replicas <= 100, "standby_replicas", self.standby_replicas, "0 to 100")
        _require(self.partitions <= 100_000, "partitions", self.partitions, "at most 100000")
        _require(self.replication <= 1000, "replication", self.replication, "at most 1000")
        _require(self.batch <= 10_000, "batch", self.batch, "at most 10000")
        for name in ("commit_interval", "session_timeout", "heartbeat_interval", "model_poll"):
            _require(0 < getattr(self, name) < 3600, name, getattr(self, name), "seconds, above 0")
        _require(
            self.heartbeat_interval * 2 <= self.session_timeout,
            "heartbeat_interval",
            self.heartbeat_interval,
            f"at most half of session_timeout ({self.session_timeout:g})",
        )
        _require(self.threshold is None or isfinite(self.threshold), "threshold", self.threshold, "a number")
        _require(self.explore is None or 0 <= self.explore <= 1, "explore", self.explore, "a share from 0 to 1")
        _require(self.web_host.strip() != "", "web_host", self.web_host, "an address; 0.0.0.0 is every one there is")
        _require(0 <= self.web_port <= 65_535, "web_port", self.web_port, "0 to 65535")

    @property
    def changelog(self) -> str:
        """The topic that holds the account states."""
        return f"{self.group}-accounts-changelog"

    @property
    def brokers(self) -> str:
        """Host and port of each broker."""
        return parse_brokers(self.broker)

    def security(self, environment: Mapping[str, str] | None = None) -> Security:
        """TLS and SASL, with the secret from where it is kept."""
        return Security(
            self.tls,
            self.ca_file,
            self.cert_file,
            self.key_file,
            self.sasl_mechanism,
            self.sasl_username,
            self._password(os.environ if environment is None else environment),
        )

    def _password(self, environment: Mapping[str, str]) -> str | None:
        if self.sasl_password_file is None:
            secret = environment.get(PREFIX + _SECRET.upper())
            return None if secret is None else secret.rstrip("\r\n")
        try:
            return self.sasl_password_file.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise WorkerSettingsError(f"sasl_password_file cannot be read: {error}") from error

    @classmethod
    def load(
        cls,
        flags: Mapping[str, Any] | None = None,
        file: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> WorkerSettings:
        """Settings from all three places; a flag that is None was not given.

        Raises
        ------
        WorkerSettingsError
            If one is unknown or does not fit, naming it and its place.
        """
        names = {f.name for f in fields(cls)}
        values: dict[str, Any] = {}
        if file is not None:
            for name, value in _read(file).items():
                if name not in names:
                    raise WorkerSettingsError(f"{file}: unknown setting {name!r}{_hint(name)}")
                values[name] = _converted(name, value, str(file))
        environment = os.environ if environment is None else environment
        for name in names:
            text = environment.get(PREFIX + name.upper())
            if text is not None and text != "":
                values[name] = _converted(name, text, PREFIX + name.upper())
        for name, value in (flags or {}).items():
            if value is not None:
                values[name] = _converted(name, value, f"--{name.replace('_', '-')}")
        return cls(**values)


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as source:
            return tomllib.load(source)
    except (OSError, ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError, too
        raise WorkerSettingsError(f"the settings in {file} cannot be read: {error}") from error


def _hint(name: str) -> str:
    if name == _SECRET:
        return f": a password belongs into {PREFIX}{_SECRET.upper()} or into a file named by sasl_password_file"
    return ""


def _converted(name: str, value: Any, place: str) -> Any:
    """A value from a text or a file as the setting's type."""
    kind = get_type_hints(WorkerSettings)[name]
    if type(None) in getattr(kind, "__args__", ()):
        kind = next(k for k in kind.__args__ if k is not type(None))
    try:
        if getattr(kind, "__origin__", None) is Literal:
            if value not in kind.__args__:
                raise ValueError(f"expected one of {', '.join(kind.__args__)}")
            return value
        if kind is bool:
            return _truth(value)
        if kind in (int, float) and isinstance(value, bool):
            raise ValueError("expected a number")
        if kind is int and isinstance(value, float):
            raise ValueError("expected a whole number")
        if kind is Path and not str(value):
            raise ValueError("expected a path")
        return kind(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise WorkerSettingsError(f"{place}: {name} is {_shown(value)}: {error}") from error


def _truth(value: Any) -> bool:
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    truth = value if isinstance(value, bool) else known.get(str(value).lower())
    if truth is None:
        raise ValueError("expected true or false")
    return truth


def _require(condition: bool, name: str, value: object, expected: str) -> None:
    if not condition:
        raise WorkerSettingsError(f"{name} is {_shown(value)}, expected {expected}")


def _shown(value: object) -> str:
    """A value in a message, as long as it may be there."""
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
