"""A verdict: what somebody found a transaction to be, who, when and why. It also says which of several verdicts counts.

Verdicts are never changed or taken back: a later one overrules, and all of them stay. Their times are those of the
stream, and bounded by it: see :class:`Reached`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from stream_ccsd.calendar import Calendar, CalendarError
from stream_ccsd.transaction import Refusal, TransactionError, checked_text, checked_time, malformed, shown

Finding = Literal["fraud", "normal", "unsure"]
FINDINGS: tuple[Finding, ...] = get_args(Finding)
Origin = Literal["investigator", "chargeback", "label"]
ORIGINS: tuple[Origin, ...] = get_args(Origin)

MAX_WHY = 2000
"""Longest reason, in characters."""

Key = tuple[str, str]
"""Account and transaction: an id is one of its account's."""

Label = Literal["fraud", "normal"]
"""The labels that can be learnt."""

_OPPOSITE: dict[Finding, Finding] = {"fraud": "normal", "normal": "fraud"}
# Where time has no unit, verdicts may be ahead by this share of it: one that returns to an earlier finding is dated
# a moment later.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict on one transaction. ``time`` is when it became known, in the stream's own time.

    >>> said = {"transaction": "x7", "account": "C1", "verdict": "Fraud", "who": "ann", "time": "12.5"}
    >>> Verdict.parse(said)
    Verdict(transaction='x7', account='C1', verdict='fraud', who='ann', time=12.5, why='', source='investigator')
    >>> print(Verdict.parse(said | {"verdict": "perhaps"}))
    verdict: expected fraud, normal or unsure, got 'perhaps'
    """

    transaction: str
    account: str
    verdict: Finding
    who: str
    time: float
    why: str = ""
    source: Origin = "investigator"

    @property
    def key(self) -> Key:
        """Which transaction it is about."""
        return self.account, self.transaction

    @classmethod
    def parse(
        cls,
        record: Mapping[str, Any],
        calendar: Calendar | None = None,
        position: str | None = None,
        latest: float = math.inf,
    ) -> Verdict | Refusal:
        """A verdict from named values, or why it is none; unknown names are ignored.

        ``why`` and ``source`` may be absent or empty. A date is understood by the calendar of the stream, and without
        one as that of a transaction is: in seconds since 1970. A time beyond the ``latest`` that the stream's model is
        for (``Model.latest_time``) is a mistake, as it is for a transaction.
        """
        try:
            return cls._checked(record, calendar, position, latest)
        except TransactionError as error:
            return error.refusal

    @classmethod
    def _checked(
        cls, record: Mapping[str, Any], calendar: Calendar | None, position: str | None, latest: float
    ) -> Verdict:
        if not isinstance(record, Mapping):
            raise malformed(f"expected a record with named fields, got {shown(record)}", None, record, position)
        for name in NEEDED:
            if name not in record:
                raise malformed(f"{name}: is missing", name, None, position)
        return cls(
            transaction=checked_text("transaction", record["transaction"], position),
            account=checked_text("account", record["account"], position),
            verdict=_one_of(FINDINGS, "verdict", record["verdict"], position),
            who=checked_text("who", record["who"], position),
            time=_time(record["time"], calendar, position, latest),
            why=_why(record.get("why"), position),
            source=_source(record.get("source"), position),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


NEEDED = ("transaction", "account", "verdict", "who", "time")
"""Fields that a verdict must have."""


@dataclass(slots=True)
class _Said:
    """The newest verdict of one person on a transaction."""

    at: float
    verdict: Verdict
    alike: set[Verdict]  # all of this person's with this time: none of them counts a second time


class EffectiveVerdict:
    """The verdict that counts of those on one transaction, which are added in the order of their arrival.

    The latest by its own time counts, of one time the one that arrived last. It is disputed while another person's
    newest verdict says the opposite, unless more persons agree with it than oppose it, or it is a chargeback: that
    settles. A person who overrules an own verdict disputes nothing, and repeating a verdict changes nothing.

    One more costs the same however many there are, because only the last verdict of each person is kept.
    """

    def __init__(self) -> None:
        self._people: dict[str, _Said] = {}
        self._votes = dict.fromkeys(FINDINGS, 0)
        self._latest: _Said | None = None
        self.unasked = False
        """Whether a chargeback or a label ever said fraud, without an alert to look at."""

    def add(self, verdict: Verdict, at: float | None = None) -> None:
        """The next one; ``at`` is when it counts from, where that is not its own time."""
        at = verdict.time if at is None else at
        self.unasked = self.unasked or (verdict.verdict == "fraud" and verdict.source != "investigator")
        before = self._people.get(verdict.who)
        if before is not None and (at < before.at or (at == before.at and verdict in before.alike)):
            return
        if before is not None:
            self._votes[before.verdict.verdict] -= 1
        alike = before.alike if before is not None and at == before.at else set()
        alike.add(verdict)
        self._votes[verdict.verdict] += 1
        said = self._people[verdict.who] = _Said(at, verdict, alike)
        if self._latest is None or at >= self._latest.at:
            self._latest = said

    @property
    def _counts(self) -> _Said:
        if self._latest is None:
            raise ValueError("no verdict: nothing can stand")
        return self._latest

    @property
    def verdict(self) -> Verdict:
        """The one that counts."""
        return self._counts.verdict

    @property
    def at(self) -> float:
        """When that counts from."""
        return self._counts.at

    @property
    def disputed(self) -> bool:
        """Whether others say the opposite, and nothing settles it."""
        latest = self.verdict
        if latest.verdict == "unsure" or latest.source == "chargeback":
            return False
        return 0 < self._votes[_OPPOSITE[latest.verdict]] >= self._votes[latest.verdict]

    @property
    def label(self) -> Label | None:
        """The label to learn; None where there is none."""
        said = self.verdict.verdict
        return None if said == "unsure" or self.disputed else said

    @property
    def words(self) -> str:
        """For people: ``disputed``, or the verdict."""
        return "disputed" if self.disputed else self.verdict.verdict

    @property
    def sides(self) -> dict[str, list[str]]:
        """Who says what now: each person's newest verdict, the oldest of them first."""
        found: dict[str, list[str]] = {}
        for who, said in sorted(self._people.items(), key=lambda item: (item[1].at, item[0])):
            found.setdefault(said.verdict.verdict, []).append(who)
        return found

    def has(self, verdict: Verdict) -> bool:
        """Whether this person has said just this, at the time of what he says now."""
        said = self._people.get(verdict.who)
        return said is not None and verdict in said.alike


