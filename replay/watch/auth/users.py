"""Users of the page, from a TOML file with a token and a role each, and their browser sessions.

Browser sessions are in memory. They are limited in number and age, and end with the server.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import time
import tomllib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Any

from stream_ccsd.errors import StreamCcsdError

_HOUR = 3600.0


@dataclass(slots=True)
class BrowserSession:
    """A browser that somebody uses; ``seat`` is its name among those of the same person."""

    id: str
    who: str
    seat: str
    csrf: str
    made: float
    used: float


class BrowserSessions:
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
        self._new: OrderedDict[str, BrowserSession] = OrderedDict()
        self._used: OrderedDict[str, BrowserSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._new) + len(self._used)

    def __contains__(self, name: str) -> bool:
        """Whether a session lives; to ask is not to use it."""
        session = self._new.get(name) or self._used.get(name)
        return session is not None and not self._is_over(session)

    def make(self, who: str) -> BrowserSession:
        """A new one, under a name that nobody can guess."""
        now = self._clock()
        made = BrowserSession(secrets.token_urlsafe(32), who, secrets.token_hex(4), secrets.token_urlsafe(24), now, now)
        self._put(self._new, made)
        return made

    def find(self, name: str | None) -> BrowserSession | None:
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

    def _is_over(self, session: BrowserSession) -> bool:
        now = self._clock()
        return now - session.used > self._idle or now - session.made > self._life

    def _put(self, kind: OrderedDict[str, BrowserSession], session: BrowserSession) -> None:
        own = [other.id for other in kind.values() if other.who == session.who]
        for old in own[: max(0, len(own) + 1 - self._a_person)]:
            del kind[old]
        while len(kind) >= self._at_most:
            kind.popitem(last=False)
        kind[session.id] = session


# Each may do all that those before it may.
ROLES = ("view", "judge", "tune")
SHORTEST_TOKEN = 16
_LONGEST_NAME = 100
_NEW_TOKEN = "python3 -c 'import secrets; print(secrets.token_urlsafe(24))'"


def includes(role: str, needed: str) -> bool:
    """Whether a role is enough.

    >>> includes("judge", "view"), includes("judge", "tune")
    (True, False)
    """
    return ROLES.index(role) >= ROLES.index(needed)


def checked_role(role: object, whose: str) -> str:
    """A role that there is.

    Raises
    ------
    StreamCcsdError
        If there is none of that name.
    """
    if role not in ROLES:
        raise StreamCcsdError(f"{whose} is {role!r}: expected one of {', '.join(ROLES)}")
    return str(role)


def checked_name(name: str) -> str:
    """A name that can stand in the audit log.

    Raises
    ------
    StreamCcsdError
        If it is empty, too long, or no text that people can read.
    """
    if not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
        raise StreamCcsdError(f"{name[:_LONGEST_NAME]!r} is no name: expected 1 to {_LONGEST_NAME} readable characters")
    return name


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who is known; ``digest`` is the SHA-256 of the token, None where a proxy vouches for people."""

    name: str
    role: str
    digest: bytes | None


class Users:
    """People by name and by token."""

    def __init__(self, people: Mapping[str, Person]) -> None:
        self._people = dict(people)

    @classmethod
    def load(cls, path: Path, with_tokens: bool = True) -> Users:
        """From TOML, a table a person: ``[ann]``, ``token = "…"`` or ``token_sha256 = "…"``, ``role = "judge"``.

        Where a proxy says who somebody is, tokens may be left out.

        Raises
        ------
        StreamCcsdError
            If it cannot be read, says something else, or shows tokens to everyone.
        """
        try:
            content = path.read_bytes()
            mode = path.stat().st_mode
            tables = tomllib.loads(content.decode())
        except OSError as error:
            raise StreamCcsdError(f"the users in {path} cannot be read: {error.strerror or error}") from error
        except ValueError as error:  # also of tomllib, and of what is no UTF-8
            raise StreamCcsdError(f"{path} is no TOML: {error}") from error
        people = {name: _person(name, values, path, with_tokens) for name, values in tables.items()}
        if not people:
            raise StreamCcsdError(f'{path} names nobody: add a table like [ann] with token = "…" and role = "judge"')
        digests = [person.digest for person in people.values() if person.digest is not None]
        if len(set(digests)) < len(digests):
            raise StreamCcsdError(f"two people in {path} have the same token: make another with {_NEW_TOKEN}")
        _check_mode(path, mode, any("token" in values for values in tables.values()))
        return cls(people)

    def named(self, name: str) -> Person | None:
        """Who is called that."""
        return self._people.get(name)

    def by_token(self, token: str) -> Person | None:
        """Whose token it is. Everyone's is compared, whole, so that the time it takes says nothing."""
        given, found = sha256(token.encode(errors="surrogatepass")).digest(), None
        for person in self._people.values():
            if person.digest is not None and compare_digest(person.digest, given):
                found = person
        return found


def _person(name: str, values: Any, path: Path, with_tokens: bool) -> Person:
    where = f"[{name}] in {path}"
    if not isinstance(values, dict) or set(values) - {"token", "token_sha256", "role"}:
        raise StreamCcsdError(f"{where}: expected a table with token (or token_sha256) and role")
    role = checked_role(values.get("role", "view"), f"the role of {where}")
    token, digest = values.get("token"), values.get("token_sha256")
    if token is None and digest is None and not with_tokens:
        return Person(checked_name(name), role, None)
    if (token is None) == (digest is None):
        raise StreamCcsdError(f"{where}: give one of token and token_sha256; {_NEW_TOKEN} makes a token")
    if digest is not None:
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-fA-F]{64}", digest):
            raise StreamCcsdError(f"{where}: token_sha256 is 64 hexadecimal digits: printf %s TOKEN | sha256sum")
        return Person(checked_name(name), role, bytes.fromhex(digest))
    if not isinstance(token, str) or len(token) < SHORTEST_TOKEN:
        raise StreamCcsdError(
            f"{where}: a token has at least {SHORTEST_TOKEN} characters, so that nobody guesses it; {_NEW_TOKEN} "
            "makes one"
        )
    return Person(checked_name(name), role, sha256(token.encode()).digest())


def _check_mode(path: Path, mode: int, shows_tokens: bool) -> None:
    """A token that every user of the machine can read is nobody's; a group may be that of a service."""
    if os.name != "posix":
        return
    if mode & stat.S_IWOTH:
        raise StreamCcsdError(f"everyone on this machine may write to {path}: chmod 600 {path}")
    if shows_tokens and mode & stat.S_IROTH:
        raise StreamCcsdError(
            f"everyone on this machine may read the tokens in {path}: chmod 600 {path}, or keep token_sha256 in it"
        )
