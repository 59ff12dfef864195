"""What may be refused to whoever looks at the page, and how that is said over HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from stream_ccsd.errors import StreamCcsdError


class NotFoundError(StreamCcsdError):
    """There is no such account, alert or page (404)."""


class RefusedError(StreamCcsdError):
    """A request that is not answered: with which status, why, and what to do instead."""

    def __init__(self, status: int, said: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(said)
        self.status, self.headers = status, dict(headers or {})