def effective_verdict(verdicts: Iterable[Verdict]) -> EffectiveVerdict:
    """What the verdicts on one transaction come to; they are given in the order of their arrival.

    >>> ann = Verdict("x7", "C1", "fraud", "ann", 12.0)
    >>> bob = Verdict("x7", "C1", "normal", "bob", 13.0)
    >>> both = effective_verdict([bob, ann])
    >>> effective_verdict([ann]).label, both.words, both.verdict.who
    ('fraud', 'disputed', 'bob')
    >>> effective_verdict([ann, bob, Verdict("x7", "C1", "normal", "eve", 14.0)]).label
    'normal'
    """
    found = EffectiveVerdict()
    for verdict in verdicts:
        found.add(verdict)
    _ = found.verdict  # there is one
    return found


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a stream has come, which bounds the times of verdicts on it.

    A verdict that is dated ahead of the stream does not count until the stream reaches its time: a verdict of today
    overrules one that is dated years ahead. A stream that has ended advances no more: what was found since then counts
    as of its end, in the order of arrival. By default, everything counts at its own time.

    >>> said = [Verdict("x7", "C1", "normal", "bob", 1e9), Verdict("x7", "C1", "fraud", "ann", 50.0)]
    >>> [Reached(newest, ended=ended).standing(said).verdict.who for newest, ended in ((50.0, 0), (50.0, 1), (2e9, 0))]
    ['ann', 'ann', 'bob']
    """

    newest: float = math.inf
    """Time of the newest transaction."""
    ahead: float = 0.0
    """By how much the clocks of reviewers may be ahead of it."""
    ended: bool = False

    @classmethod
    def of(cls, newest: float | None, calendar: Calendar, ended: bool = False) -> Reached:
        """A stream with this newest transaction; without one, there is nothing to compare times with."""
        if newest is None:
            return cls()
        day = calendar.of_days(1.0)
        return cls(newest, _ROUNDING * max(1.0, abs(newest)) if day is None else day, ended)

    def time_of(self, verdict: Verdict) -> float | None:
        """When a verdict counts from; None if the stream has not come to it."""
        if verdict.time <= self.newest + self.ahead:
            return verdict.time
        return self.newest if self.ended else None

    def standing(self, verdicts: Iterable[Verdict]) -> EffectiveVerdict | None:
        """What verdicts on one transaction come to by now, in the order of their arrival; None if none counts yet."""
        found, counts = EffectiveVerdict(), False
        for verdict in verdicts:
            at = self.time_of(verdict)
            if at is not None:
                found.add(verdict, at)
                counts = True
        return found if counts else None


ANY_TIME = Reached()
"""Where nobody says how far the stream has come: everything counts."""


def by_transaction(verdicts: Iterable[Verdict]) -> dict[Key, list[Verdict]]:
    """Verdicts in their order, together with the others on the same transaction."""
    found: dict[Key, list[Verdict]] = {}
    for verdict in verdicts:
        found.setdefault(verdict.key, []).append(verdict)
    return found


def _one_of(words: tuple[Any, ...], name: str, value: Any, position: str | None) -> Any:
    word = value.strip().casefold() if isinstance(value, str) else None
    if word not in words:
        wanted = f"{', '.join(words[:-1])} or {words[-1]}"
        raise malformed(f"{name}: expected {wanted}, got {shown(value)}", name, value, position)
    return word


def _source(value: Any, position: str | None) -> Origin:
    found: Origin = "investigator" if _is_empty(value) else _one_of(ORIGINS, "source", value, position)
    return found


def _why(value: Any, position: str | None) -> str:
    """Free text on one line; ends of lines in it become spaces."""
    text = " ".join(value.split()) if isinstance(value, str) else value
    return "" if _is_empty(text) else checked_text("why", text, position, MAX_WHY)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _time(value: Any, calendar: Calendar | None, position: str | None, latest: float) -> float:
    def time_of(moment: datetime) -> float:
        try:
            return moment.timestamp() if calendar is None else calendar.time_of(moment)
        except CalendarError as error:
            raise malformed(f"time: {error}", "time", value, position) from None

    time = checked_time(value, position, time_of) + 0.0  # -0.0 is no other moment than 0.0
    if time > latest:
        until = (calendar or Calendar()).show(latest)
        raise malformed(
            f"time: {shown(value)} is later than {until}, the latest that the model of this stream takes: is it a "
            "mistake?",
            "time",
            value,
            position,
        )
    return time
