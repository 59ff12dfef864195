"""The page service: everything that a page shows and does, over one state file and its audit log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from replay.cases.audit_log import audit_log_beside
from replay.cases.cases import CLAIM_SECONDS, Analyst, Cases, Send
from replay.watch.formats import NotFoundError
from replay.watch.live.background import ChallengerComparison, inspection, reviewing
from replay.watch.live.follower import Follower, StateReader
from replay.watch.live.open_cases import OpenCases
from replay.watch.protocol import Since
from replay.watch.views.account import account
from replay.watch.views.audit import audit, shown
from replay.watch.views.context import ModelCache, ViewContext
from replay.watch.views.model import model
from replay.watch.views.now import now, pulse
from replay.watch.views.queue import next_cases, queue
from replay.watch.views.tune import tune
from stream_ccsd.calendar import Calendar
from stream_ccsd.errors import StreamCcsdError

_VIEWS: dict[str, Callable[[ViewContext, Mapping[str, str]], dict[str, Any]]] = {
    **{"now": now, "queue": queue, "account": account, "tune": tune, "model": model, "audit": audit}
}
# News that a reader may have missed and is still sent one by one.
_MOST_MISSED = 500
# Nats that no budget needs: one in 10^17.
_HIGHEST = 40.0


class PageService:
    """See :class:`~replay.watch.protocol.Watchable`."""

    def __init__(
        self,
        state: Path,
        *,
        claim_seconds: float = CLAIM_SECONDS,
        send: Send | None = None,
        models: Path | None = None,
    ) -> None:
        self._reader = StateReader(state)
        self._desk = Cases(audit_log_beside(state), claim_seconds=claim_seconds, send=send)
        self._follower = Follower(self._reader, self._desk)
        self._model_cache, self._open_cases = ModelCache(state, models), OpenCases()
        self._rivalry = ChallengerComparison(state, self._reader, self._desk)
        self._inspection, self._reviewing = inspection(audit_log_beside(state)), reviewing(self._desk)
        self._state = state

    def _known(self, who: str = "", seat: str = "") -> ViewContext:
        shared = self._reader, self._follower, self._desk, self._model_cache, self._open_cases, self._rivalry
        return ViewContext(*shared, self._inspection, self._reviewing, self.calendar, Analyst(who, seat))

    @property
    def calendar(self) -> Calendar:
        """What its times mean."""
        return Calendar.from_dict(self._reader.facts["calendar"])

    @property
    def title(self) -> str:
        """What the stream is called."""
        return str(self._follower.notes.get("source") or self._state.name)

    @property
    def trouble(self) -> str | None:
        """What people should know on every page."""
        return self._follower.trouble

    @property
    def changed(self) -> int:
        """A number that grows whenever anything changes."""
        return self._follower.changes

    def wait(self, changed: int, seconds: float) -> int:
        """Block until that number is another one, at most so long; gives the number."""
        return self._follower.wait(changed, seconds)

    def caught_up(self, seconds: float) -> bool:
        """Wait until all that was recorded before is known."""
        return self._follower.caught_up(seconds)

    def now_at(self) -> tuple[int, int]:
        """The newest position of an alert, and the newest entry of the audit log."""
        with self._follower.lock:
            return self._follower.alerts.position, self._desk.refresh().sequence

    def since(self, position: int, sequence: int, limit: int) -> Since:
        """Alerts and entries of the audit log behind a place, in order; see the protocol."""
        known = self._known()
        with known.looking() as effective:
            rows = self._follower.alerts.rows
            start = _first_behind(rows, position)
            newest = self._follower.alerts.position, effective.sequence
            if len(rows) - start > _MOST_MISSED or effective.sequence - sequence > _MOST_MISSED:
                return Since([], [], *newest, True)
            alerts = [known.shown(row, effective) for row in rows[start : start + limit]]
        entries = self._desk.lines(sequence, limit)
        return Since(
            alerts,
            [shown(entry, self.calendar) for entry in entries],
            alerts[-1]["position"] if alerts else position,
            entries[-1].sequence if entries else sequence,
            False,
        )

    def pulse(self) -> dict[str, Any]:
        """How it goes, in few numbers."""
        return pulse(self._known())

    def view(self, name: str, query: Mapping[str, str], who: str, seat: str) -> dict[str, Any]:
        """The values of a page."""
        if name not in _VIEWS:
            raise NotFoundError(f"there is no view {name!r}")
        return _VIEWS[name](self._known(who, seat), query)

    def take(self, query: Mapping[str, str], who: str, seat: str) -> dict[str, Any] | None:
        """Assign the best free case; None where all are claimed."""
        known = self._known(who, seat)
        chosen = self._desk.take(next_cases(known, query), known.person)
        self._follower.wake()
        return None if chosen is None else {"account": chosen}

    def claim(self, account: str, who: str, seat: str) -> None:
        """Claim one case."""
        with self._follower.lock:
            alerted = account in self._follower.alerts.by_account
        with self._reader.records() as records:
            if not alerted and records.account(account) is None:
                raise NotFoundError(f"there is no account {account!r} in this stream")
        self._desk.claim(account, Analyst(who, seat))
        self._follower.wake()

    def release(self, account: str, who: str, seat: str) -> None:
        """Give a claim back."""
        self._desk.release(account, Analyst(who, seat))
        self._follower.wake()

    def judge(self, ids: Sequence[str], finding: str, why: str, who: str, seat: str) -> int:
        """Record a verdict on these alerts; gives how many verdicts were added."""
        with self._reader.connected() as (_, records):
            alerts = []
            for name in dict.fromkeys(ids):
                with self._follower.lock:
                    row = self._follower.alerts.by_id.get(name)
                row = row or records.alert_of(name)
                if row is None:
                    raise NotFoundError(f"there is no alert {name!r} in this stream")
                alerts.append(row)
            unfinished = self._unfinished(alerts)
            added = self._desk.judge(alerts, finding, why, Analyst(who, seat), records, unfinished)
        self._follower.wake()
        return len(added)

    def _unfinished(self, judged: Sequence[Mapping[str, Any]]) -> set[str]:
        """Accounts of these alerts that have others, which are still open."""
        opened, ids = self._open_cases.of(self._known()).cases, {alert["id"] for alert in judged}
        accounts = {alert["account"] for alert in judged}
        return {name for name in accounts if any(row["id"] not in ids for row in opened.get(name, ()))}

    def set_budget(self, threshold: float, who: str, why: str) -> None:
        """Record another threshold; a replay that runs takes it up."""
        known = self._known(who)
        if threshold > _HIGHEST:
            raise StreamCcsdError(f"no transaction scores {threshold:g} nats: a budget is at most {_HIGHEST:g}")
        if threshold < self._follower.scores.floor:
            raise StreamCcsdError(
                f"a page counts scores from {self._follower.scores.floor:.2f} nats on: for a lower threshold, start "
                "the replay with --threshold"
            )
        self._desk.set_budget(threshold, known.threshold, known.person, why)
        self._follower.wake()

    def suppress(self, what: str, value: str, days: float, who: str, why: str) -> None:
        """Hide alerts of a merchant, an account or for a reason: those that are open, and those of the days to come."""
        known = self._known(who)
        if not 0 < days <= 36_500:
            raise StreamCcsdError("a suppression lasts for more than 0 and at most 36,500 days")
        with self._follower.lock:
            rows = self._follower.alerts.rows
            start = min((row["time"] for row in rows), default=0.0)
            newest = self._follower.scores.last_time
        if not newest >= start:
            raise StreamCcsdError("nothing was scored yet: there is nothing to hide")
        self._desk.suppress(what, value, start, newest + known.days(days), known.person, why)
        self._follower.wake()

    def lift(self, sequence: int, who: str, why: str) -> None:
        """End a suppression before its time."""
        self._desk.lift(sequence, Analyst(who), why)
        self._follower.wake()

    def pin(self, version: str, who: str, why: str) -> None:
        """Keep to one version of the model; an empty one ends that."""
        versions = self._model_cache.versions
        before = versions.choice().pinned
        after = versions.find(version) if version else None
        self._desk.note_pin(after, before, Analyst(who), why)  # first: what is done is in the log, whatever comes
        versions.pin(after, who) if after else versions.unpin(who)
        self._follower.wake()

    def close(self) -> None:
        """Stop following, and close the files."""
        self._follower.close()
        self._desk.close()
        self._reader.close()


def _first_behind(rows: Sequence[Mapping[str, Any]], position: int) -> int:
    """Where the alerts behind a position begin; they are in order, and most readers are near the end."""
    start = len(rows)
    while start and rows[start - 1]["position"] > position:
        start -= 1
        if len(rows) - start > _MOST_MISSED:
            break
    return start
