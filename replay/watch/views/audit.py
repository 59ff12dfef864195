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


def shown(entry: LogEntry, calendar: Calendar) -> dict[str, Any]:
    """An entry of the audit log for people."""
    action = entry.said
    return {
        "sequence": entry.sequence,
        "recorded": entry.recorded,
        "kind": action.kind,
        "who": action.who,
        "account": action.account or None,
        "transaction": action.transaction or None,
        "text": _sentence(entry, calendar),
        "hash": entry.hash,
    }


def _sentence(entry: LogEntry, calendar: Calendar) -> str:
    action, body = entry.said, entry.said.body
    why = f": {body['why']}" if body.get("why") else ""
    return _SENTENCES[action.kind](action, body, calendar) + why


def _verdict(action: Action, body: dict[str, Any], calendar: Calendar) -> str:
    source = "" if body["source"] == "investigator" else f" ({body['source']})"
    return f"{action.transaction} of {action.account} is {body['verdict']}{source}"


_SENTENCES: dict[Act, Callable[[Action, dict[str, Any], Calendar], str]] = {
    "verdict": _verdict,
    "claim": lambda action, body, calendar: f"works on {action.account}",
    "release": lambda action, body, calendar: f"leaves {action.account}",
    "budget": lambda action, body, calendar: f"alerts from {body['to']:.4g} nats on, before from {body['from']:.4g}",
    "suppress": lambda action, body, calendar: (
        f"hides alerts of {body['what']} {body['value']!r} until {calendar.show(body['end'])}"
    ),
    "lift": lambda action, body, calendar: f"ends suppression {body['suppression']}",
    "pin": lambda action, body, calendar: f"pins model {body['to'] or 'none'}, before {body['from'] or 'none'}",
}


_PAGE = 100


def audit(known: ViewContext, query: Query) -> dict[str, Any]:
    """The values of the page. Where an entry is damaged, those behind it are shown, and what is wrong."""
    before = whole(query, "before", 0) or None
    found, entries = dict(known.inspection.newest()), []
    try:
        for entry in known.desk.newest(_PAGE, before):
            entries.append(shown(entry, known.calendar))
    except StreamCcsdError as error:
        found |= {"whole": False, "problem": str(error)}
    oldest = entries[-1]["sequence"] if entries else 0
    return {"entries": entries, "before": oldest if oldest > 1 else None, **found, **known.reviewing.newest()}
