"""``stream-ccsd audit``: what people did, in order, and whether the chain of it is whole."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from replay.commands.options import StateOption
from stream_ccsd.cli.output import JsonOption, check_target, emit
from stream_ccsd.errors import StreamCcsdError


def audit(
    state: StateOption,
    limit: Annotated[int, typer.Option(help="So many of the newest lines.", min=0)] = 50,
    expect: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="A hash that was noted before: its line must still be there, as it was."),
    ] = None,
    json_target: JsonOption = None,
) -> None:
    """Check the chain of verdicts, claims, budgets and suppressions, and list the newest of them.

    Every line is chained to the one before by a hash, so a line that was changed, inserted or taken out is found. Lines
    cut off at the end are found by --expect with a hash that was noted elsewhere. Exit code 1: the chain is broken.
    """
    from replay.cases.audit_log import AuditLog, audit_log_beside
    from replay.watch.live.follower import StateReader
    from replay.watch.views.audit import shown
    from stream_ccsd.calendar import Calendar

    check_target(json_target)
    with closing(StateReader(state)) as reader:
        calendar = Calendar.from_dict(reader.facts["calendar"])
    path = audit_log_beside(state)
    result: dict[str, Any] = {"book": str(path), "whole": True, "lines": 0, "head": None, "entries": []}
    if path.exists():
        with AuditLog.open(path, read_only=True) as audit_log:
            last = audit_log.check()
            if expect is not None and not any(entry.hash == expect for entry in audit_log.lines()):
                raise StreamCcsdError(f"{path} does not contain a line with the hash {expect}: lines are missing")
            entries = [shown(entry, calendar) for entry in audit_log.newest(limit)[::-1]]
        result |= {"lines": last.sequence if last else 0, "head": last.hash if last else None, "entries": entries}
    elif expect is not None:
        raise StreamCcsdError(f"there is no book {path}, which should have a line with the hash {expect}")
    emit(result, json_target, _show)


def _show(console: Console, result: dict[str, Any]) -> None:
    from datetime import UTC, datetime

    for entry in result["entries"]:
        moment = datetime.fromtimestamp(entry["recorded"], UTC).isoformat(sep=" ", timespec="seconds")
        line = f"{entry['sequence']:>6}  {moment}  {entry['who']}: {entry['text']}"
        console.print(escape(line), highlight=False, soft_wrap=True)
    if not result["lines"]:
        console.print("nothing was recorded yet", highlight=False)
        return
    console.print(
        f"the chain of {result['lines']:,} lines is whole; its last hash is {result['head']}",
        highlight=False,
        soft_wrap=True,
    )
