"""Access rules: nobody but this machine's own user, people with a token, or people whom a proxy vouches for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hmac import compare_digest
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from replay.watch.auth.users import BrowserSession, Users, checked_name, checked_role, includes
from replay.watch.formats import RefusedError
from stream_ccsd.errors import StreamCcsdError

Network = IPv4Network | IPv6Network
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_ANY_ADDRESS = frozenset({"0.0.0.0", "::", ""})
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
# What proxies say of whom they ask for.
_PROXIED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")


@dataclass(frozen=True)
class Access:
    """The rules. Without users and without a header, whoever comes is ``who``, with the role ``role``.

    With ``header``, a proxy at one of the addresses ``proxies`` says who somebody is, and ``role`` is that of people
    who are not in the file of users. ``hosts`` are the names under which the page may be asked for.
    """

    who: str = ""
    role: str = "tune"
    users: Users | None = None
    header: str | None = None
    proxies: tuple[Network, ...] = ()
    hosts: frozenset[str] = _LOCAL_NAMES
    behind_https: bool = False
    read_only: bool = False

    @property
    def login(self) -> bool:
        """Whether people log in with a token."""
        return self.users is not None and self.header is None

    def role_of(self, who: str) -> str | None:
        """What somebody may do; None for nobody."""
        person = self.users.named(who) if self.users is not None else None
        role = person.role if person is not None else None if self.login else self.role
        return "view" if role is not None and self.read_only else role

    def is_proxy(self, address: str) -> bool:
        """Whether what comes from there may speak for others."""
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        mapped = getattr(parsed, "ipv4_mapped", None) or parsed
        return any(mapped in network for network in self.proxies if network.version == mapped.version)

    def address_of(self, connection: HTTPConnection) -> str:
        """Whom a request came from, as far as proxies that are trusted say so."""
        peer = peer_of(connection)
        if self.is_proxy(peer):
            forwarded = ",".join(connection.headers.getlist("x-forwarded-for"))
            return forwarded.rpartition(",")[2].strip() or peer
        return peer

    def is_secure(self, connection: HTTPConnection) -> bool:
        """Whether the browser came by https."""
        forwarded = self.is_proxy(peer_of(connection)) and connection.headers.get("x-forwarded-proto") == "https"
        return self.behind_https or connection.url.scheme == "https" or forwarded

    def check_host(self, connection: HTTPConnection) -> None:
        """Refuse names that are not ours: a page of somebody else's may have its name point to this machine.

        Raises
        ------
        RefusedError
            If the request is for another name.
        """
        given = connection.headers.getlist("host")
        name = _host_name(given[0]) if len(given) == 1 else None
        own = connection.scope.get("server") or ("", 0)  # the address at which this very connection arrived
        if name is None or (name not in self.hosts and name != str(own[0]).lower()):
            raise RefusedError(421, "the page is not known under this name: add it with --host-name")

    def check_direct(self, connection: HTTPConnection) -> None:
        """Refuse what a proxy sends on where whoever comes may do anything: it may come from anywhere.

        Raises
        ------
        RefusedError
            If nobody says who people are, and the request came through a proxy.
        """
        if self.users is None and self.header is None and any(name in connection.headers for name in _PROXIED):
            raise RefusedError(
                403, "this came through a proxy, from anybody: a proxy needs --users or --user-header at the server"
            )

    def check_origin(self, connection: HTTPConnection) -> None:
        """Refuse what a page of another site sends in a browser of ours.

        Raises
        ------
        RefusedError
            If the browser says that it does.
        """
        if connection.scope["method"] in _SAFE_METHODS:
            return
        refused = RefusedError(403, "this was sent by another site: go to the page itself, and do it there")
        # Anything but our own: also a neighbour under the same domain is somebody else.
        if connection.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise refused
        origin = connection.headers.get("origin")
        if origin is None:
            return
        parts = urlsplit(origin)
        host = connection.headers.get("host", "").lower()
        # A proxy may ask under another name than people do; theirs was given with --host-name.
        named = (_host_name(parts.netloc) or "") in self.hosts - _LOCAL_NAMES
        if parts.scheme not in ("http", "https") or not (parts.netloc.lower() == host or named):
            raise refused

    def vouched(self, connection: HTTPConnection) -> str:
        """Who somebody is, as the proxy says.

        Raises
        ------
        RefusedError
            If it is none of the proxies that speaks, or it names nobody.
        """
        assert self.header is not None
        if not self.is_proxy(peer_of(connection)):
            raise RefusedError(403, "the page is behind a proxy: come by its address (or add --trusted-proxy)")
        given = connection.headers.getlist(self.header)
        if len(given) != 1:
            raise RefusedError(401, f"the proxy does not say who you are: it must set {self.header} once")
        try:
            return checked_name(given[0].encode("latin-1").decode().strip())
        except (UnicodeDecodeError, StreamCcsdError) as error:
            raise RefusedError(401, f"what the proxy set as {self.header} is no name") from error


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks. A script that shows its token with each request has no session, and no need of one."""

    who: str
    role: str
    session: BrowserSession | None = None
    is_script: bool = False

    @property
    def seat(self) -> str:
        """The name of the browser session."""
        return self.session.seat if self.session is not None else "script"

    @property
    def csrf(self) -> str:
        """What forms must carry."""
        return self.session.csrf if self.session is not None else ""

    def check_csrf(self, given: str) -> None:
        """Refuse a form that is not from a page of this session.

        Raises
        ------
        RefusedError
            If it does not carry the session's own token.
        """
        if not self.is_script and not (self.csrf and compare_digest(self.csrf.encode(), given.encode(errors="ignore"))):
            raise RefusedError(403, "this form is not of your session, or that has ended: load the page again")

    def check_role(self, needed: str) -> None:
        """Refuse what somebody's role does not include.

        Raises
        ------
        RefusedError
            If it does not.
        """
        if not includes(self.role, needed):
            raise RefusedError(403, f"this needs the role {needed!r}, and yours is {self.role!r}")


