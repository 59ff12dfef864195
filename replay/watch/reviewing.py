"""Whose verdicts stand out, for a page: counted in the background, because all verdicts are read for it."""

from __future__ import annotations

import logging
from typing import Any

from replay.desk import Desk
from replay.watch.background import Background
from stream_ccsd.lessons.reviewers import STANDS_OUT, Reviewer, standing_out

log = logging.getLogger(__name__)

# People that are shown: those who stand out, then those who judged most.
_SHOWN = 50


def reviewing(desk: Desk) -> Background[dict[str, Any]]:
    """What the newest count has found; None for people until there is one."""
    return Background("reviewing", lambda: _counted(desk), {"people": None, "reviewers": []})


def _counted(desk: Desk) -> dict[str, Any]:
    try:
        with desk.reading() as standings:
            verdicts = standings.verdicts()
        found = sorted(standing_out(verdicts), key=lambda one: (not one.stands_out, -one.judged, one.who))
    except Exception:
        log.exception("verdicts of people cannot be compared")
        return {"people": None, "reviewers": []}
    return {"people": len(found), "reviewers": [one.to_dict() | {"differs": differs(one)} for one in found[:_SHOWN]]}


def differs(one: Reviewer) -> list[str]:
    """In what this person stands out, in words and counts."""
    if not one.stands_out:
        return []
    said = []
    if abs(one.deviation) >= STANDS_OUT:
        more = "more" if one.deviation > 0 else "less"
        own, others = _of(one.frauds, one.judged), _of(one.others_frauds, one.others_judged)
        said.append(f"says fraud {more} often than others: {own}, others {others}")
    if one.dissent >= STANDS_OUT:
        own, others = _of(one.against, one.shared), _of(one.others_against, one.others_shared)
        said.append(f"contradicts most others more often than they do: {own}, others {others}")
    return said


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({part / whole:.0%})"
