"""Cases: what the audit log comes to now, and what people may do about alerts.

People claim an account for some minutes, so that two never work on one. They record verdicts, set the alert budget, and
hide alerts for a time. All of it is in the audit log, and nothing here is stored elsewhere, so any number of processes
may open the cases of one log. Whether something may be done is decided while nobody else can write.
"""

from __future__ import annotations

import math
import threading
import time as clock
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from replay.cases.audit_log import Action, LogEntry
from replay.cases.judgement import record_verdict
from replay.cases.verdicts import PendingVerdicts, VerdictEntry, VerdictLog
from stream_ccsd.alerts.policy import checked_threshold
from stream_ccsd.calendar import Calendar
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.stores import Record, RecordStore
from stream_ccsd.verdict import ANY_TIME, MAX_WHY, EffectiveVerdict, Key, Reached, Verdict

What = Literal["merchant", "account", "reason"]
WHATS: tuple[What, ...] = get_args(What)
CLAIM_SECONDS = 600.0


class TakenError(StreamCcsdError):
    """Somebody else is working on it."""


@dataclass(frozen=True, slots=True)
class Analyst:
    """Who acts; ``seat`` is one of their browser sessions: two of them never work on one account either."""

    who: str
    seat: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """Who works on an account until when (seconds since 1970)."""

    account: str
    person: Analyst
    until: float


@dataclass(frozen=True, slots=True)
class Suppression:
    """Alerts that are kept out of the queue: those of a merchant, of an account, or with this weightiest reason.

    ``start`` and ``end`` are times of the stream: what alerts are hidden never depends on when somebody looks.
    """

    sequence: int
    recorded: float
    who: str
    what: What
    value: str
    why: str
    start: float
    end: float
    lifted: dict[str, Any] | None = None

    def hides(self, alert: Record) -> bool:
        """Whether it keeps this alert out of sight."""
        if self.lifted is not None or not self.start <= alert["time"] < self.end:
            return False
        value = best_term(alert) if self.what == "reason" else alert[self.what]
        return bool(value == self.value)


@dataclass
class EffectiveVerdicts:
    """What an audit log comes to, entry by entry."""

    said: dict[Key, list[VerdictEntry]] = field(default_factory=dict)
    stands: dict[Key, EffectiveVerdict] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    suppressions: dict[int, Suppression] = field(default_factory=dict)
    budgets: list[LogEntry] = field(default_factory=list)
    sequence: int = 0
    reached: Reached = ANY_TIME
    """How far the stream has come: a verdict that is dated ahead of it does not count yet."""
    version: int = 0
    """Another number whenever anything is another."""
    _ahead: PendingVerdicts = field(default_factory=PendingVerdicts, compare=False)

    def take(self, log_entry: LogEntry) -> None:
        """Take in the next entry."""
        action, self.sequence = log_entry.said, log_entry.sequence
        self.version += 1
        if action.kind == "verdict":
            entry = VerdictEntry.of(log_entry)
            self.said.setdefault(entry.verdict.key, []).append(entry)
            self._count(entry.verdict)
        elif action.kind == "claim":
            person = Analyst(action.who, action.body["seat"])
            self.claims[action.account] = Claim(action.account, person, action.body["until"])
        elif action.kind == "release":
            self.claims.pop(action.account, None)
        elif action.kind == "budget":
            self.budgets.append(log_entry)
        elif action.kind == "suppress":
            self.suppressions[log_entry.sequence] = Suppression(
                log_entry.sequence, log_entry.recorded, action.who, **action.body
            )
        elif action.kind == "lift":
            self._lift(log_entry)

    def verdicts(self) -> list[Verdict]:
        """All of them; those on one transaction in the order in which they came."""
        return [entry.verdict for entries in self.said.values() for entry in entries]

    def reach(self, reached: Reached) -> None:
        """The stream has come as far: verdicts of times up to then count now."""
        before, self.reached = self.reached, reached
        if reached == before:
            return
        self.version += 1
        if before.newest > reached.newest or before.ended or reached.ended:
            self.stands, self._ahead = {}, PendingVerdicts()
            for entry in sorted(
                (e for entries in self.said.values() for e in entries), key=lambda entry: entry.sequence
            ):
                self._count(entry.verdict)
        else:
            for verdict in self._ahead.audible(reached.newest + reached.ahead):
                self._count(verdict)

    def _count(self, verdict: Verdict) -> None:
        at = self.reached.time_of(verdict)
        if at is None:
            self._ahead.add([verdict])
        else:
            self.stands.setdefault(verdict.key, EffectiveVerdict()).add(verdict, at)

    def _lift(self, log_entry: LogEntry) -> None:
        number = log_entry.said.body["suppression"]
        known = self.suppressions.get(number)
        if known is not None:
            lifted = {"who": log_entry.said.who, "recorded": log_entry.recorded, "why": log_entry.said.body["why"]}
            values = {name: getattr(known, name) for name in known.__dataclass_fields__}
            self.suppressions[number] = Suppression(**values | {"lifted": lifted})


