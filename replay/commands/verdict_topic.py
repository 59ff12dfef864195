"""Options of ``stream-ccsd verdict``, and what its ``--to`` does: verdicts into the topic that a learner reads."""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from replay.commands.kafka import KafkaConfigOption, kafka_extra, security_of
from replay.commands.options import EncodingOption, OptionalStateOption
from stream_ccsd.cli.output import DEAD_LETTERS, emit
from stream_ccsd.errors import StreamCcsdError

if TYPE_CHECKING:
    from stream_ccsd.transaction import Refusal
    from stream_ccsd.verdict import Verdict


@dataclass(frozen=True)
class VerdictOptions:
    """Options of ``stream-ccsd verdict``."""

    state: OptionalStateOption = None
    to: Annotated[
        str | None,
        typer.Option(
            metavar="kafka://HOST:PORT[/TOPIC]",
            help="Send it to the topic of verdicts, which 'stream-ccsd learn' reads, instead of a state's book.",
        ),
    ] = None
    finding: Annotated[
        str | None, typer.Argument(metavar="[fraud|normal|unsure]", help="Your finding.", show_default=False)
    ] = None
    alert: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Which alert: its id, that of its transaction, or @ and its position, like @1204."
        ),
    ] = None
    transaction: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Which transaction, where there is no alert; needs --account. It may be to come."
        ),
    ] = None
    account: Annotated[str | None, typer.Option(metavar="NAME", help="Whose transaction it is.")] = None
    why: Annotated[str | None, typer.Option(metavar="TEXT", help="In your own words, up to 2,000 characters.")] = None
    who: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose verdict it is [default: your login name; of a file, its own column]."),
    ] = None
    source: Annotated[
        str | None,
        typer.Option(
            metavar="investigator|chargeback",
            help="Where it comes from; a chargeback settles disputes. [default: investigator]",
        ),
    ] = None
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="When it was found, in the stream's time or as a date (ISO 8601) [default: the stream's newest time, "
            "or that of the latest verdict on it].",
        ),
    ] = None
    file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Many of them: .csv, .jsonl (also .gz, .xz) or .parquet with columns transaction, account, verdict, "
            "who, time and, if you like, why, source. --who, --source and --at stand for what a row leaves out.",
        ),
    ] = None
    dead_letters: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --from: where rows go that are no verdicts [default: beside the book, "
            "STATE.verdicts.dead_letters.jsonl].",
        ),
    ] = None
    encoding: EncodingOption = None
    kafka_config: KafkaConfigOption = None


def login_name() -> str:
    """Whose verdict it is, where nobody says."""
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise StreamCcsdError("your login name is not known here: say whose verdict it is with --who NAME") from error


def send(options: VerdictOptions, to: str, json_target: str | None) -> None:
    """One verdict, or those of a file; rows that are none are shown, and the others sent."""
    with kafka_extra():
        from replay.produce import produce_messages
        from stream_ccsd.kafka.codec import verdict_message
    from stream_ccsd.kafka.client import parse_target
    from stream_ccsd.kafka.ops.logs import quiet_clients
    from stream_ccsd.transaction import Refusal
    from stream_ccsd.verdict import Verdict

    # A topic need not be named: it is "verdicts" unless workers and learner are told otherwise.
    brokers, topic = parse_target(to if to.rstrip("/").count("/") > 2 else f"{to.rstrip('/')}/verdicts")
    security = security_of(options.kafka_config)
    found = _from_file(options) if options.file is not None else [_one(options)]
    verdicts = [(verdict, when) for verdict, when in found if isinstance(verdict, Verdict)]
    refused = [str(verdict) for verdict, _ in found if isinstance(verdict, Refusal)]
    with quiet_clients():
        messages = ((verdict.account.encode(), verdict_message(verdict, _date(when))) for verdict, when in verdicts)
        produce_messages(messages, brokers, topic, security)
    result = {
        "to": f"kafka://{brokers}/{topic}",
        "sent": len(verdicts),
        "dead_letters": len(refused),
        "refused": refused,
    }
    emit(
        result,
        json_target,
        lambda console, said: console.print(
            "\n".join(
                [
                    f"{said['sent']:,} verdicts sent to {escape(said['to'])}",
                    *(f"no verdict: {escape(why)}" for why in said["refused"]),
                ]
            ),
            highlight=False,
            soft_wrap=True,
        ),
    )
    if refused:
        raise typer.Exit(DEAD_LETTERS)


def _one(options: VerdictOptions) -> tuple[Verdict | Refusal, Any]:
    from stream_ccsd.transaction import Refusal
    from stream_ccsd.verdict import Verdict

    names = ("transaction", "account", "why", "source")
    said: dict[str, Any] = {name: getattr(options, name) for name in names}
    verdict = Verdict.parse(said | {"verdict": options.finding, "who": options.who or login_name(), "time": options.at})
    if isinstance(verdict, Refusal):
        raise StreamCcsdError(f"that is no verdict: {verdict}")
    return verdict, options.at


def _from_file(options: VerdictOptions) -> list[tuple[Verdict | Refusal, Any]]:
    from replay.cases.verdicts import read_verdicts

    assert options.file is not None
    given = {"who": options.who, "source": options.source, "time": options.at}
    stand_in = {name: value for name, value in given.items() if value is not None}
    rows = read_verdicts(options.file, None, stand_in, options.encoding)
    return [(found, (row.values or {}).get("time") or options.at) for row, found in rows]


def _date(when: Any) -> str | None:
    """A time as it was said, where it is a date: what it means is for the calendar of the model to say."""
    try:
        float(when)
        return None
    except (TypeError, ValueError):
        return when if isinstance(when, str) else str(when.isoformat())
