"""Server-sent events: each reader has a place in the stream, and asks for what is behind it when it has taken the rest.

Nothing is kept for anybody: a reader that is slow, or does not read at all, holds one bounded piece of text.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from replay.watch.auth.limits import Limits, Places
from replay.watch.formats import RefusedError, json_text
from replay.watch.protocol import Since, View, Watchable

_LIMIT = 100  # alerts, and entries, that are sent at once
_BEAT = 15.0  # seconds: proxies end what says nothing
_PULSE = 1.0
_REST = 0.2  # between two looks at a stream that changes all the time
_SHARED = 16
_RETRY = 2000  # milliseconds until a browser whose stream broke comes again
_PLACE = re.compile(r"(\d{1,18})\.(\d{1,18})", re.ASCII)
# What an alert says here; the page asks for the rest.
_ALERT = ("position", "id", "account", "time", "when", "score", "amount", "headline", "raised_by")
_ENTRY = ("sequence", "kind", "who", "account", "transaction")

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def place_of(text: str | None) -> tuple[int, int] | None:
    """Where a reader was: position and sequence number; None where it does not say.

    Raises
    ------
    RefusedError
        If it says something else.
    """
    if not text:
        return None
    match = _PLACE.fullmatch(text)
    if match is None:
        raise RefusedError(400, "the place in the stream of events is no place like 1204.17: load the page again")
    return int(match[1]), int(match[2])


class Streams:
    """All readers together: one thread waits for changes for all of them, and few threads look them up."""

    def __init__(self, watched: Watchable, run: str, limits: Limits, beat: float = _BEAT) -> None:
        self._watched, self.run, self.beat = watched, run, beat
        self._places = Places(limits.streams_a_session, limits.streams)
        self._bell = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._asked: dict[tuple[int, int], asyncio.Future[Since]] = {}
        self.stopping = False
        self.pulse: View | None = None
        self.pulses = 0

    @property
    def readers(self) -> int:
        """How many there are."""
        return self._places.taken

    def open(
        self, name: str, place: tuple[int, int] | None, may_go_on: Callable[[], bool] = lambda: True
    ) -> EventStream:
        """A stream for somebody, from a place on; ``name`` is whose places are counted.

        It is over when it ``may_go_on`` no more, which is asked at each beat, and before anything is sent.
        """
        return EventStream(self, name, place, may_go_on)

    def place(self, name: str) -> Any:
        """Take a place while it is used."""
        return self._places.one(name)

    def stop(self) -> None:
        """End all streams: their readers are sent what they were being sent, and a proper end."""
        self.stopping = True
        self._ring()

    @property
    def bell(self) -> asyncio.Event:
        """Is set when there may be something new. To be taken before looking, so that nothing is missed."""
        if self._listener is None or self._listener.done():
            self._listener = asyncio.ensure_future(self._listen())
        return self._bell

    async def now_at(self) -> tuple[int, int]:
        """The place of whoever does not say one."""
        return await self._in_thread(self._watched.now_at)

    async def since(self, place: tuple[int, int]) -> Since:
        """What is behind a place; readers at the same place share the answer."""
        if place not in self._asked:
            if len(self._asked) >= _SHARED:
                self._asked.clear()
            asked = self._in_thread(lambda: Since(*self._watched.since(*place, _LIMIT)))
            self._asked[place] = asyncio.ensure_future(asked)
        try:
            return await asyncio.shield(self._asked[place])
        except Exception:
            self._asked.pop(place, None)  # who comes next asks again
            raise

    async def _listen(self) -> None:
        """Ring the bell when something changes, for as long as anybody reads."""
        known, told, is_due = self._watched.changed, 0.0, True
        while self.readers and not self.stopping:
            try:
                if is_due and time.monotonic() - told >= _PULSE:
                    self.pulse = await self._in_thread(self._watched.pulse)
                    self.pulses += 1
                    told, is_due = time.monotonic(), False
                    self._ring()
                wait = _PULSE if not is_due else max(0.05, told + _PULSE - time.monotonic())
                changed = await self._in_thread(lambda k=known, w=wait: self._watched.wait(k, w))  # type: ignore[misc]
                if changed != known:
                    known, is_due = changed, True
                    self._ring()
                    await asyncio.sleep(_REST)
            except Exception:  # what is watched may be away for a moment: readers stay
                _log.exception("what is watched cannot be followed at the moment")
                await asyncio.sleep(_PULSE)

    def _ring(self) -> None:
        self._asked.clear()
        rung, self._bell = self._bell, asyncio.Event()
        rung.set()

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        if self._threads is None:  # apart from the threads of pages: readers never make those wait
            self._threads = ThreadPoolExecutor(5, thread_name_prefix="events")
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


class EventStream:
    """The answer to one reader, as an ASGI application: it ends with the reader, its session, or the server."""

    def __init__(
        self, streams: Streams, name: str, place: tuple[int, int] | None, may_go_on: Callable[[], bool]
    ) -> None:
        self._streams, self._name, self._place, self._may_go_on = streams, name, place, may_go_on

    @property
    def _is_over(self) -> bool:
        return self._streams.stopping or not self._may_go_on()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell what happens."""
        with self._streams.place(self._name):
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            talk = asyncio.ensure_future(self._talk(send))
            gone = asyncio.ensure_future(_gone(receive))
            try:
                await asyncio.wait({talk, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (talk, gone):
                    task.cancel()
                said, _ = await asyncio.gather(talk, gone, return_exceptions=True)
            if isinstance(said, Exception):
                raise said
            if said is None:
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _talk(self, send: Send) -> None:
        streams = self._streams

        async def say(text: str) -> None:
            # Waits until the reader's line takes it: meanwhile nothing else is looked up for it.
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

        place = self._place or await streams.now_at()
        await say(f"retry: {_RETRY}\n" + _event("hello", {"run": streams.run}, place))
        pulses = 0
        while not self._is_over:
            bell = streams.bell
            while True:
                new = await streams.since(place)
                if self._is_over:
                    return
                if text := _told(new, place):
                    await say(text)
                place = (new.position, new.sequence)
                if not text:
                    break
            if streams.pulses != pulses and streams.pulse is not None:
                pulses = streams.pulses
                await say(_event("pulse", streams.pulse))
            try:
                async with asyncio.timeout(streams.beat):
                    await bell.wait()
            except TimeoutError:
                await say(": nothing new\n\n")


async def _gone(receive: Receive) -> None:
    """Until the reader has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _told(new: Since, before: tuple[int, int]) -> str:
    """What is new as events. Whoever comes again with the id of one gets all behind it, and nothing twice."""
    if new.behind:
        return _event("behind", {}, (new.position, new.sequence))
    alerts = (_event("alert", _only(a, _ALERT), (a["position"], before[1])) for a in new.alerts)
    entries = (_event("desk", _only(e, _ENTRY), (new.position, e["sequence"])) for e in new.entries)
    return "".join([*alerts, *entries])


def _only(values: Mapping[str, Any], names: tuple[str, ...]) -> View:
    return {name: values.get(name) for name in names}


def _event(kind: str, data: View, place: tuple[int, int] | None = None) -> str:
    """One event; JSON has no line ends, so nothing within it can pass for another."""
    number = f"id: {place[0]}.{place[1]}\n" if place is not None else ""
    return f"event: {kind}\n{number}data: {json_text(data)}\n\n"
