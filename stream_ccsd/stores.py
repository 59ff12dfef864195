"""Protocols for what is stored: account states, and the records of a stream, whatever the store behind them.

An engine keeps its states in :class:`AccountStates`; a dict, or anything like one, is adapted. Commands, reports and
pages read what was recorded through :class:`RecordStore`: each of their questions is a method of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

ALERT_CAP = "\0alert-cap"
"""The name of the alert cap in stores that know nothing but names. No account's name begins with a zero."""

Ranking = Literal["score", "loss"]
"""How alerts are ranked: by rarity, or by evidence and money at stake together."""

Record = dict[str, Any]
"""A score, an alert or a dead letter as plain values, by the names of its public shape."""


class AccountStates(Protocol):
    """The store that an engine needs: an account's bytes, those of the alert cap, and a batch written at once."""

    def read(self, account: str) -> bytes | None:
        """The state of an account; None if it has none."""

    def read_alert_cap(self) -> bytes | None:
        """The count of alerts over all accounts; None if none was written."""

    def write(self, states: Mapping[str, bytes], alert_cap: bytes | None) -> None:
        """The states that a batch changed, and the alert cap unless that is None."""


class MappingStates:
    """Account states in a mapping: a dict, or one that keeps them for longer.

    >>> states = MappingStates(kept := {})
    >>> states.write({"C1": b"state"}, alert_cap=b"count")
    >>> states.read("C1"), states.read("C2"), states.read_alert_cap(), len(kept)
    (b'state', None, b'count', 2)
    """

    def __init__(self, mapping: MutableMapping[str, bytes]) -> None:
        self._mapping = mapping

    def read(self, account: str) -> bytes | None:
        """See :class:`AccountStates`."""
        return self._mapping.get(account)

    def read_alert_cap(self) -> bytes | None:
        """See :class:`AccountStates`."""
        return self._mapping.get(ALERT_CAP)

    def write(self, states: Mapping[str, bytes], alert_cap: bytes | None) -> None:
        """One update, so that a mapping with transactions can make one of it."""
        self._mapping.update(states if alert_cap is None else {**states, ALERT_CAP: alert_cap})


def account_states(states: AccountStates | MutableMapping[str, bytes]) -> AccountStates:
    """As an engine takes them; a mapping is adapted."""
    return MappingStates(states) if isinstance(states, MutableMapping) else states


@dataclass(frozen=True, slots=True)
class AccountSummary:
    """An account in one line; ``maximum`` is its highest alert score."""

    account: str
    transactions: int
    last_time: float
    maximum: float
    alerts: int


@dataclass(frozen=True, slots=True)
class TimeBin:
    """Counts of the transactions from ``start`` on, to before ``start + width``; ``labelled`` by the source."""

    start: float
    width: float
    transactions: int
    late: int
    alerts: int
    labelled: int


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """How many dead letters are of a kind, and about a field where they are about one."""

    kind: str
    field: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Totals:
    """What a store holds; ``position`` counts the records of the stream that were read."""

    position: int
    transactions: int
    late: int
    accounts: int
    alerts: int
    dead_letters: int


class RecordStore(Protocol):
    """The records of a stream. They may be written to meanwhile: each answer is of one moment.

    Records have positions: their place in the stream, from 1. Long lists come in pages: the next one
    begins ``after`` (or ``before``) the last record of the one at hand.
    """

    @property
    def facts(self) -> Mapping[str, Any]:
        """What was replayed: ``model``, ``threshold``, ``policy`` of alerts, ``calendar`` and ``source``."""

    def at_one_moment(self) -> AbstractContextManager[None]:
        """Questions asked inside are all answered as of the first of them."""

    def totals(self) -> Totals:
        """Counts of everything in the store."""

    def alerts(
        self, *, account: str | None = None, since: float | None = None, after: int = 0, limit: int | None = None
    ) -> Iterator[Record]:
        """Alerts in the order of the stream, from a time of the stream on, of an account or of all."""

    def newest_alerts(
        self, limit: int, *, account: str | None = None, since: float | None = None, before: int | None = None
    ) -> list[Record]:
        """The last ones of the stream, the newest first."""

    def highest_alerts(
        self, limit: int | None, *, by: Ranking = "score", account: str | None = None, since: float | None = None
    ) -> list[Record]:
        """Those with the highest scores, or most evidence and money, the highest first, of equal ones the earlier."""

    def alert_at(self, position: int) -> Record | None:
        """The alert on the record at this position; None if there is none."""

    def alert_of(self, identity: str) -> Record | None:
        """The alert of this id; None if there is none."""

    def alerts_named(self, name: str) -> list[Record]:
        """The alert of this id, or those on transactions of this id: several accounts may have one."""

    def scored(self, transactions: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
        """Which of these, by account and id, were scored."""

    def newest_time(self) -> float | None:
        """The latest time of all transactions that were scored; None if there is none."""

    def account(self, account: str) -> AccountSummary | None:
        """One account; None if it does not occur."""

    def accounts_by_maximum(self, limit: int, *, after: AccountSummary | None = None) -> list[AccountSummary]:
        """Accounts with the highest maximum, the highest first."""

    def scores_of(
        self,
        account: str,
        *,
        before: int | None = None,
        limit: int | None = None,
        columns: tuple[str, ...] | None = None,
    ) -> list[Record]:
        """An account's scores in the order of the stream: all, or the newest; whole, or some of their columns."""

    def counts_over_time(self, width: float = 0.0) -> list[TimeBin]:
        """Transactions by time, in bins of this width or, if that is wider, the finest that is kept; none is empty.

        ``Calendar.of_days(1)`` is the width of a day.
        """

    def dead_letters(self, *, kind: str | None = None, after: int = 0, limit: int | None = None) -> Iterator[Record]:
        """Dead letters in the order of the stream."""

    def dead_letter_counts(self) -> Iterable[DeadLetterCount]:
        """Dead letters by kind and field, the most frequent first."""
