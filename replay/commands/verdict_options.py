"""Options of ``stream-ccsd verdict``, for a book and for a topic."""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from replay.commands.kafka import KafkaConfigOption
from replay.commands.options import EncodingOption, OptionalStateOption
from stream_ccsd.errors import StreamCcsdError


@dataclass(frozen=True)
class VerdictOptions:
    """What ``stream-ccsd verdict`` is told."""

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
