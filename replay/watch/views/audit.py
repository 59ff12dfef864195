"""Audit: every entry of the audit log in words, whether its chain is whole, and whose verdicts stand out.

The command ``stream-ccsd audit`` shows entries in the same words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replay.cases.audit_log import Act, Action, LogEntry
from replay.watch.views.context import Query, ViewContext, whole
from stream_ccsd.calendar import Calendar
from stream_ccsd.errors import StreamCcsdError


def shown(line: LogEntry, calendar: Calendar) -> dict[str, Any]:
    """An entry of the audit log for people."""
    said = line.said
    return {
        "sequence": line.sequence,
        "recorded": line.recorded,
        "kind": said.kind,
        "who": said.who,
        "account": said.account or None,
        "transaction": said.transaction or None,
        "text": _sentence(line, calendar),
        "hash": line.hash,
    }


def _sentence(line: LogEntry, calendar: Calendar) -> str:
    said, body = line.said, line.said.body
    why = f": {body['why']}" if body.get("why") else ""
    return _SENTENCES[said.kind](said, body, calendar) + why


def _verdict(said: Action, body: dict[str, Any], calendar: Calendar) -> str:
    source = "" if body["source"] == "investigator" else f" ({body['source']})"
    return f"{said.transaction} of {said.account} is {body['verdict']}{source}"


_SENTENCES: dict[Act, Callable[[Action, dict[str, Any], Calendar], str]] = {
    "verdict": _verdict,
    "claim": lambda said, body, calendar: f"works on {said.account}",
    "release": lambda said, body, calendar: f"leaves {said.account}",
    "budget": lambda said, body, calendar: f"alerts from {body['to']:.4g} nats on, before from {body['from']:.4g}",
    "suppress": lambda said, body, calendar: (
        f"hides alerts of {body['what']} {body['value']!r} until {calendar.show(body['end'])}"
    ),
    "lift": lambda said, body, calendar: f"ends suppression {body['suppression']}",
    "pin": lambda said, body, calendar: f"pins model {body['to'] or 'none'}, before {body['from'] or 'none'}",
}


_PAGE = 100


def audit(known: ViewContext, query: Query) -> dict[str, Any]:
    """The values of the page. Where an entry is damaged, those behind it are shown, and what is wrong."""
    before = whole(query, "before", 0) or None
    found, entries = dict(known.inspection.newest()), []
    try:
        for line in known.desk.newest(_PAGE, before):
            entries.append(shown(line, known.calendar))
    except StreamCcsdError as error:
        found |= {"whole": False, "problem": str(error)}
    oldest = entries[-1]["sequence"] if entries else 0
    return {"entries": entries, "before": oldest if oldest > 1 else None, **found, **known.reviewing.newest()}
