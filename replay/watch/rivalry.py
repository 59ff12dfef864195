"""Champion against challenger, for a page: compared in the background, because all scores of both are read for it."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

from replay.compare import RECALL_NOTE, compare, standings_of
from replay.desk import Desk
from replay.shadow import challenger_beside
from replay.watch.reading import StateReader
from stream_ccsd.errors import StreamCcsdError

log = logging.getLogger(__name__)

# Seconds a comparison holds, at least; one that took long holds for longer.
_FRESH = 30.0
_SHARE = 20.0


class Rivalry:
    """The newest comparison. Nothing where there is no challenger; a note until the first one is done."""

    def __init__(self, state: Path, champion: StateReader, desk: Desk) -> None:
        self._place, self._champion, self._desk = challenger_beside(state), champion, desk
        self._lock = threading.Lock()
        self._result: dict[str, Any] | None = None
        self._due, self._busy = 0.0, False

    def newest(self) -> dict[str, Any] | None:
        """What is known by now; a newer one is begun if it is time for it."""
        if not self._place.exists():
            return None
        with self._lock:
            if not self._busy and time.monotonic() >= self._due:
                self._busy = True
                threading.Thread(target=self._compare, name="rivalry", daemon=True).start()
            return self._result or {"rows": [], "note": "being compared: look again in some seconds"}

    def _compare(self) -> None:
        begun, result = time.monotonic(), None
        try:
            with self._desk.reading() as standings:
                verdicts = [entry.verdict for said in standings.said.values() for entry in said]
                reached = standings.reached
            challenger = StateReader(self._place)
            with self._champion.records() as old, challenger.records() as new:
                found = compare(old, new, standings_of(verdicts, reached) if verdicts else None, limit=0)
            challenger.close()
            result = _shown(found)
        except StreamCcsdError as error:
            result = {"rows": [], "note": str(error)}
        except Exception:
            log.exception("champion and challenger cannot be compared")
            result = {"rows": [], "note": "they cannot be compared: see the log of the server"}
        with self._lock:
            took = time.monotonic() - begun
            self._result, self._busy = result, False
            self._due = time.monotonic() + max(_FRESH, _SHARE * took)


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
