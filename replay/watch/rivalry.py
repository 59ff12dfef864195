"""Champion against challenger, for a page: compared in the background, because all scores of both are read for it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from replay.compare import RECALL_NOTE, compare, standings_of
from replay.desk import Desk
from replay.shadow import challenger_beside
from replay.watch.background import Background
from replay.watch.reading import StateReader
from stream_ccsd.errors import StreamCcsdError

log = logging.getLogger(__name__)

# Seconds that a comparison holds, at least.
_FRESH = 30.0


class Rivalry:
    """The newest comparison. Nothing where there is no challenger; a note until the first one is done."""

    def __init__(self, state: Path, champion: StateReader, desk: Desk) -> None:
        self._place, self._champion, self._desk = challenger_beside(state), champion, desk
        first = {"rows": [], "note": "being compared: look again in some seconds"}
        self._found = Background[dict[str, Any]]("rivalry", self._compared, first, _FRESH)

    def newest(self) -> dict[str, Any] | None:
        """What is known by now; a newer one is begun if it is time for it."""
        return self._found.newest() if self._place.exists() else None

    def _compared(self) -> dict[str, Any]:
        try:
            with self._desk.reading() as standings:
                verdicts = standings.verdicts()
                reached = standings.reached
            challenger = StateReader(self._place)
            with self._champion.records() as old, challenger.records() as new:
                found = compare(old, new, standings_of(verdicts, reached) if verdicts else None, limit=0)
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
