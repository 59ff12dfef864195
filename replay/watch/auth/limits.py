"""Rate limits of the page: requests a second, bytes, and streams of events."""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network

from starlette.types import Message, Receive, Scope

from replay.watch.formats import RefusedError

_TOO_LARGE = "this is more than the page takes at once ({} bytes): send less"
# Names of whom buckets are kept for, at most: a flood of addresses must not fill the memory.
_NAMES = 10_000


@dataclass(frozen=True)
class Limits:
    """What one person (or, where nobody is known, one address) may ask for."""

    requests_per_second: float = 50.0
    requests_at_once: float = 300.0
    wrong_tokens_per_minute: float = 6.0
    wrong_tokens_at_once: float = 10.0
    body: int = 64 * 1024
    body_seconds: float = 20.0
    streams_a_session: int = 8
    streams: int = 200
    connections: int = 1000
    # More than all streams together: people may come through one address that is not known as a proxy.
    connections_an_address: int = 250


class Buckets:
    """A bucket of tokens a name: each request takes one, and they come back at a steady rate."""

    def __init__(self, rate: float, size: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._size, self._clock = rate, size, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when they were counted

    def take(self, name: str) -> float:
        """Take a token, or say how many seconds it takes until there is one."""
        left = self._now(name)
        if left < 1.0:
            return (1.0 - left) / self._rate
        self._left[name] = left - 1.0, self._clock()
        self._left.move_to_end(name)
        if len(self._left) > _NAMES:  # whoever was not here for longest has a full bucket, or nearly
            self._left.popitem(last=False)
        return 0.0

    def spend(self, name: str, said: str = "too many requests at once") -> None:
        """Take a token.

        Raises
        ------
        RefusedError
            If there is none; it says when there will be.
        """
        if (seconds := self.take(name)) > 0:
            wait = max(1, math.ceil(seconds))
            raise RefusedError(429, f"{said}: wait {wait} s, then try again", {"Retry-After": str(wait)})

    def _now(self, name: str) -> float:
        left, counted = self._left.get(name, (self._size, self._clock()))
        return min(self._size, left + (self._clock() - counted) * self._rate)


class WrongTokens:
    """Tokens that are nobody's, by the address they came from. Right ones are not counted, and never refused.

    To refuse right ones would let anybody lock out all who come from the same address; and tokens are too long to be
    guessed, however often it is tried.
    """

    def __init__(self, limits: Limits) -> None:
        self._left = Buckets(limits.wrong_tokens_per_minute / 60, limits.wrong_tokens_at_once)

    def count(self, address: str) -> None:
        """One more.

        Raises
        ------
        RefusedError
            If there were too many lately.
        """
        self._left.spend(address, "too many attempts to log in")


def by_address(address: str) -> str:
    """Whom an address stands for: of IPv6 addresses a single customer has a whole /64.

    IPv4 addresses that are written as IPv6 ones are all in one such network, and are told apart as what they are.

    >>> by_address("2001:db8::7") == by_address("2001:db8::8"), by_address("10.0.0.7"), by_address("::ffff:10.0.0.7")
    (True, '10.0.0.7', '10.0.0.7')
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ip_network((parsed.packed, 64), strict=False))


def limited_body(scope: Scope, receive: Receive, limit: int) -> Receive:
    """The same request, which refuses to be read beyond the limit, whether or not it says how long it is.

    Raises
    ------
    RefusedError
        At once if it says so, or says something else than a length.
    """
    for name, value in scope["headers"]:
        if name == b"content-length":
            if not value.isdigit():
                raise RefusedError(400, "the length of this request is no number")
            if int(value[:20]) > limit:
                raise RefusedError(413, _TOO_LARGE.format(limit), {"Connection": "close"})
    total = 0

    async def counted() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        if total > limit:
            raise RefusedError(413, _TOO_LARGE.format(limit), {"Connection": "close"})
        return message

    return counted


class Places:
    """Who reads events: so many streams a session, so many in all."""

    def __init__(self, a_session: int, in_all: int) -> None:
        self._a_session, self._in_all = a_session, in_all
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """How many there are."""
        return self._taken.total()

    @contextmanager
    def one(self, name: str) -> Iterator[None]:
        """A place while it is used.

        Raises
        ------
        RefusedError
            If there is none left.
        """
        if self._taken[name] >= self._a_session or self.taken >= self._in_all:
            raise RefusedError(503, "too many pages are open at once: close some", {"Retry-After": "30"})
        self._taken[name] += 1
        try:
            yield
        finally:
            self._taken[name] -= 1
            if not self._taken[name]:
                del self._taken[name]
