"""What people do on the page: each action is a form, sent by the page itself or by its script."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from anyio import to_thread
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from replay.watch.auth.access import Identity
from replay.watch.formats import RefusedError
from replay.watch.pages import wants_json
from replay.watch.protocol import Watchable
from stream_ccsd.errors import StreamCcsdError

_DEFAULT = "/queue"
# A case may have many alerts, and its verdict names each: about as many as fit into the largest body.
_FIELDS = 2000
_FINDINGS = ("fraud", "normal", "unsure")


@dataclass(frozen=True)
class Done:
    """What was done, in a sentence, and where to go on if not where one was."""

    said: str
    to: str | None = None


Do = Callable[[Watchable, "Form", Identity], Done]


class Form:
    """What was sent; values that are missing or make no sense are refused with their name."""

    def __init__(self, data: FormData) -> None:
        self._data = data

    def text(self, name: str) -> str:
        """One value; empty where there is none."""
        value = self._data.get(name)
        return value if isinstance(value, str) else ""

    def needed(self, name: str) -> str:
        """One value that must be there."""
        value = self.text(name)
        if not value.strip():
            raise StreamCcsdError(f"{name} is missing: fill it in")
        return value

    def texts(self, name: str) -> list[str]:
        """All values of that name."""
        found = [value for value in self._data.getlist(name) if isinstance(value, str) and value]
        if not found:
            raise StreamCcsdError(f"{name} is missing: choose at least one")
        return found

    def number(self, name: str) -> float:
        """A finite number."""
        text = self.needed(name)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise StreamCcsdError(f"{name} is {text[:60]!r}: expected a number")
        return value

    def whole(self, name: str) -> int:
        """A whole number from 0 on."""
        text = self.needed(name).strip()
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise StreamCcsdError(f"{name} is {text[:60]!r}: expected a whole number")
        return int(text)

    def others(self, *names: str) -> dict[str, str]:
        """All single values but these."""
        return {name: value for name, value in self._data.items() if name not in names and isinstance(value, str)}


def local_path(text: str, default: str = _DEFAULT) -> str:
    """A path on this site to go back to; anything that could lead elsewhere is the default.

    >>> local_path("/queue?by=loss"), local_path("//evil.example"), local_path("https://evil.example")
    ('/queue?by=loss', '/queue', '/queue')
    """
    parts = _split(text)
    is_ours = text.startswith("/") and not text.startswith("//") and parts is not None
    # Browsers take a backslash for a slash, and drop what cannot be seen.
    if not is_ours or "\\" in text or not text.isprintable() or " " in text or len(text) > 2000:
        return default
    return quote(text, safe="/:@!$&'()*+,;=~%?#-._[]")


def _split(text: str) -> Any:
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    return None if parts.scheme or parts.netloc else parts


def account_path(account: str) -> str:
    """Where an account is shown."""
    return f"/account?name={quote(account, safe='')}"


async def form_of(request: Request, seconds: float) -> Form:
    """The form of a request, which must arrive within some time.

    Raises
    ------
    RefusedError
        If it does not.
    """
    try:
        async with asyncio.timeout(seconds):
            return Form(await request.form(max_files=0, max_fields=_FIELDS))
    except TimeoutError as error:
        raise RefusedError(
            408, "the rest of this form did not arrive: send it again", {"Connection": "close"}
        ) from error


async def act(request: Request, watched: Watchable, needed: str, do: Do, seconds: float) -> Response:
    """Do it if it may be done, and say so."""
    identity: Identity = request.state.identity
    identity.check_role(needed)
    form = await form_of(request, seconds)
    identity.check_csrf(request.headers.get("x-csrf-token") or form.text("csrf"))
    # In threads of their own: a verdict may wait for a broker, and whoever looks must not wait for that.
    done = await to_thread.run_sync(do, watched, form, identity, limiter=request.app.state.writers)
    to = done.to or local_path(form.text("back"))
    return JSONResponse({"done": done.said, "to": to}) if wants_json(request) else RedirectResponse(to, 303)


def _take(watched: Watchable, form: Form, identity: Identity) -> Done:
    case = watched.take(form.others("csrf", "back"), identity.who, identity.seat)
    if case is None:
        return Done("no case is free: all that match are taken or judged")
    return Done(f"{case['account']} is yours for some minutes", account_path(case["account"]))


def _claim(watched: Watchable, form: Form, identity: Identity) -> Done:
    watched.claim(account := form.needed("account"), identity.who, identity.seat)
    return Done(f"{account} is yours for some minutes")


def _release(watched: Watchable, form: Form, identity: Identity) -> Done:
    watched.release(account := form.needed("account"), identity.who, identity.seat)
    return Done(f"{account} is free again")


def _judge(watched: Watchable, form: Form, identity: Identity) -> Done:
    finding = form.needed("finding")
    if finding not in _FINDINGS:
        raise StreamCcsdError(f"finding is {finding[:60]!r}: expected one of {', '.join(_FINDINGS)}")
    count = watched.judge(form.texts("alert"), finding, form.text("why"), identity.who, identity.seat)
    said = "1 verdict" if count == 1 else f"{count:,} verdicts"
    return Done(f"{finding}: {said} recorded" if count else f"{finding}: that was recorded before")


def _budget(watched: Watchable, form: Form, identity: Identity) -> Done:
    watched.set_budget(threshold := form.number("threshold"), identity.who, form.text("why"))
    said = (
        f"recorded: open alerts below {threshold:g} nats are hidden; a replay that runs alerts by it, workers on Kafka "
        "keep theirs"
    )
    return Done(said, _back(form, "/tune"))


def _suppress(watched: Watchable, form: Form, identity: Identity) -> Done:
    what, value, days = form.needed("what"), form.needed("value"), form.number("days")
    watched.suppress(what, value, days, identity.who, form.text("why"))
    return Done(f"alerts of {what} {value} are suppressed for {days:g} days", _back(form, "/tune"))


def _lift(watched: Watchable, form: Form, identity: Identity) -> Done:
    watched.lift(form.whole("suppression"), identity.who, form.text("why"))
    return Done("the suppression is lifted", _back(form, "/tune"))


def _pin(watched: Watchable, form: Form, identity: Identity) -> Done:
    watched.pin(version := form.text("version").strip(), identity.who, form.text("why"))
    return Done(f"{version} is pinned" if version else "the newest version is used again", _back(form, "/model"))


def _back(form: Form, default: str) -> str:
    return local_path(form.text("back"), default)


# By the path of each: the role it needs, and what it does.
ACTIONS: Mapping[str, tuple[str, Do]] = {
    "/take": ("judge", _take),
    "/claim": ("judge", _claim),
    "/release": ("judge", _release),
    "/judge": ("judge", _judge),
    "/budget": ("tune", _budget),
    "/suppress": ("tune", _suppress),
    "/lift": ("tune", _lift),
    "/pin": ("tune", _pin),
}
