"""Browser sessions: in memory, so many and so long, gone with the server."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

_HOUR = 3600.0


@dataclass(slots=True)
class Session:
    """A browser that somebody uses; ``seat`` is its name among those of the same person."""

    id: str
    who: str
    seat: str
    csrf: str
    made: float
    used: float


class Sessions:
    """Those that live. Of a person and in all there are so many that came once, and so many that came again.

    What comes without its cookie each time (a script, a health check) gets a session each time and never uses it: it
    makes room among its like, and drops no browser's. Of each kind those used longest ago make room.
    """

    def __init__(
        self,
        at_most: int = 5000,
        a_person: int = 500,
        idle: float = 12 * _HOUR,
        life: float = 7 * 24 * _HOUR,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._at_most, self._a_person, self._idle, self._life, self._clock = at_most, a_person, idle, life, clock
        # Those used last are last.
        self._new: OrderedDict[str, Session] = OrderedDict()
        self._used: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._new) + len(self._used)

    def __contains__(self, name: str) -> bool:
        """Whether a session lives; to ask is not to use it."""
        session = self._new.get(name) or self._used.get(name)
        return session is not None and not self._is_over(session)

    def make(self, who: str) -> Session:
        """A new one, under a name that nobody can guess."""
        now = self._clock()
        made = Session(secrets.token_urlsafe(32), who, secrets.token_hex(4), secrets.token_urlsafe(24), now, now)
        self._put(self._new, made)
        return made

    def find(self, name: str | None) -> Session | None:
        """The session of a cookie, while it lives."""
        session = self._new.get(name or "") or self._used.get(name or "")
        if session is None:
            return None
        if self._is_over(session):
            self.drop(session.id)
            return None
        session.used = self._clock()
        if self._new.pop(session.id, None) is not None:
            self._put(self._used, session)
        self._used.move_to_end(session.id)
        return session

    def drop(self, name: str | None) -> None:
        """End one."""
        self._new.pop(name or "", None)
        self._used.pop(name or "", None)

    def _is_over(self, session: Session) -> bool:
        now = self._clock()
        return now - session.used > self._idle or now - session.made > self._life

    def _put(self, kind: OrderedDict[str, Session], session: Session) -> None:
        own = [other.id for other in kind.values() if other.who == session.who]
        for old in own[: max(0, len(own) + 1 - self._a_person)]:
            del kind[old]
        while len(kind) >= self._at_most:
            kind.popitem(last=False)
        kind[session.id] = session