def peer_of(connection: HTTPConnection) -> str:
    """The address at the other end of the line."""
    return connection.client.host if connection.client is not None else ""


def chosen_access(
    who: str,
    *,
    loopback: bool,
    users: Users | None,
    header: str | None,
    proxies: Sequence[str],
    role: str | None,
    host: str,
    host_names: Iterable[str],
    behind_https: bool,
    read_only: bool,
) -> Access:
    """The rules that a person asks for.

    Raises
    ------
    StreamCcsdError
        If they contradict each other, or everyone in the network could do anything.
    """
    if users is None and header is None and not loopback:
        raise StreamCcsdError(
            f"{host} can be reached from elsewhere, and anybody could judge and tune: name people and their tokens "
            "with --users FILE, or have a proxy say who they are with --user-header NAME --trusted-proxy ADDRESS"
        )
    names = {name for name in map(_host_name, host_names) if name is not None}
    if users is None and header is None and (behind_https or not all(map(_is_local, names))):
        given = "--behind-https" if behind_https else "--host-name"
        raise StreamCcsdError(
            f"{given} is for a page that others reach through a proxy, and anybody could judge and tune: name people "
            "and their tokens with --users FILE, or have the proxy say who they are with --user-header NAME "
            "--trusted-proxy ADDRESS"
        )
    if header is not None:
        if not proxies:
            raise StreamCcsdError(
                "--user-header needs --trusted-proxy ADDRESS: anybody else could set that header and be whom they like"
            )
        if not re.fullmatch(r"[A-Za-z0-9-]+", header):
            raise StreamCcsdError(f"--user-header {header!r} is no name of a header, like X-Remote-User")
    elif role is not None:
        raise StreamCcsdError("--role is that of people whom a proxy names: it needs --user-header")
    return Access(
        checked_name(who),
        checked_role("view" if role is None else role, "--role") if header is not None else "tune",
        users,
        header,
        tuple(_network(text) for text in proxies),
        frozenset({*_LOCAL_NAMES, *names, host.lower()} - _ANY_ADDRESS),
        behind_https,
        read_only,
    )


def _is_local(name: str) -> bool:
    """Whether a name is of this machine itself.

    >>> _is_local("localhost"), _is_local("127.0.0.2"), _is_local("fraud.example"), _is_local("10.0.0.7")
    (True, True, False, False)
    """
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name in _LOCAL_NAMES or name.endswith(".localhost")


def _network(text: str) -> Network:
    try:
        return ip_network(text, strict=False)
    except ValueError as error:
        raise StreamCcsdError(
            f"--trusted-proxy {text!r} is no address: expected one like 10.0.0.7, or a network like 10.0.0.0/24"
        ) from error


def _host_name(text: str) -> str | None:
    """A host's name without its port, in small letters; None for what is none.

    >>> _host_name("Fraud.example:8360"), _host_name("[::1]:80"), _host_name("a@b"), _host_name("a:b")
    ('fraud.example', '::1', None, None)
    """
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+))(?::\d{1,5})?", text.strip())
    return (match[1] or match[2]).lower().rstrip(".") if match else None
