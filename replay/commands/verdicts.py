"""``stream-ccsd verdict`` and ``stream-ccsd verdicts``: what people find of a replay's transactions."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from replay.commands.options import StateOption, check_account, stream_time
from replay.commands.verdict_topic import VerdictOptions, login_name
from stream_ccsd.calendar import Calendar
from stream_ccsd.cli.command import given_flags, with_options
from stream_ccsd.cli.output import DEAD_LETTERS, JsonOption, Rows, check_style, check_target, emit, export, make_console
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import check_writable, write_whole

_COLUMNS = (
    *("sequence", "recorded", "transaction", "account", "verdict", "who", "time", "when", "why", "source"),
    *("counts", "disputed", "waiting"),
)
_KINDS = {"int64": ("sequence",), "float64": ("time",), "bool_": ("counts", "disputed", "waiting")}
_SOURCES = ("investigator", "chargeback")


@with_options
def verdict(options: VerdictOptions, json_target: JsonOption = None) -> None:
    """Record what somebody finds a transaction to be. Nothing is ever changed or deleted: a later verdict overrules.

    They are kept in a file beside the state, STATE.verdicts, to which any number of people may add at once, also while
    the replay runs.
    """
    from replay.cases.verdicts import VerdictLog, audit_log_beside, read_verdicts
    from replay.state.file import StateFile

    check_target(json_target)
    _check(options)
    if options.to is not None:
        from replay.commands.verdict_topic import send

        send(options, options.to, json_target)
        return
    assert options.state is not None
    letters = options.dead_letters or _letters_beside(audit_log_beside(options.state))
    if options.file is not None:
        check_writable(letters)
    with closing(StateFile.open(options.state, read_only=True)) as state:
        calendar = Calendar.from_dict(state.facts["calendar"])
        at = stream_time(options.at, "--at", lambda: calendar)
        given = _said(options, state, at) if options.file is None else {}
        if options.file is not None:
            next(read_verdicts(options.file, calendar, _given(options, at), options.encoding))  # is it a file of them?
        with VerdictLog.create(audit_log_beside(options.state)) as audit_log:
            one = options.file is None
            result = _one(audit_log, state, given, at) if one else _many(audit_log, state, options, letters, at)
    emit(result, json_target, lambda console, shown: _show_recorded(console, shown, calendar))
    if result["dead_letters"]:
        raise typer.Exit(DEAD_LETTERS)


def _check(options: VerdictOptions) -> None:
    if (options.state is None) == (options.to is None):
        raise StreamCcsdError("say where it goes: --state FILE of a replay, or --to kafka://host:port")
    if options.to is not None and (given := given_flags(options, ("alert", "dead_letters"))):
        raise StreamCcsdError(f"{', '.join(given)}: only with --state; on Kafka, say --transaction ID --account NAME")
    if options.to is None and options.kafka_config is not None:
        raise StreamCcsdError("--kafka-config: only with --to kafka://host:port")
    if options.to is not None and options.file is None and options.at is None:
        raise StreamCcsdError("--to needs --at TIME: when it was found, in the stream's time or as a date")
    for name in ("alert", "transaction", "account", "why", "who"):
        check_account(getattr(options, name), f"--{name}")
    if options.source not in (None, *_SOURCES):
        raise typer.BadParameter(f"expected investigator or chargeback, got {options.source!r}", param_hint="--source")
    if options.file is not None:
        given = given_flags(options, ("alert", "transaction", "account", "why"))
        given += ["what was found"] if options.finding is not None else []
        if given:
            raise StreamCcsdError(f"with --from, the file says that: leave out {', '.join(given)}")
        return
    if given := given_flags(options, ("dead_letters", "encoding")):
        raise StreamCcsdError(f"{', '.join(given)}: only with --from FILE")
    if options.finding is None:
        raise StreamCcsdError("say what it is: fraud, normal or unsure; or take many from a file with --from")
    if (options.alert is None) == (options.transaction is None):
        raise StreamCcsdError("say which one: --alert ID of an alert, or --transaction ID with --account NAME")
    if options.transaction is not None and options.account is None:
        raise StreamCcsdError("--transaction needs --account NAME: an id is one of its account's")


def _said(options: VerdictOptions, state: Any, at: float | None) -> dict[str, Any]:
    """What is said, of which transaction; a verdict but for its time."""
    from replay.cases.judgement import alerted, checked, latest_of

    transaction, account = options.transaction, options.account
    if options.alert is not None:
        alert = alerted(state.records, options.alert, account)
        transaction, account = alert["transaction"], alert["account"]
    about = {"transaction": transaction, "account": account, "verdict": options.finding}
    given = about | {"who": options.who or login_name(), "why": options.why, "source": options.source}
    checked(given, at, latest_of(state))
    return given


def _given(options: VerdictOptions, at: float | None) -> dict[str, Any]:
    """What stands for what a row of a file leaves out."""
    given = {"who": options.who, "source": options.source, "time": at}
    return {name: value for name, value in given.items() if value is not None}


def _one(audit_log: Any, state: Any, given: dict[str, Any], at: float | None) -> dict[str, Any]:
    from replay.cases.judgement import checked, effective_verdicts_at, latest_of, reached_by, record_verdict

    key, reached = (given["account"], given["transaction"]), reached_by(state)
    before, newest = audit_log.standing(*key, reached), state.records.newest_time()
    entry = record_verdict(audit_log, given, at=at, newest=newest, before=before, latest=latest_of(state))
    stands = audit_log.standing(*key, reached)
    counts = checked(given, at) if stands is None else stands.verdict
    return {
        "book": str(audit_log.path),
        "recorded": int(entry is not None),
        "known": int(entry is None),
        "waiting": int(not state.records.scored([key])),
        "ahead": int(entry is not None and reached.time_of(entry.verdict) is None),
        "disputed": int(stands is not None and stands.disputed),
        "dead_letters": 0,
        "entry": (entry or next(known for known in audit_log.of(*key) if known.verdict == counts)).to_dict(),
        "standing": effective_verdicts_at(stands),
    }


def _many(audit_log: Any, state: Any, options: VerdictOptions, letters: Path, at: float | None) -> dict[str, Any]:
    from replay.cases.judgement import record_file

    assert options.file is not None
    done = record_file(audit_log, state, options.file, _given(options, at), options.encoding)
    if done.dead_letters or letters.is_file():  # those of an earlier file would be taken for this one's
        write_whole(letters, "".join(letter.to_json() + "\n" for letter in done.dead_letters))
    return {
        "book": str(audit_log.path),
        **{name: getattr(done, name) for name in ("recorded", "known", "waiting", "ahead", "disputed")},
        "dead_letters": len(done.dead_letters),
        "dead_letter_file": str(letters) if done.dead_letters else None,
    }


def _letters_beside(audit_log: Path) -> Path:
    return audit_log.with_name(audit_log.name + ".dead_letters.jsonl")


def _show_recorded(console: Console, result: dict[str, Any], calendar: Calendar) -> None:
    def say(text: str) -> None:
        console.print(escape(text), highlight=False, soft_wrap=True)

    if "entry" in result:
        entry, stands = result["entry"], result["standing"]
        about = f"transaction {entry['transaction']} of {entry['account']}"
        outcome = "recorded" if result["recorded"] else "was recorded before, nothing to add"
        say(f"{about}: {entry['verdict']}, says {entry['who']} at {calendar.show(entry['time'])}; {outcome}")
        if result["ahead"]:
            say("it is dated ahead of the stream, and counts when the stream has come to it")
        elif stands["disputed"]:
            sides = _sides(stands["sides"])
            say(f"disputed ({sides}): it is not learnt from until they agree, or a chargeback settles it")
        elif stands["verdict"] != entry["verdict"]:
            say(f"what counts is a later one: {stands['verdict']}, by {stands['who']}")
        if result["waiting"]:
            say("it waits: no transaction of that id was scored yet")
        return
    say(f"verdicts recorded: {result['recorded']:,}, there before: {result['known']:,}")
    if result["waiting"]:
        say(f"waiting for their transaction: {result['waiting']:,}")
    if result["ahead"]:
        say(f"dated ahead of the stream, to count when it has come to them: {result['ahead']:,}")
    if result["disputed"]:
        say(f"disputed transactions: {result['disputed']:,}; 'stream-ccsd verdicts --disputed' shows them")
    if result["dead_letters"]:
        say(f"rows that are no verdicts: {result['dead_letters']:,}; {result['dead_letter_file']} says why")


def _sides(sides: dict[str, list[str]]) -> str:
    return "; ".join(f"{side}: {', '.join(people)}" for side, people in sides.items())


@dataclass(frozen=True)
class VerdictsOptions:
    """Options of ``stream-ccsd verdicts``."""

    state: StateOption
    account: Annotated[str | None, typer.Option(metavar="NAME", help="Only on transactions of this account.")] = None
    transaction: Annotated[str | None, typer.Option(metavar="ID", help="Only on transactions of this id.")] = None
    disputed: Annotated[bool, typer.Option("--disputed", help="Only where people disagree.")] = False
    waiting: Annotated[bool, typer.Option("--waiting", help="Only on transactions that were not scored yet.")] = False
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="First verify that nothing was changed, inserted or taken out since it was recorded."
        ),
    ] = False
    style: Annotated[
        str,
        typer.Option(
            "--format",
            help="table, or a row each verdict: json (a line each), csv or parquet. In csv, texts that a spreadsheet "
            "would run as a formula begin with an apostrophe; json and parquet are exact.",
        ),
    ] = "table"
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file; parquet needs one.")] = None


@with_options
def verdicts(options: VerdictsOptions, json_target: JsonOption = None) -> None:
    """Show who found what, when and why, what counts now, what is disputed, and what waits for its transaction."""
    from replay.cases.judgement import judged
    from replay.cases.verdicts import audit_log_beside, open_beside
    from replay.state.file import StateFile

    check_target(json_target)
    check_style(options.style, options.out)
    if json_target is not None and (options.style != "table" or options.out is not None):
        raise StreamCcsdError("--json is a format of its own: leave out --format and --out")
    check_account(options.account)
    check_account(options.transaction, "--transaction")
    chosen = {name: getattr(options, name) for name in ("account", "transaction", "disputed", "waiting")}
    with closing(StateFile.open(options.state, read_only=True)) as state:
        calendar = Calendar.from_dict(state.facts["calendar"])
        audit_log = open_beside(options.state)
        found: Rows = []
        last, recorded = None, 0
        if audit_log is not None:
            with audit_log:
                last = audit_log.check() if options.check else None
                recorded = sum(1 for _ in audit_log.entries()) if options.check else 0
                found = judged(audit_log, state, **chosen)
    result = {
        "book": str(audit_log_beside(options.state)),
        "verdicts": sum(len(row["history"]) for row in found),
        "disputed": sum(row["disputed"] for row in found),
        "waiting": sum(row["waiting"] for row in found),
        "transactions": found,
    }
    if options.check:
        result["chain"] = {
            "verdicts": recorded,
            "lines": last.sequence if last else 0,
            "hash": last.hash if last else None,
        }
    if options.style == "table" and options.out is None:
        emit(result, json_target, lambda console, shown: _show_judged(console, shown, calendar))
        return
    export(_flat(found), options.style, options.out, _COLUMNS, _KINDS)
    if options.check:
        _show_chain(make_console(stderr=True), result)


def _flat(found: Rows) -> Rows:
    """A row each verdict, in the order they were recorded."""
    rows = [
        entry | {"disputed": row["disputed"], "waiting": row["waiting"]} for row in found for entry in row["history"]
    ]
    return sorted(rows, key=lambda row: row["sequence"])


def _show_judged(console: Console, result: dict[str, Any], calendar: Calendar) -> None:
    rows = result["transactions"]
    parts = [f"verdicts: {result['verdicts']:,}", f"transactions: {len(rows):,}"]
    parts += [f"disputed: {result['disputed']:,}"] if result["disputed"] else []
    parts += [f"waiting: {result['waiting']:,}"] if result["waiting"] else []
    console.print(", ".join(parts), highlight=False)
    for row in rows:
        stands = f"disputed ({_sides(row['sides'])})" if row["disputed"] else row["verdict"] or "nothing yet"
        waits = "; waits for its transaction" if row["waiting"] else ""
        console.print(
            f"\n[bold]{escape(row['transaction'])} of {escape(row['account'])}[/bold]: {escape(stands)}{waits}",
            highlight=False,
            soft_wrap=True,
        )
        for entry in row["history"]:
            mark = "*" if entry["counts"] else " "
            who = entry["who"] + ("" if entry["source"] == "investigator" else f" ({entry['source']})")
            why = f": {entry['why']}" if entry["why"] else ""
            line = f"{mark} {calendar.show(entry['time'])}  {entry['verdict']:6}  {who}{why}"
            console.print(escape(f"{line}  [recorded {entry['recorded']}]"), highlight=False, soft_wrap=True)
    if rows:
        console.print("\n* counts now: the latest by its time in the stream", highlight=False)
    if "chain" in result:
        _show_chain(console, result)


def _show_chain(console: Console, result: dict[str, Any]) -> None:
    chain = result["chain"]
    text = f"the chain of {chain['verdicts']:,} verdicts is whole; its last hash is {chain['hash']}"
    console.print(text if chain["verdicts"] else "no verdict was recorded yet", highlight=False, soft_wrap=True)
