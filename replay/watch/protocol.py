"""The protocol between the page and the stream that it shows: the seam between HTTP and what is known of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from stream_ccsd.calendar import Calendar

View = dict[str, Any]


class Since(NamedTuple):
    """What is new behind a place: alerts in order, then entries of the audit log in order, and the place behind them.

    ``behind`` says that too much was missed to tell one by one: then there are no alerts and entries, and the place is
    the newest.
    """

    alerts: Sequence[View]
    entries: Sequence[View]
    position: int
    sequence: int
    behind: bool


class Watchable(Protocol):
    """All methods may be called from any thread; they raise ``StreamCcsdError`` with a sentence for people.

    ``seat`` is the browser session that asks: two browsers of one person hold different claims.
    """

    @property
    def title(self) -> str:
        """What the stream is called."""

    @property
    def calendar(self) -> Calendar:
        """What its times mean."""

    @property
    def trouble(self) -> str | None:
        """What people should know on every page: a file that cannot be read, a broker that is away."""

    @property
    def changed(self) -> int:
        """A number that grows whenever anything changes."""

    def wait(self, changed: int, seconds: float) -> int:
        """Block until that number is another one, at most so long; gives the number."""

    def now_at(self) -> tuple[int, int]:
        """The newest position of the stream, and the newest sequence number of the audit log."""

    def since(self, position: int, sequence: int, limit: int) -> Since | tuple[Any, ...]:
        """At most ``limit`` alerts behind the position and as many entries behind the sequence number.

        Where there are more, the place that is given back is that of the last one sent, so that asking again from
        there goes on.
        """

    def pulse(self) -> View:
        """How it goes, in few numbers."""

    def view(self, name: str, query: Mapping[str, str], who: str, seat: str) -> View:
        """The values of a page; raises ``NotFoundError`` where there is nothing of that name.

        ``now``, ``queue``, ``account``, ``tune``, ``model`` and ``audit``. A link to an alert asks for ``account`` with
        ``alert`` in the query.
        """

    def take(self, query: Mapping[str, str], who: str, seat: str) -> View | None:
        """Assign the best free case; None where all are claimed. The case has at least its ``account``."""

    def claim(self, account: str, who: str, seat: str) -> None:
        """Claim one case; raises ``TakenError`` where another browser session holds it."""

    def release(self, account: str, who: str, seat: str) -> None:
        """Give a claim back."""

    def judge(self, ids: Sequence[str], finding: str, why: str, who: str, seat: str) -> int:
        """Record a verdict on these alerts; gives how many verdicts were added."""

    def set_budget(self, threshold: float, who: str, why: str) -> None:
        """Record another threshold."""

    def suppress(self, what: str, value: str, days: float, who: str, why: str) -> None:
        """Hide alerts of a merchant, an account or for a reason, for a time."""

    def lift(self, sequence: int, who: str, why: str) -> None:
        """End a suppression before its time."""

    def pin(self, version: str, who: str, why: str) -> None:
        """Keep to one version of the model; an empty one ends that."""

    def close(self) -> None:
        """Stop following, and close the files."""
