"""What ``verdict --to`` does: verdicts into the topic that a learner reads."""

from __future__ import annotations

from typing import Any

import typer
from rich.markup import escape

from replay.commands.kafka import kafka_extra, security_of
from replay.commands.verdict_options import VerdictOptions, login_name
from stream_ccsd.cli.output import emit
from stream_ccsd.cli.signals import DEAD_LETTERS
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.transaction import Refusal
from stream_ccsd.verdict import Verdict


def send(options: VerdictOptions, to: str, json_target: str | None) -> None:
    """One verdict, or those of a file; rows that are none are shown, and the others sent."""
    with kafka_extra():
        from replay.kafka import produce_messages
        from stream_ccsd.kafka.messages import verdict_message
    from stream_ccsd.kafka.connection import parse_target
    from stream_ccsd.kafka.logs import quiet_clients

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
    names = ("transaction", "account", "why", "source")
    said: dict[str, Any] = {name: getattr(options, name) for name in names}
    verdict = Verdict.parse(said | {"verdict": options.finding, "who": options.who or login_name(), "time": options.at})
    if isinstance(verdict, Refusal):
        raise StreamCcsdError(f"that is no verdict: {verdict}")
    return verdict, options.at


def _from_file(options: VerdictOptions) -> list[tuple[Verdict | Refusal, Any]]:
    from replay.verdict_files import read_verdicts

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
