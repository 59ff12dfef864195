"""Middleware that every request passes on its way in and out: headers, hosts, sizes, who it is, and how often."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from html import escape
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from replay.watch.auth.access import Access, Identity
from replay.watch.auth.limits import Buckets, Limits, WrongTokens, by_address, limited_body
from replay.watch.auth.users import BrowserSessions
from replay.watch.formats import RefusedError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
# What is there for everyone: how the page looks, and that it lives.
_OPEN = ("/login", "/static/")
_HEALTH = "/healthz"
_NO_PAGES = ("/events", *_OPEN)
_EXPORTS = (".csv", ".json")

_log = logging.getLogger(__name__)
Fail = Callable[[Request, Exception], Awaitable[Response]]


class HeaderMiddleware:
    """Outermost: every answer has its headers, and every error becomes an answer that tells nothing of the inside.

    Plain ASGI, as all of these: Starlette's middleware of functions would hold streams of events back.
    """

    def __init__(self, app: ASGIApp, fail: Fail) -> None:
        self._app, self._fail = app, fail

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await self._app(scope, receive, guarded)
        except ClientDisconnect:
            return
        except Exception as error:
            if begun:  # too late to say anything: the server ends the connection
                _log.exception("an answer to %s broke off", scope["path"])
                return
            response = await self._fail(Request(scope), error)
            await response(scope, receive, guarded)


class AuthMiddleware:
    """Behind the headers: decides who asks and whether that is answered; ``scope["state"]["identity"]`` is who."""

    def __init__(
        self, app: ASGIApp, access: Access, sessions: BrowserSessions, limits: Limits, cookie: str, wrong: WrongTokens
    ) -> None:
        self._app, self._access, self._sessions, self._limits, self._cookie = app, access, sessions, limits, cookie
        self._wrong = wrong
        self._requests = Buckets(limits.requests_per_second, limits.requests_at_once)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse to."""
        if scope["type"] != "http" or scope["path"] == _HEALTH:  # whoever looks after servers has no name here
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        access = self._access
        access.check_host(connection)
        access.check_direct(connection)
        receive = limited_body(scope, receive, self._limits.body)
        address = by_address(access.address_of(connection))
        access.check_origin(connection)
        identity = self._identity(connection, address)
        known = identity is not None and (access.login or access.header is not None)
        name = f"person {identity.who}" if known and identity is not None else f"address {address}"
        self._requests.spend(name)
        is_page = _is_page(scope)
        if is_page and (identity is None or identity.session is None) and _from_elsewhere(connection):
            await _bounced(connection)(scope, receive, send)
            return
        if identity is None and not scope["path"].startswith(_OPEN):
            await _sent_to_login(connection, is_page)(scope, receive, send)
            return
        made = None
        if identity is not None and identity.session is None and is_page and not identity.is_script:
            made = self._sessions.make(identity.who)
            identity = Identity(identity.who, identity.role, made)
        scope.setdefault("state", {})["identity"] = identity

        async def with_cookie(message: Message) -> None:
            if made is not None and message["type"] == "http.response.start":
                kept = cookie_text(self._cookie, made.id, access.is_secure(connection))
                MutableHeaders(scope=message).append("Set-Cookie", kept)
            await send(message)

        await self._app(scope, receive, with_cookie)

    def _identity(self, connection: HTTPConnection, address: str) -> Identity | None:
        access = self._access
        kind, _, token = connection.headers.get("authorization", "").partition(" ")
        if access.login and kind.lower() == "bearer":
            return self._script(token.strip(), address)
        session = self._sessions.find(connection.cookies.get(self._cookie))
        if access.header is not None:
            who = access.vouched(connection)
        elif access.users is not None:
            who = session.who if session is not None else ""
        else:
            who = access.who
        if session is not None and session.who != who:  # the proxy now speaks of somebody else
            session = None
        role = access.role_of(who)
        return None if role is None else Identity(who, role, session)

    def _script(self, token: str, address: str) -> Identity:
        """Whoever shows a token with the request itself; wrong ones count as attempts to log in."""
        assert self._access.users is not None
        person = self._access.users.by_token(token)
        role = None if person is None else self._access.role_of(person.name)
        if person is None or role is None:
            self._wrong.count(address)
            raise RefusedError(401, "this token is nobody's", {"WWW-Authenticate": "Bearer"})
        return Identity(person.name, role, None, is_script=True)


def cookie_text(name: str, value: str, secure: bool) -> str:
    """A cookie that no script reads and no other site's request carries."""
    return f"{name}={value}; Path=/; HttpOnly; SameSite=Strict" + ("; Secure" if secure else "")


def _is_page(scope: Scope) -> bool:
    path = scope["path"]
    return scope["method"] == "GET" and not path.startswith(_NO_PAGES) and not path.endswith(_EXPORTS)


def _from_elsewhere(connection: HTTPConnection) -> bool:
    headers = connection.headers
    return headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") == "navigate"


def _here(connection: HTTPConnection) -> str:
    """The path and query that was asked for."""
    path = quote(connection.url.path, safe="/:@!$&'()*+,;=~%") or "/"
    return f"{path}?{connection.url.query}" if connection.url.query else path


def _bounced(connection: HTTPConnection) -> Response:
    """A link in somebody's mail: the browser keeps its cookie back from that, and shows it when we send it on."""
    to = escape("/" + _here(connection).lstrip("/\\"))
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={to}">'
        f'<title>stream-ccsd</title></head><body><p><a href="{to}">Go on</a></p></body></html>'
    )


def _sent_to_login(connection: HTTPConnection, is_page: bool) -> Response:
    accepts = connection.headers.get("accept", "*/*")
    if is_page and "part" not in connection.query_params and ("text/html" in accepts or "*/*" in accepts):
        return RedirectResponse(f"/login?back={quote(_here(connection), safe='')}", 303)
    raise RefusedError(
        401, "log in first, or send your token (Authorization: Bearer …)", {"WWW-Authenticate": "Bearer"}
    )
