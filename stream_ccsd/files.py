"""How results reach a file: whole or not at all, wherever the name leads.

A plain file is written beside its place and then put there in one step, so that nobody ever reads half of it. A link is
followed: the file it names is replaced, the link stays. A pipe or a device is written to as it is, because a plain file
in its place would take it away from its reader.

:data:`Progress` is the callback with which long work reports how far it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stream_ccsd.errors import StreamCcsdError

Progress = Callable[[int, int], None]
"""Called with ``(done, total)`` every now and then."""


class WriteError(StreamCcsdError):
    """A file cannot be written; says which, why and what to do."""

    def __init__(self, path: Path | str, error: OSError) -> None:
        super().__init__(f"cannot write {path}: {error.strerror or error}. Make room, or name another place")


def is_special(path: Path) -> bool:
    """Whether the name is taken by something that is written to, not replaced: a pipe, a device, a socket."""
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what is to be found at ``path``: it appears there when the block ends, and not if that fails.

    Raises
    ------
    WriteError
        If the block or the last step ends in an operating system's error.
    """
    try:
        target = path.resolve(strict=False)
        if is_special(target):
            yield target
            return
        temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}.tmp")
        try:
            yield temporary
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except RuntimeError as error:  # what pathlib says of a link that leads to itself
        raise StreamCcsdError(f"cannot write {path}: {error}") from error
    except OSError as error:
        raise WriteError(path, error) from error


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write a file; returns its path."""
    with replacing(path) as place:
        place.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def check_writable(path: Path) -> None:
    """Refuse a path that cannot be written, before hours of work and not after.

    Raises
    ------
    StreamCcsdError
        If it is a folder, or its own folder is missing or not ours to write to.
    """
    try:
        target = path.resolve(strict=False)
        fits = not target.is_dir() and os.access(target if is_special(target) else target.parent, os.W_OK)
    except (OSError, RuntimeError, ValueError):  # a name too long, a circle of links, a zero byte
        fits = False
    if not str(path) or not fits:
        raise StreamCcsdError(f"cannot write to {str(path)!r}: name a file in a folder that exists and is yours")
