"""Queue: alerts without a verdict, one case for each account, the weightiest first."""

from __future__ import annotations

from typing import Any, Literal

from replay.cases.cases import EffectiveVerdicts
from replay.watch.live.open_cases import is_hidden, rank
from replay.watch.views.context import Query, ViewContext, number, whole
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.stores import Record

By = Literal["loss", "score"]
PAGE = 50
ALL = "all"
"""A page that is no page: everything, as an export has it."""
_RANKED: dict[str, str] = {"loss": "expected_loss", "score": "score"}
FILTERS = (
    *("score", "amount_from", "amount_to", "merchant", "category", "field", "value", "age", "mine", "account"),
    *("raised_by", "suppressed"),
)


def queue(known: ViewContext, query: Query) -> dict[str, Any]:
    """The values of the page."""
    by = _ranking(query)
    with known.looking() as effective:
        opened = known.open_cases.of(known)
        chosen = _ranked(known, query, by)
        size = max(PAGE, len(chosen)) if query.get("page") == ALL else PAGE
        pages = max(1, -(-len(chosen) // size))
        page = 1 if query.get("page") == ALL else min(max(1, whole(query, "page", 1)), pages)
        shown = chosen[(page - 1) * size : page * size]
        return {
            "cases": [_case(known, effective, account, rows) for account, rows in shown],
            "total": len(chosen),
            "page": page,
            "pages": pages,
            "by": by,
            "filters": {name: query[name] for name in FILTERS if query.get(name)},
            "mine": sum(_is_mine(known, account) for account in effective.claims if account in opened.cases),
            "suppressed": opened.suppressed,
            "below_threshold": opened.below,
            "choices": opened.choices,
        }


def next_cases(known: ViewContext, query: Query) -> list[str]:
    """Accounts in the order in which they should be worked on."""
    return [account for account, _ in _ranked(known, query, _ranking(query))]


def _ranking(query: Query) -> By:
    by = query.get("by") or "loss"
    if by not in _RANKED:
        raise StreamCcsdError(f"by: expected loss or score, got {by[:40]!r}")
    return "score" if by == "score" else "loss"


def _ranked(known: ViewContext, query: Query, by: By) -> list[tuple[str, list[Record]]]:
    with known.looking():
        opened = known.open_cases.of(known)
        if not any(query.get(name) for name in FILTERS):
            return opened.ranked(_RANKED[by])
        wanted = _filter(known, query)
        cases = opened.all() if _is_ticked(query, "suppressed") else opened.cases
        found = ((account, [row for row in rows if wanted(row)]) for account, rows in cases.items())
        return rank((case for case in found if case[1]), _RANKED[by])


def _filter(known: ViewContext, query: Query) -> Any:
    """Whether an alert is wanted, by what a person filled in."""
    least, low, high = (number(query, name) for name in ("score", "amount_from", "amount_to"))
    mine, age = _is_ticked(query, "mine"), query.get("age", "").strip()
    since = known.follower.scores.last_time - _length(known, age) if age else None
    texts = {name: query[name] for name in ("merchant", "category", "account", "raised_by") if query.get(name)}
    field, value = query.get("field"), query.get("value", "")

    def wanted(row: Record) -> bool:
        if any(row[name] != text for name, text in texts.items()):
            return False
        if (least is not None and row["score"] < least) or (since is not None and row["time"] < since):
            return False
        if (low is not None and row["amount"] < low) or (high is not None and row["amount"] > high):
            return False
        if field and value and str((row["fields"] or {}).get(field, "")) != value:
            return False
        return not mine or _is_mine(known, row["account"])

    return wanted


def _is_ticked(query: Query, name: str) -> bool:
    return query.get(name) in ("1", "on", "yes")


def _length(known: ViewContext, text: str) -> float:
    """Of time: days where it is a number, else as people write it, like 36h."""
    try:
        return known.days(float(text))
    except ValueError:
        return known.calendar.duration(text)


def _is_mine(known: ViewContext, account: str) -> bool:
    claim = known.desk.claim_on(account)
    return claim is not None and claim.person.who == known.person.who


def _case(known: ViewContext, effective: EffectiveVerdicts, account: str, rows: list[Record]) -> dict[str, Any]:
    newest, active = max(row["time"] for row in rows), known.active(effective)
    return {
        "account": account,
        "alerts": [known.shown(row, effective, is_hidden(row, active)) for row in rows],
        "score": max(row["score"] for row in rows),
        "expected_loss": max(row["expected_loss"] for row in rows),
        "amount": sum(row["amount"] for row in rows),
        "newest": newest,
        "when": known.when(newest),
        "reasons": [*dict.fromkeys(row["reason"] for row in rows)],
        "claim": claim_of(known, account),
        "first": rows[0]["position"],
    }


def claim_of(known: ViewContext, account: str) -> dict[str, Any] | None:
    """Who works on an account now."""
    claim = known.desk.claim_on(account)
    if claim is None:
        return None
    own = claim.person.who == known.person.who  # maybe in another window
    return {"who": claim.person.who, "until": claim.until, "mine": claim.person == known.person, "own": own}
