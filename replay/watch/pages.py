"""Pages from templates, whole or in parts, and how errors look."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import blake2b
from mimetypes import guess_type
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import BaseLoader, Environment, FileSystemLoader
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from replay.cases.cases import TakenError
from replay.watch.auth.access import Identity
from replay.watch.auth.users import includes
from replay.watch.formats import NotFoundError, RefusedError, filters
from replay.watch.protocol import Watchable
from stream_ccsd.errors import StreamCcsdError

_HERE = Path(__file__).parent
_FAULT = "this should not have happened, and is a fault of the page; its log has the details: tell whoever runs it"
_FOREVER = "public, max-age=31536000, immutable"
_PHRASES = {400: "That did not work", 401: "Who are you?", 403: "Not allowed", 404: "Not found", 409: "Taken"}
_PHRASES |= {405: "Not this way", 413: "Too large", 421: "Another name", 429: "Too fast", 500: "A fault", 503: "Full"}

_log = logging.getLogger(__name__)


class Pages:
    """Renders templates; everything that is no markup of ours is escaped."""

    def __init__(
        self, watched: Watchable, loader: BaseLoader | None, extras: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> None:
        self._facts = dict(facts)
        self._watched = watched
        self._environment = Environment(
            loader=loader or FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(filters(self._show))
        self._environment.globals.update(extras)

    def _show(self, time: float) -> str:
        return self._watched.calendar.show(time)

    def render(self, name: str, context: Mapping[str, Any], part: str | None = None) -> str:
        """A whole page, or one block of it.

        Raises
        ------
        NotFoundError
            If it has no such part.
        """
        template = self._environment.get_template(f"{name}.html")
        values = {**self._facts, "source": self._watched.title, **context, "view": name, "part": part}
        if part is None:
            return template.render(values)
        inner = template.new_context(values)
        # What a template imports at its top is known to its blocks only once it has begun.
        begun = template.root_render_func(inner)
        next(iter(begun), None)
        if part not in inner.blocks:
            raise NotFoundError(f"the page {name} has no part {part[:60]!r}")
        return "".join(inner.blocks[part][0](inner))

    def context(
        self, page: Mapping[str, Any], identity: Identity | None, name: str = "", query: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """What every template gets; ``name`` is the view that can be exported as it is asked for.

        ``at`` is where events go on behind what the page shows: of a page that shows nothing, nowhere.
        """
        query = query or {}
        tail = f"?{urlencode(query)}" if query else ""
        exports = {style: f"/{name}.{style}{tail}" for style in ("csv", "json")} if name else {}
        role = identity.role if identity is not None else ""
        return {
            "page": page,
            "who": identity.who if identity is not None else "",
            "role": role,
            "may_judge": bool(role) and includes(role, "judge"),
            "may_tune": bool(role) and includes(role, "tune"),
            "csrf": identity.csrf if identity is not None else "",
            "query": dict(query),
            "exports": exports,
            "at": "",
            "calendar": self._watched.calendar,
            "trouble": self._watched.trouble,
        }

    async def fail(self, request: Request, error: Exception) -> Response:
        """An error as an answer, as JSON for whoever asks for that; what was not foreseen is logged, and not shown."""
        status, said, headers = _explained(error)
        if status >= 500 and not isinstance(error, RefusedError):
            _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        if wants_json(request):
            return JSONResponse({"error": said}, status, headers)
        identity = getattr(request.state, "identity", None)
        page = {"status": status, "title": _PHRASES.get(status, "That did not work"), "error": said}
        try:
            text = self.render("error", self.context(page, identity))
        except Exception:
            _log.exception("the page for errors cannot be made")
            return Response(said, status, headers, media_type="text/plain")
        return HTMLResponse(text, status, headers)


def wants_json(request: Request) -> bool:
    """Whether a program asks, not a person."""
    accepts = request.headers.get("accept", "")
    return ("application/json" in accepts and "text/html" not in accepts) or request.url.path.endswith(".json")


def _explained(error: Exception) -> tuple[int, str, dict[str, str]]:
    if isinstance(error, RefusedError):
        return error.status, str(error), error.headers
    if isinstance(error, NotFoundError):
        return 404, str(error), {}
    if isinstance(error, TakenError):
        return 409, str(error), {}
    if isinstance(error, StreamCcsdError):
        return 400, str(error), {}
    if isinstance(error, HTTPException):
        said = {404: "there is no such page", 405: "this is not done by opening an address: use the form of the page"}
        return error.status_code, said.get(error.status_code, str(error.detail)), dict(error.headers or {})
    return 500, _FAULT, {}


class Static:
    """The files of the page: few and small, so they are kept in memory, and no path leads anywhere else."""

    def __init__(self, folder: Path | None = None) -> None:
        folder = folder or _HERE / "static"
        files = sorted(path for path in folder.glob("*") if path.is_file())
        self._files = {path.name: path.read_bytes() for path in files}
        digest = blake2b(digest_size=8)
        for name, content in self._files.items():
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        self.version = digest.hexdigest()

    async def __call__(self, request: Request) -> Response:
        """One of them. Under its own version it never changes, so that a browser asks once."""
        content = self._files.get(request.path_params["name"])
        if content is None:
            raise NotFoundError("there is no such file")
        is_lasting = request.query_params.get("v") == self.version
        headers = {"Cache-Control": _FOREVER if is_lasting else "no-cache", "ETag": f'"{self.version}"'}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(None, 304, headers)
        kind = guess_type(request.path_params["name"])[0] or "application/octet-stream"
        return Response(content, headers=headers, media_type=kind)