Send = Callable[[Sequence[Verdict]], None]


class Cases:
    """What people do with alerts. Threads may share one.

    Whoever looks never waits for whoever writes: a verdict may be on its way to a broker meanwhile.
    """

    def __init__(
        self, path: Path, *, claim_seconds: float = CLAIM_SECONDS, send: Send | None = None, now: Any = clock.time
    ) -> None:
        self._writer = VerdictLog.create(path)
        self._reader = VerdictLog.open(path, read_only=True)
        self._turn, self._lock = threading.Lock(), threading.RLock()  # to write, and to read
        self._claim_seconds, self._send, self._now = claim_seconds, send, now
        self._standings = EffectiveVerdicts()
        self.refresh()

    def refresh(self) -> EffectiveVerdicts:
        """What the audit log comes to now. It is not changed by others while :meth:`reading`."""
        with self._lock:
            for log_entry in self._reader.lines(after=self._standings.sequence):
                self._standings.take(log_entry)
            return self._standings

    def reach(self, reached: Reached) -> None:
        """That the stream has come as far; it never goes back, whoever of several threads says so last."""
        with self._lock:
            before = self._standings.reached.newest
            if math.isfinite(before):
                reached = replace(reached, newest=max(reached.newest, before))
            self._standings.reach(reached)

    @contextmanager
    def reading(self) -> Iterator[EffectiveVerdicts]:
        """What the audit log comes to, for as long as it takes to look at it."""
        with self._lock:
            yield self.refresh()

    def claim_on(self, account: str) -> Claim | None:
        """Who works on an account now."""
        claim = self._standings.claims.get(account)
        return claim if claim is not None and claim.until > self._now() else None

    def claim(self, account: str, person: Analyst) -> Claim:
        """Work on an account for some minutes; whoever has it keeps it longer, also from another session.

        Raises
        ------
        TakenError
            If somebody else has it.
        """
        with self._writing():
            self._refuse_others(account, person)
            return self._claim(account, person)

    def _claim(self, account: str, person: Analyst) -> Claim:
        until = self._now() + self._claim_seconds
        self._writer.add([Action("claim", person.who, account, body={"until": until, "seat": person.seat})])
        return Claim(account, person, until)

    def take(self, accounts: Sequence[str], person: Analyst) -> str | None:
        """Assign the first of these accounts that nobody else has; None if there is none.

        What this person has already comes first: whoever asks twice by mistake holds one.
        """
        with self._writing():
            free = [account for account in accounts if self._is_free(account, person)]
            held = [account for account in free if self.claim_on(account) is not None]
            chosen = next(iter(held or free), None)
            if chosen is not None and not held:
                self._claim(chosen, person)
        return chosen

    def release(self, account: str, person: Analyst) -> None:
        """Leave an account to others, from whatever browser session."""
        with self._writing():
            self._refuse_others(account, person)
            self._end_claims([account], person)

    def judge(
        self,
        alerts: Sequence[Record],
        finding: str,
        why: str,
        person: Analyst,
        records: RecordStore,
        unfinished: Collection[str] = (),
    ) -> list[VerdictEntry]:
        """Record a verdict on some alerts, all or none of them.

        A claim on their accounts ends with that, but for accounts that are ``unfinished``: other alerts are open.

        Raises
        ------
        TakenError
            If somebody else is working on one of the accounts.
        """
        if not alerts:
            raise StreamCcsdError("name at least one alert")
        with self._writing():
            accounts = dict.fromkeys(alert["account"] for alert in alerts)
            for account in accounts:
                self._refuse_taken(account, person)
            added, newest = [], records.newest_time()
            newest = max([*([] if newest is None else [newest]), *(alert["time"] for alert in alerts)])
            reached = self._standings.reached
            known = math.isfinite(reached.newest)
            self.reach(replace(reached, newest=newest) if known else Reached.of(newest, Calendar()))
            for alert in alerts:
                given = {name: alert[name] for name in ("account", "transaction")}
                given |= {"verdict": finding, "who": person.who, "why": why}
                before = self._standings.stands.get((alert["account"], alert["transaction"]))
                entry = record_verdict(self._writer, given, newest=newest, before=before)
                added += [] if entry is None else [entry]
            if self._send is not None:  # before anybody is told that it was recorded
                self._send([entry.verdict for entry in added])
            self._end_claims([account for account in accounts if account not in unfinished], person)
        return added

    def set_budget(self, threshold: float, before: float, person: Analyst, why: str) -> None:
        """Alert from this score on; a replay that runs takes it up with its next batch."""
        with self._writing():
            body = {"from": before, "to": checked_threshold(threshold), "why": _reason(why)}
            self._writer.add([Action("budget", person.who, body=body)])

    def suppress(self, what: str, value: str, start: float, end: float, person: Analyst, why: str) -> None:
        """Keep alerts out of the queue, from a time of the stream to another."""
        if what not in WHATS:
            raise StreamCcsdError(f"suppress a {', '.join(WHATS[:-1])} or {WHATS[-1]}, not {what!r}")
        if not value.strip():
            raise StreamCcsdError(f"say which {what}")
        if not start < end:
            raise StreamCcsdError("a suppression ends after it begins: say for how many days")
        if not why.strip():
            raise StreamCcsdError("say why: whoever finds the alerts missing will ask")
        body = {"what": what, "value": value, "why": _reason(why), "start": start, "end": end}
        with self._writing():
            self._writer.add([Action("suppress", person.who, account=value if what == "account" else "", body=body)])

    def lift(self, suppression: int, person: Analyst, why: str) -> None:
        """End a suppression before its time; what it hid is in the queue again."""
        with self._writing():
            known = self._standings.suppressions.get(suppression)
            if known is None or known.lifted is not None:
                raise StreamCcsdError(f"there is no suppression {suppression} to lift")
            self._writer.add([Action("lift", person.who, body={"suppression": suppression, "why": _reason(why)})])

    def note_pin(self, version: str | None, before: str | None, person: Analyst, why: str) -> None:
        """That somebody chose which model version is used."""
        with self._writing():
            self._writer.add([Action("pin", person.who, body={"from": before, "to": version, "why": _reason(why)})])

    def newest(self, limit: int, before: int | None = None) -> list[LogEntry]:
        """Entries of the audit log, the newest first."""
        with self._lock:
            return self._reader.newest(limit, before)

    def lines(self, after: int, limit: int) -> list[LogEntry]:
        """Entries behind a number, in order."""
        with self._lock:
            return [log_entry for log_entry, _ in zip(self._reader.lines(after), range(limit), strict=False)]

    def check(self) -> LogEntry | None:
        """Verify the whole chain."""
        with self._lock:
            return self._reader.check()

    def close(self) -> None:
        """Close the audit log."""
        with self._turn, self._lock:
            self._writer.close()
            self._reader.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Nobody else writes meanwhile, here or in another process; what the audit log comes to is known."""
        with self._turn:
            with self._writer.writing():
                self.refresh()
                yield
            self.refresh()

    def _end_claims(self, accounts: Iterable[str], person: Analyst) -> None:
        held = [account for account in accounts if self.claim_on(account) is not None]
        self._writer.add(Action("release", person.who, account) for account in held)

    def _is_free(self, account: str, person: Analyst) -> bool:
        claim = self.claim_on(account)
        return claim is None or claim.person == person

    def _refuse_taken(self, account: str, person: Analyst) -> None:
        self._refuse_others(account, person)
        claim = self.claim_on(account)
        if claim is not None and claim.person != person:
            raise TakenError(f"you are working on {account} in another window: claim it here to go on with it")

    def _refuse_others(self, account: str, person: Analyst) -> None:
        claim = self.claim_on(account)
        if claim is not None and claim.person.who != person.who:
            until = clock.strftime("%H:%M", clock.localtime(claim.until))
            raise TakenError(f"{claim.person.who} is working on {account} until {until}: take another one")


def best_term(alert: Mapping[str, Any]) -> str:
    """What the weightiest reason of an alert is about, as it is suppressed by."""
    if "best_term" in alert:  # in short: it was found before
        return str(alert["best_term"])
    if alert["raised_by"] != "evidence":
        return str(alert["raised_by"])
    terms = (reason.get("term", "") for reason in alert["reasons"])
    return next((term for term in terms if term), "evidence")


def _reason(why: str) -> str:
    text = " ".join(why.split())
    if len(text) > MAX_WHY:
        raise StreamCcsdError(f"a reason has at most {MAX_WHY} characters")
    return text
