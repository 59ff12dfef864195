"""The server around the page: where it listens, and how it ends while pages are open."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from stream_ccsd.errors import StreamCcsdError

# Connections at once; beyond them the answer is 503.
_CONNECTIONS = 1000
# Seconds that the first request of a connection has to come.
_PATIENCE = 10.0
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
    """Closes connections over which no whole request comes: who says nothing would keep others out."""

    def connection_made(self, transport: Any) -> None:
        """Somebody connects."""
        super().connection_made(transport)
        self.loop.call_later(_PATIENCE, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None:
            self.transport.close()


class PageServer(uvicorn.Server):
    """Ends when it is asked to, with every stream of events ended first: those have no end of their own."""

    def __init__(self, app: Starlette, stop: Callable[[], bool]) -> None:
        # Headers of proxies are our own business: uvicorn would believe whoever is on this machine.
        super().__init__(
            uvicorn.Config(
                app,
                http=_Impatient,
                lifespan="off",
                ws="none",
                proxy_headers=False,
                server_header=False,
                access_log=False,
                log_config=None,
                limit_concurrency=_CONNECTIONS,
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
