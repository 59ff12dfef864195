"""Slow results for a page, made in threads of their own: the newest result is shown meanwhile.

There are three. The comparison of champion and challenger reads all scores of both. The check of the audit log's chain
begins at its first entry. The count of whose verdicts stand out reads all verdicts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from replay.cases.audit_log import AuditLog
from replay.cases.cases import Cases
from replay.compare import RECALL_NOTE, compare, effective_verdicts_of
from replay.run.challenger import challenger_beside
from replay.watch.live.follower import StateReader
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.learning.reviewers import STANDS_OUT, Reviewer, standing_out

_T = TypeVar("_T")

# A result holds for so many times as long as it took.
_SHARE = 20.0


class Background(Generic[_T]):
    """The newest result; asking begins the next one when it is time for it. ``make`` raises nothing."""

    def __init__(self, name: str, make: Callable[[], _T], first: _T, fresh: float = 0.0) -> None:
        self._name, self._make, self._found, self._fresh = name, make, first, fresh
        self._lock = threading.Lock()
        self._due, self._busy = 0.0, False

    def newest(self, patience: float = 0.15) -> _T:
        """What is known by now; what is quickly made is made at once."""
        with self._lock:
            begin = not self._busy and time.monotonic() >= self._due
            self._busy = self._busy or begin
        if begin:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            thread.join(patience)
        with self._lock:
            return self._found

    def _run(self) -> None:
        begun = time.monotonic()
        found = self._make()
        with self._lock:
            self._found, self._busy = found, False
            self._due = time.monotonic() + max(self._fresh, _SHARE * (time.monotonic() - begun))


# Seconds that a check holds, at least.
_FRESH = 10.0
_NOTHING: dict[str, Any] = {"whole": None, "checked": 0, "at": None, "head": None, "problem": None}


def inspection(audit_log: Path) -> Background[dict[str, Any]]:
    """What the newest check has found."""
    return Background("inspection", lambda: _checked(audit_log), _NOTHING, _FRESH)


def _checked(path: Path) -> dict[str, Any]:
    try:
        with AuditLog.open(path, read_only=True) as audit_log:
            last = audit_log.check()
        found = {"whole": True, "checked": last.sequence if last else 0, "head": last.hash if last else None}
    except StreamCcsdError as error:
        found = {"whole": False, "problem": str(error)}
    except Exception as error:  # not looked at is not whole
        found = {"problem": f"the chain could not be checked: {error!r}"}
    return _NOTHING | found | {"at": time.time()}


log = logging.getLogger(__name__)

# Seconds that a comparison holds, at least.
_COMPARED_ANEW = 30.0


class ChallengerComparison:
    """The newest comparison. Nothing where there is no challenger; a note until the first one is done."""

    def __init__(self, state: Path, champion: StateReader, cases: Cases) -> None:
        self._place, self._champion, self._desk = challenger_beside(state), champion, cases
        first = {"rows": [], "note": "being compared: look again in some seconds"}
        self._found = Background[dict[str, Any]]("rivalry", self._compared, first, _COMPARED_ANEW)

    def newest(self) -> dict[str, Any] | None:
        """What is known by now; a newer one is begun if it is time for it."""
        return self._found.newest() if self._place.exists() else None

    def _compared(self) -> dict[str, Any]:
        try:
            with self._desk.reading() as effective:
                verdicts = effective.verdicts()
                reached = effective.reached
            challenger = StateReader(self._place)
            with self._champion.records() as old, challenger.records() as new:
                found = compare(old, new, effective_verdicts_of(verdicts, reached) if verdicts else None, limit=0)
            challenger.close()
            return _shown(found)
        except StreamCcsdError as error:
            return {"rows": [], "note": str(error)}
        except Exception:
            log.exception("champion and challenger cannot be compared")
            return {"rows": [], "note": "they cannot be compared: see the log of the server"}


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    """What a page shows of a comparison: a row each figure, with those of champion and challenger."""
    old, new = found["champion"], found["challenger"]
    changes = found["by_account"]
    rows = [
        ["model", old["model"], new["model"], ""],
        ["alerts", old["alerts"], new["alerts"], ""],
        ["alerts a day", old["alerts_per_day"], new["alerts_per_day"], ""],
        ["accounts", old["accounts"], new["accounts"], f"{changes['gained']:,} gained, {changes['lost']:,} lost"],
    ]
    judged = found["judged"]
    if judged is not None:
        for level in ("by_transaction", "by_account"):
            for measure in ("precision", "recall"):
                values = judged[level][measure]
                sides = [values[side]["value"] for side in ("champion", "challenger")]
                rows.append([f"{measure} {level.replace('_', ' ')}", *sides, _difference(values["difference"])])
    return {"champion": old, "challenger": new, "rows": rows, "note": RECALL_NOTE if judged is not None else ""}


def _difference(values: dict[str, Any]) -> str:
    if values["value"] is None:
        return ""
    return f"{values['value']:+.3f} ({values['low']:+.3f} to {values['high']:+.3f})"


log = logging.getLogger(__name__)

# People that are shown: those who stand out, then those with most verdicts.
_SHOWN = 50


def reviewing(cases: Cases) -> Background[dict[str, Any]]:
    """What the newest count has found; None for people until there is one."""
    return Background("reviewing", lambda: _counted(cases), {"people": None, "reviewers": []})


def _counted(cases: Cases) -> dict[str, Any]:
    try:
        with cases.reading() as effective:
            verdicts = effective.verdicts()
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
