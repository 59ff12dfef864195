"""Recording verdicts on what a replay found, one by one or from a file, and showing what they come to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from replay.files import listed, raw_text
from replay.verdict_files import read_verdicts
from replay.verdicts import Entry, VerdictBook
from stream_ccsd.calendar import Calendar
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.records import DeadLetter, Origin
from stream_ccsd.stores import Record, RecordStore
from stream_ccsd.transaction import Refusal
from stream_ccsd.verdict import Key, Standing, Verdict, standing

# Verdicts of a file that are recorded at once: the disk is waited for once for all of them.
_BATCH = 5000


@dataclass(frozen=True)
class Imported:
    """What became of a file of verdicts."""

    recorded: int
    known: int  # recorded before
    waiting: int  # of all in the file, those whose transaction did not come yet
    disputed: int  # transactions in the file on which there is a dispute now
    dead_letters: list[DeadLetter]


def alerted(records: RecordStore, name: str, account: str | None = None) -> Record:
    """The alert that a person means: by its id, that of its transaction, or ``@`` and its position.

    Raises
    ------
    StreamCcsdError
        If there is none, or there are several of different accounts.
    """
    if name.startswith("@") and name[1:].isdecimal():
        alert = records.alert_at(int(name[1:][:19]))
        found = [] if alert is None else [alert]
    else:
        found = records.alerts_named(name)
    found = [alert for alert in found if account in (None, alert["account"])]
    accounts = sorted({alert["account"] for alert in found})
    if len(accounts) > 1:
        raise StreamCcsdError(f"{name!r} was alerted in several accounts, {listed(accounts)}: add --account")
    if not found:
        of_account = "" if account is None else f" of account {account!r}"
        raise StreamCcsdError(
            f"there is no alert {name!r}{of_account}: 'stream-ccsd alerts' lists them, each with its @POSITION; "
            "--transaction ID --account NAME is for a transaction without an alert"
        )
    return found[-1]


def judge(
    book: VerdictBook, said: Mapping[str, Any], *, at: float | None = None, newest: float | None = None
) -> Entry | None:
    """Record what a person says now of one transaction; None if that was recorded before and still counts.

    Without a time (``at``) it is that of the ``newest`` transaction in the stream, or of the latest verdict on this one
    if that is later: what is said last counts. What is sent again, since no answer came, is not said again.

    Raises
    ------
    StreamCcsdError
        If it is no verdict, needs a time, or repeats one that was overruled since, which would change nothing.
    """
    verdict = checked(said, at)
    before = book.standing(*verdict.key)
    if at is None:
        times = [*([] if newest is None else [newest]), *([before.verdict.time] if before else [])]
        if not times:
            raise StreamCcsdError("nothing was scored yet, so there is no time of the stream: say when with --at TIME")
        verdict = replace(verdict, time=max(times))
        if before is not None and replace(before.verdict, time=verdict.time) == verdict:
            return None
        if before is not None and before.verdict != verdict and verdict in before.history:
            # Somebody returns to what he had said, while the stream stands still.
            verdict = replace(verdict, time=math.nextafter(verdict.time, math.inf))
    added = book.append([verdict])
    if not added and before is not None and before.verdict != verdict:
        raise StreamCcsdError(
            f"{verdict.who} said that before, at the same time, and it was overruled since: give a later --at"
        )
    return added[0] if added else None


def checked(said: Mapping[str, Any], at: float | None) -> Verdict:
    """What a person says, as a verdict; without a time it has that of 0.

    Raises
    ------
    StreamCcsdError
        If it is none.
    """
    verdict = Verdict.parse({**said, "time": 0.0 if at is None else at})
    if isinstance(verdict, Refusal):
        raise StreamCcsdError(f"nothing was recorded: {verdict.reason}")
    return verdict


def record_file(
    book: VerdictBook,
    records: RecordStore,
    path: Path,
    calendar: Calendar,
    given: Mapping[str, Any] | None = None,
    encoding: str | None = None,
) -> Imported:
    """Record the verdicts of a file; what is none becomes a dead letter, and its neighbours are recorded."""
    letters: list[DeadLetter] = []
    keys: dict[Key, int] = {}

    def good() -> Iterator[Verdict]:
        for position, (row, parsed) in enumerate(read_verdicts(path, calendar, given, encoding), start=1):
            if isinstance(parsed, Refusal):
                letters.append(DeadLetter.of(Origin(position), parsed, raw_text(row), row.line))
            else:
                keys[parsed.key] = keys.get(parsed.key, 0) + 1
                yield parsed

    recorded, verdicts = 0, good()
    while batch := [*islice(verdicts, _BATCH)]:
        recorded += len(book.append(batch))
    arrived = records.scored(keys)
    waiting = sum(count for key, count in keys.items() if key not in arrived)
    stands = (book.standing(*key) for key in keys)
    disputed = sum(found is not None and found.disputed for found in stands)
    return Imported(recorded, sum(keys.values()) - recorded, waiting, disputed, letters)


def judged(
    book: VerdictBook,
    records: RecordStore,
    calendar: Calendar,
    *,
    account: str | None = None,
    transaction: str | None = None,
    disputed: bool = False,
    waiting: bool = False,
) -> list[dict[str, Any]]:
    """What was said of each transaction, by whom, and what counts now; all, or those that are asked for."""
    history = book.history(account, transaction)
    arrived = records.scored(history.keys())
    found = []
    for key, entries in history.items():
        stands = standing(entry.verdict for entry in entries)
        is_waiting = key not in arrived
        if (stands.disputed or not disputed) and (is_waiting or not waiting):
            said = [
                entry.to_dict() | {"when": calendar.iso(entry.verdict.time), "counts": entry.verdict == stands.verdict}
                for entry in entries
            ]
            about = {"transaction": key[1], "account": key[0], **stood(stands), "sides": stands.sides}
            found.append(about | {"waiting": is_waiting, "history": said})
    return found


def stood(stands: Standing | None) -> dict[str, Any]:
    """What counts, as plain values: the latest verdict, whose it is, whether it is disputed, what may be learnt."""
    if stands is None:
        return {"verdict": None, "who": None, "disputed": False, "label": None}
    latest = stands.verdict
    return {"verdict": latest.verdict, "who": latest.who, "disputed": stands.disputed, "label": stands.label}


def with_verdicts(alerts: Iterable[Record], book: VerdictBook | None) -> list[Record]:
    """Alerts with what was found of them, in ``verdict`` and ``disputed``; as they are where there is no book."""
    if book is None:
        return [*alerts]
    return [alert | _shortly(book.standing(alert["account"], alert["transaction"])) for alert in alerts]


def _shortly(stands: Standing | None) -> dict[str, Any]:
    return {name: value for name, value in stood(stands).items() if name in ("verdict", "disputed")}
