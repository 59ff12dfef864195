"""Record verdicts on what a replay found, one by one or from a file, and show which of them are effective."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from replay.cases.verdicts import VerdictEntry, VerdictLog, read_verdicts
from replay.sources.files import listed, raw_text
from replay.state.file import StateFile
from stream_ccsd.calendar import Calendar
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.records import DeadLetter, Origin
from stream_ccsd.stores import Record, RecordStore
from stream_ccsd.transaction import Refusal
from stream_ccsd.verdict import ANY_TIME, EffectiveVerdict, Key, Reached, Verdict

# Verdicts of a file that are recorded at once: the disk is waited for once for all of them.
_BATCH = 5000

LATEST = "latest_time"
"""The note of a state file that says what the latest time is that its model takes."""


@dataclass(frozen=True)
class Imported:
    """What became of a file of verdicts."""

    recorded: int
    known: int  # recorded before
    waiting: int  # of all in the file, those whose transaction did not come yet
    ahead: int  # of all in the file, those that the stream has not come to yet
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


def latest_of(state: StateFile) -> float:
    """The latest time that the model of a replay takes: a verdict that is dated beyond it is a mistake."""
    latest = state.notes.get(LATEST)
    return math.inf if latest is None else float(latest)


def reached_by(state: StateFile) -> Reached:
    """How far the stream of a state file has come: what is dated ahead of that does not count yet."""
    ended = bool(state.notes.get("finished"))
    return Reached.of(state.records.newest_time(), Calendar.from_dict(state.facts["calendar"]), ended)


def record_verdict(
    audit_log: VerdictLog,
    given: Mapping[str, Any],
    *,
    at: float | None = None,
    newest: float | None = None,
    before: EffectiveVerdict | None = None,
    latest: float = math.inf,
) -> VerdictEntry | None:
    """Record what a person says now of one transaction; None if that was recorded before and still counts.

    Without a time (``at``) it is that of the ``newest`` transaction in the stream, or of what counted ``before`` if the
    clock of whoever gave that was a little ahead: the last verdict counts. Nothing is dated further ahead than that.
    What is sent again, since no answer came, is not recorded again.

    Raises
    ------
    StreamCcsdError
        If it is no verdict, needs a time, is dated beyond the ``latest`` there can be, or repeats one that was
        overruled since, which would change nothing.
    """
    verdict = checked(given, at, latest)
    if at is None:
        if newest is None:
            raise StreamCcsdError("nothing was scored yet, so there is no time of the stream: say when with --at TIME")
        verdict = replace(verdict, time=newest if before is None else max(newest, before.at))
        if before is not None and replace(before.verdict, time=verdict.time) == verdict:
            return None
        if before is not None and before.verdict != verdict and before.has(verdict):
            # Somebody returns to an earlier verdict, while the stream stands still.
            verdict = replace(verdict, time=math.nextafter(verdict.time, math.inf))
    added = audit_log.append([verdict])
    if not added and before is not None and before.verdict != verdict:
        raise StreamCcsdError(
            f"{verdict.who} said that before, at the same time, and it was overruled since: give a later --at"
        )
    return added[0] if added else None


def checked(given: Mapping[str, Any], at: float | None, latest: float = math.inf) -> Verdict:
    """What a person says, as a verdict; without a time it has that of 0.

    Raises
    ------
    StreamCcsdError
        If it is none.
    """
    verdict = Verdict.parse({**given, "time": 0.0 if at is None else at}, latest=math.inf if at is None else latest)
    if isinstance(verdict, Refusal):
        raise StreamCcsdError(f"nothing was recorded: {verdict.reason}")
    return verdict


def record_file(
    audit_log: VerdictLog,
    state: StateFile,
    path: Path,
    given: Mapping[str, Any] | None = None,
    encoding: str | None = None,
) -> Imported:
    """Record the verdicts of a file; what is none becomes a dead letter, and its neighbours are recorded."""
    calendar, reached = Calendar.from_dict(state.facts["calendar"]), reached_by(state)
    letters: list[DeadLetter] = []
    keys: dict[Key, int] = {}

    def good() -> Iterator[Verdict]:
        rows = read_verdicts(path, calendar, given, encoding, latest_of(state))
        for position, (row, parsed) in enumerate(rows, start=1):
            if isinstance(parsed, Refusal):
                letters.append(DeadLetter.of(Origin(position), parsed, raw_text(row), row.line))
            else:
                keys[parsed.key] = keys.get(parsed.key, 0) + 1
                yield parsed

    recorded, ahead, verdicts = 0, 0, good()
    while batch := [*islice(verdicts, _BATCH)]:
        recorded += len(audit_log.append(batch))
        ahead += sum(reached.time_of(verdict) is None for verdict in batch)
    arrived = state.records.scored(keys)
    waiting = sum(count for key, count in keys.items() if key not in arrived)
    stands = (audit_log.standing(*key, reached) for key in keys)
    disputed = sum(found is not None and found.disputed for found in stands)
    return Imported(recorded, sum(keys.values()) - recorded, waiting, ahead, disputed, letters)


def judged(
    audit_log: VerdictLog,
    state: StateFile,
    *,
    account: str | None = None,
    transaction: str | None = None,
    disputed: bool = False,
    waiting: bool = False,
) -> list[dict[str, Any]]:
    """Verdicts by transaction, who gave them, and which one is effective; all, or those that are asked for."""
    history = audit_log.history(account, transaction)
    calendar, reached = Calendar.from_dict(state.facts["calendar"]), reached_by(state)
    arrived = state.records.scored(history.keys())
    found = []
    for key, entries in history.items():
        stands = reached.standing(entry.verdict for entry in entries)
        is_waiting = key not in arrived
        if ((stands is not None and stands.disputed) or not disputed) and (is_waiting or not waiting):
            latest = None if stands is None else stands.verdict
            listed = [
                entry.to_dict() | {"when": calendar.iso(entry.verdict.time), "counts": entry.verdict == latest}
                for entry in entries
            ]
            about = {"transaction": key[1], "account": key[0], **effective_verdicts_at(stands)}
            found.append(about | {"waiting": is_waiting, "history": listed})
    return found


def effective_verdicts_at(stands: EffectiveVerdict | None) -> dict[str, Any]:
    """The effective verdict as plain values: whose it is, whether it is disputed, what may be learnt."""
    if stands is None:
        return {"verdict": None, "who": None, "disputed": False, "label": None, "sides": {}}
    latest, words = stands.verdict, {"disputed": stands.disputed, "label": stands.label, "sides": stands.sides}
    return {"verdict": latest.verdict, "who": latest.who, **words}


def with_verdicts(alerts: Iterable[Record], audit_log: VerdictLog | None, reached: Reached = ANY_TIME) -> list[Record]:
    """Alerts with what was found of them, in ``verdict`` and ``disputed``; as they are where there is no audit log."""
    if audit_log is None:
        return [*alerts]
    return [alert | _shortly(audit_log.standing(alert["account"], alert["transaction"], reached)) for alert in alerts]


def _shortly(stands: EffectiveVerdict | None) -> dict[str, Any]:
    return {name: value for name, value in effective_verdicts_at(stands).items() if name in ("verdict", "disputed")}
