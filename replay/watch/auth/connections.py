"""Limits on connections: those over which nothing whole was asked yet make room for others."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

from replay.watch.auth.limits import Limits, by_address

# Seconds between two warnings.
_QUIET = 60.0
_ALL = ""  # among addresses: no connection has this one

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Connections(Generic[_T]):
    """Connections by address and in all; where one is too many, the one that waits longest for its request goes.

    So whoever opens many and says nothing, or half of something, drops connections of its own, and nobody who asks.
    Proxies that are trusted come for many people: only the limit in all holds for their connections.
    """

    def __init__(
        self, limits: Limits, is_proxy: Callable[[str], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits, self._is_proxy, self._clock = limits, is_proxy, clock
        self._places: dict[_T, tuple[str, ...]] = {}
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, dict[_T, None]] = {}  # those that wait for longest first
        self._warned = -_QUIET

    @property
    def taken(self) -> int:
        """How many there are."""
        return len(self._places)

    def enter(self, line: _T, address: str) -> _T | None:
        """One more; gives the one that has to go for it, which may be itself. It is out with that."""
        self._places[line] = (_ALL,) if self._is_proxy(address) else (_ALL, by_address(address))
        for place in self._places[line]:
            self._taken[place] += 1
        over = [place for place in reversed(self._places[line]) if self._taken[place] > self._most(place)]
        self.waits(line)
        if not over:
            return None
        self._warn(over[0])
        goes = next(iter(self._waiting[over[0]]))
        self.leave(goes)
        return goes

    def waits(self, line: _T) -> None:
        """A connection waits for a request, from now on."""
        for place in self._places.get(line, ()):
            waiting = self._waiting.setdefault(place, {})
            waiting.pop(line, None)
            waiting[line] = None

    def asked(self, line: _T) -> None:
        """A whole request has come over it: it stays until it is answered."""
        for place in self._places.get(line, ()):
            waiting = self._waiting.get(place, {})
            waiting.pop(line, None)
            if not waiting:
                self._waiting.pop(place, None)

    def leave(self, line: _T) -> None:
        """It is closed."""
        self.asked(line)
        for place in self._places.pop(line, ()):
            self._taken[place] -= 1
            if not self._taken[place]:
                del self._taken[place]

    def _most(self, place: str) -> int:
        return self._limits.connections if place == _ALL else self._limits.connections_an_address

    def _warn(self, place: str) -> None:
        if self._clock() - self._warned >= _QUIET:
            self._warned = self._clock()
            whose = f"{place} has" if place else "there are"
            _log.warning("%s more than %d connections: the idle ones are closed", whose, self._most(place))
