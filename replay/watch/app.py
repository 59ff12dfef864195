"""The page as an application: its addresses, and what answers each."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter
from jinja2 import BaseLoader
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from replay.watch.actions import ACTIONS, act, form_of, local_path
from replay.watch.auth.access import Access, Identity
from replay.watch.auth.connections import Connections
from replay.watch.auth.limits import Limits, WrongTokens, by_address
from replay.watch.auth.middleware import AuthMiddleware, HeaderMiddleware, cookie_text
from replay.watch.auth.users import BrowserSessions
from replay.watch.formats import NotFoundError, RefusedError
from replay.watch.live.events import Streams, place_of
from replay.watch.pages import Pages, Static
from replay.watch.protocol import Watchable
from replay.watch.views.exports import TABLES, exported

_HOME = "/now"
# Threads for what people do; others show pages.
_WRITERS = 8


def build_app(
    watched: Watchable,
    access: Access,
    *,
    limits: Limits | None = None,
    loader: BaseLoader | None = None,
    static: Path | None = None,
    extras: Mapping[str, Any] | None = None,
    demo: bool = False,
    cookie: str = "stream_ccsd",
    beat: float = 15.0,
) -> Starlette:
    """The page over what is watched. ``app.state.streams.stop()`` ends its streams, before the server can end.

    ``loader`` and ``static`` are where templates and files are, by default this package's; ``extras`` are further
    names that templates know; ``cookie`` is the name of the cookie: cookies of one host do not know its ports.
    """
    page = _Page(watched, access, limits or Limits(), loader, static, extras or {}, demo, cookie, beat)

    async def failed(request: Request, error: Exception) -> Response:
        return await page.pages.fail(request, error)

    app = Starlette(
        routes=page.routes(),
        middleware=[
            Middleware(HeaderMiddleware, fail=page.pages.fail),
            Middleware(
                AuthMiddleware,
                access=access,
                sessions=page.sessions,
                limits=page.limits,
                cookie=cookie,
                wrong=page.wrong,
            ),
        ],
        exception_handlers={HTTPException: failed},
    )
    app.router.redirect_slashes = False
    app.state.streams = page.streams
    app.state.lines = Connections(page.limits, access.is_proxy)
    app.state.writers = CapacityLimiter(_WRITERS)
    app.state.sessions = page.sessions
    return app


class _Page:
    """What all addresses share."""

    def __init__(
        self,
        watched: Watchable,
        access: Access,
        limits: Limits,
        loader: BaseLoader | None,
        static: Path | None,
        extras: Mapping[str, Any],
        demo: bool,
        cookie: str,
        beat: float,
    ) -> None:
        self.watched, self.access, self.limits, self.cookie = watched, access, limits, cookie
        self.sessions = BrowserSessions()
        self.wrong = WrongTokens(self.limits)
        self._static = Static(static)
        run = secrets.token_hex(8)
        self.streams = Streams(watched, run, limits, beat)
        facts = {"version": self._static.version, "demo": demo, "login": access.login, "run": run}
        self.pages = Pages(watched, loader, extras, facts)
        self._key = secrets.token_bytes(32)

    def routes(self) -> list[Route]:
        """Every address there is."""
        get, post = ["GET"], ["POST"]
        views = [Route(f"/{name}", self._view(name), methods=get) for name in TABLES]
        exports = [Route(f"/{n}.{style}", self._export(n, style), methods=get) for n in TABLES for style in _STYLES]
        actions = [Route(path, self._action(path), methods=post) for path in ACTIONS]
        return [
            Route("/", _home, methods=get),
            *views,
            *exports,
            *actions,
            Route("/alert/{id:path}", self._view("account"), methods=get),
            Route("/events", self._events, methods=get),
            Route("/static/{name}", self._static.__call__, methods=get),
            Route("/healthz", _health, methods=get),
            Route("/login", self._show_login, methods=get),
            Route("/login", self._log_in, methods=post),
            Route("/logout", self._log_out, methods=post),
        ]

    def _view(self, name: str) -> Any:
        async def show(request: Request) -> Response:
            return HTMLResponse(await run_in_threadpool(self._shown, name, request))

        return show

    def _shown(self, name: str, request: Request) -> str:
        identity: Identity = request.state.identity
        query = _query(request)
        # First: what happens while the page is made comes with the events that follow it.
        position, sequence = self.watched.now_at()
        values = self.watched.view(name, query, identity.who, identity.seat)
        context = self.pages.context(values, identity, name, query)
        part = request.query_params.get("part")
        return self.pages.render(name, context | {"at": f"{position}.{sequence}"}, part)

    def _export(self, name: str, style: str) -> Any:
        def make(request: Request) -> Response:
            identity: Identity = request.state.identity
            query = _query(request)
            table = query.pop("table", None)
            query |= {"page": "all"} if name == "queue" else {}  # a file has no pages
            return exported(name, self.watched.view(name, query, identity.who, identity.seat), style, table)

        async def export(request: Request) -> Response:
            return await run_in_threadpool(make, request)

        return export

    def _action(self, path: str) -> Any:
        needed, do = ACTIONS[path]

        async def run(request: Request) -> Response:
            return await act(request, self.watched, needed, do, self.limits.body_seconds)

        return run

    async def _events(self, request: Request) -> Any:
        identity: Identity = request.state.identity
        place = place_of(request.headers.get("last-event-id") or request.query_params.get("after"))
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if identity.session is None:
            return self.streams.open(f"without a session {identity.who}", place)
        name = identity.session.id
        return self.streams.open(name, place, lambda: name in self.sessions)

    async def _show_login(self, request: Request) -> Response:
        back = local_path(request.query_params.get("back", ""), _HOME)
        if not self.access.login or request.state.identity is not None:
            return RedirectResponse(back, 303)
        return self._login_page(request, back)

    def _login_page(
        self, request: Request, back: str, name: str = "", error: str | None = None, status: int = 200
    ) -> Response:
        """There is no session yet: the form carries what only a browser with our cookie can know."""
        cookie = f"{self.cookie}_login"
        seed = request.cookies.get(cookie) or secrets.token_urlsafe(24)
        page = {"error": error, "back": back, "name": name}
        context = self.pages.context(page, None, query={"back": back}) | {"csrf": self._signed(seed)}
        response = HTMLResponse(self.pages.render("login", context), status)
        if cookie not in request.cookies:
            response.headers.append("Set-Cookie", cookie_text(cookie, seed, self.access.is_secure(request)))
        return response

    async def _log_in(self, request: Request) -> Response:
        if not self.access.login:
            raise NotFoundError("nobody logs in here")
        form = await form_of(request, self.limits.body_seconds)
        given, back, name = form.text("csrf"), local_path(form.text("back"), _HOME), form.text("name").strip()
        wanted = self._signed(request.cookies.get(f"{self.cookie}_login", ""))
        if not hmac.compare_digest(wanted.encode(), given.encode(errors="ignore")):
            return self._login_page(request, back, name, "the form had expired, or cookies are off: try again", 403)
        assert self.access.users is not None
        person = self.access.users.by_token(form.text("token").strip())
        if person is None or name not in ("", person.name):
            self.wrong.count(by_address(self.access.address_of(request)))
            return self._login_page(request, back, name, "that is not the token of anybody of this name", 401)
        self.sessions.drop(request.cookies.get(self.cookie))
        session = self.sessions.make(person.name)
        response = RedirectResponse(back, 303)
        response.headers.append("Set-Cookie", cookie_text(self.cookie, session.id, self.access.is_secure(request)))
        return response

    def _signed(self, seed: str) -> str:
        return hmac.new(self._key, seed.encode(), sha256).hexdigest()

    async def _log_out(self, request: Request) -> Response:
        identity: Identity = request.state.identity
        form = await form_of(request, self.limits.body_seconds)
        identity.check_csrf(request.headers.get("x-csrf-token") or form.text("csrf"))
        if identity.session is None:
            raise RefusedError(400, "there is no session to end")
        self.sessions.drop(identity.session.id)
        response = RedirectResponse("/login" if self.access.login else _HOME, 303)
        ended = cookie_text(self.cookie, "", self.access.is_secure(request)) + "; Max-Age=0"
        response.headers.append("Set-Cookie", ended)
        return response


_STYLES = ("csv", "json")


def _query(request: Request) -> dict[str, str]:
    query = {name: value for name, value in request.query_params.items() if name != "part"}
    return query | ({"alert": request.path_params["id"]} if "id" in request.path_params else {})


async def _home(request: Request) -> Response:
    return RedirectResponse(_HOME, 303)


async def _health(request: Request) -> Response:
    return JSONResponse({"ok": True})
