"""A verdict: what somebody found a transaction to be, who, when and why; and what counts where several were given.

Verdicts are never changed or taken back: a later one overrules, and all of them stay.
"""

from __future__ import annotations

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

_OPPOSITE = {"fraud": "normal", "normal": "fraud"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What somebody says of one transaction. ``time`` is when it became known, in the stream's own time.

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
        cls, record: Mapping[str, Any], calendar: Calendar | None = None, position: str | None = None
    ) -> Verdict | Refusal:
        """A verdict from named values, or why it is none; unknown names are ignored.

        ``why`` and ``source`` may be absent or empty. A date is understood by the calendar of the stream, and without
        one as that of a transaction is: in seconds since 1970.
        """
        try:
            return cls._checked(record, calendar, position)
        except TransactionError as error:
            return error.refusal

    @classmethod
    def _checked(cls, record: Mapping[str, Any], calendar: Calendar | None, position: str | None) -> Verdict:
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
            time=_time(record["time"], calendar, position),
            why=_why(record.get("why"), position),
            source=_source(record.get("source"), position),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


NEEDED = ("transaction", "account", "verdict", "who", "time")
"""What a verdict cannot be without."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What counts of the verdicts on one transaction. ``label`` is None where nothing may be learnt from it."""

    label: Literal["fraud", "normal"] | None
    disputed: bool
    verdict: Verdict  # the one that counts
    history: tuple[Verdict, ...]  # all, in the order of their times

    @property
    def words(self) -> str:
        """For people: ``disputed``, or what was found."""
        return "disputed" if self.disputed else self.verdict.verdict

    @property
    def sides(self) -> dict[str, list[str]]:
        """Who says what now: each person's newest verdict."""
        newest = {verdict.who: verdict.verdict for verdict in self.history}
        return {said: [who for who, its in newest.items() if its == said] for said in dict.fromkeys(newest.values())}


def standing(verdicts: Iterable[Verdict]) -> Standing:
    """What the verdicts on one transaction come to; they are given in the order of their arrival.

    The latest by its own time counts, of one time the one that arrived last. It is disputed while another person's
    newest verdict says the opposite, unless more persons agree with it than oppose it, or it is a chargeback: that
    settles. Whoever overrules himself disputes nothing, and repeating a verdict changes nothing.

    >>> ann = Verdict("x7", "C1", "fraud", "ann", 12.0)
    >>> bob = Verdict("x7", "C1", "normal", "bob", 13.0)
    >>> standing([ann]).label, standing([bob, ann]).words, standing([bob, ann]).verdict.who
    ('fraud', 'disputed', 'bob')
    >>> standing([ann, bob, Verdict("x7", "C1", "normal", "eve", 14.0)]).label
    'normal'
    """
    history = tuple(sorted(dict.fromkeys(verdicts), key=lambda verdict: verdict.time))
    if not history:
        raise ValueError("no verdict: nothing can stand")
    latest = history[-1]
    newest = {verdict.who: verdict.verdict for verdict in history}
    opposing = sum(said == _OPPOSITE.get(latest.verdict) for said in newest.values())
    agreeing = sum(said == latest.verdict for said in newest.values())
    disputed = 0 < opposing >= agreeing and latest.source != "chargeback"
    label = None if disputed or latest.verdict == "unsure" else latest.verdict
    return Standing(label, disputed, latest, history)


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


def _time(value: Any, calendar: Calendar | None, position: str | None) -> float:
    def time_of(moment: datetime) -> float:
        try:
            return moment.timestamp() if calendar is None else calendar.time_of(moment)
        except CalendarError as error:
            raise malformed(f"time: {error}", "time", value, position) from None

    return checked_time(value, position, time_of) + 0.0  # -0.0 is no other moment than 0.0
