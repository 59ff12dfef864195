"""The server around the page: where it listens, and how it ends while pages are open."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from replay.watch.auth.connections import Connections
from stream_ccsd.errors import StreamCcsdError

# Seconds that the head of a request has to come, from when it may begin: the connection, or the answer before.
_PATIENCE = 10.0
# Seconds within which some of an answer must be taken.
_STUCK = 60.0
# Seconds that answers have to come to their end when the server does.
_GRACE = 2.0


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any that is free.

    Raises
    ------
    StreamCcsdError
        If there is no such place, or it is taken.
    """
    try:
        family, kind, protocol, _, place = _resolved(host, port)
        listening = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise StreamCcsdError(f"--host {host!r} is no address of this machine: 127.0.0.1 is ({error})") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(128)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise StreamCcsdError(
                f"port {port} of {host} is in use, maybe by another page: name another --port, or 0 for any free one"
            ) from error
        raise StreamCcsdError(
            f"cannot listen on {host}:{port} ({error.strerror}): name another --host or --port"
        ) from error
    return listening


def is_loopback(listening: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback


def url_of(listening: socket.socket, host: str) -> str:
    """Where a browser on this machine finds it."""
    address, port = listening.getsockname()[:2]
    name = "localhost" if ip_address(address.partition("%")[0]).is_unspecified else host
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"


class _Impatient(H11Protocol):
    """A connection that is closed when its other end neither asks nor takes the answer: it would keep others out.

    Uvicorn waits for ever for the rest of a request, and for whoever does not read. Its own time for the next request
    ends with the first byte of that.
    """

    def __init__(self, lines: Connections[_Impatient], *uvicorns: Any, **others: Any) -> None:
        super().__init__(*uvicorns, **others)
        self._lines, self._unsent = lines, 0
        self._due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Somebody connects."""
        super().connection_made(transport)
        self._expect()
        goes = self._lines.enter(self, self.client[0] if self.client else "")
        if goes is not None:
            goes.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Some of a request, or all of it."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._expect()
        if self._answers and not self.cycle.more_body:
            self._lines.asked(self)

    def on_response_complete(self) -> None:
        """All of an answer is on its way; the next request may be here already."""
        self._lines.waits(self)
        super().on_response_complete()
        self._expect()
        if self._answers and not self.cycle.more_body:
            self._lines.asked(self)

    def pause_writing(self) -> None:
        """More of the answer waits than is sent at once."""
        super().pause_writing()
        self._expect()

    def resume_writing(self) -> None:
        """It was taken."""
        super().resume_writing()
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed, by whomever."""
        self._lines.leave(self)
        super().connection_lost(exc)
        self._forget()

    @property
    def _answers(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect(self) -> None:
        """From now on, that the other end does what is its turn to do; what it is to take, it takes bit by bit."""
        self._forget()
        self._unsent = self.transport.get_write_buffer_size()
        if not self._answers or self.flow.write_paused:
            self._due = self.loop.call_later(_STUCK if self._unsent else _PATIENCE, self._overdue)

    def _overdue(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent:
            self._expect()
        else:
            self.transport.abort()  # to close it would be to wait until all is taken

    def _forget(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None


class PageServer(uvicorn.Server):
    """Ends when it is asked to, with every stream of events ended first: those have no end of their own."""

    def __init__(self, app: Starlette, stop: Callable[[], bool]) -> None:
        # Headers of proxies are our own business: uvicorn would believe whoever is on this machine.
        super().__init__(
            uvicorn.Config(
                app,
                http=cast(Any, partial(_Impatient, app.state.lines)),
                lifespan="off",
                ws="none",
                proxy_headers=False,
                server_header=False,
                access_log=False,
                log_config=None,
                timeout_graceful_shutdown=int(2 * _GRACE),
            )
        )
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        self._streams, self._stop = app.state.streams, stop

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the command's: it says when to stop."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        self.should_exit = self.should_exit or self._stop()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell streams to end; who does not take what was sent is cut off."""
        self._streams.stop()
        cutting = asyncio.ensure_future(self._cut_off())
        try:
            await super().shutdown(sockets)
        finally:
            cutting.cancel()

    async def _cut_off(self) -> None:
        await asyncio.sleep(_GRACE)
        for connection in list(self.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()


def serve(app: Starlette, listening: socket.socket, stop: Callable[[], bool]) -> None:
    """Serve until told to stop."""
    PageServer(app, stop).run([listening])


def _resolved(host: str, port: int) -> tuple[int, int, int, str, tuple[object, ...]]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found.sort(key=lambda info: info[0] != socket.AF_INET)  # "localhost" is 127.0.0.1
    return found[0]
