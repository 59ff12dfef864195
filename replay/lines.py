"""Lines of a text file: numbered, in pieces where they are longer than any line of data, waited for while they grow."""

from __future__ import annotations

import io
import os
import time
import zlib
from pathlib import Path
from typing import IO, Any

LONGEST = 1 << 20
"""Longest record in characters; what is longer is damage, not data."""

LOOK_AGAIN = 0.05
"""Seconds between two looks at a file that may grow."""

# A file that was changed so many seconds ago may still be being written.
_PATIENCE = 1.0


def is_growing(file: Path | int) -> bool:
    """Whether somebody may still be writing to a file: it was changed within the last second."""
    return abs(time.time() - os.stat(file).st_mtime) < _PATIENCE


class GrowingFile(io.RawIOBase):
    """A file that somebody may still be writing: a last line without a line end is waited for.

    The end of the file is believed when it is that of a line, or when nothing was written for a second.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._last = b"\n"

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As of any raw file; see the class for the end."""
        while not (count := self._file.readinto(buffer)) and self._last != b"\n" and is_growing(self._file.fileno()):
            time.sleep(LOOK_AGAIN)
        if count:
            self._last = bytes(buffer[count - 1 : count])
        return count or 0


class Lines:
    """A text, line by line; ``number`` is that of the line that was read last, from 1."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._pushed_back = ""
        self.is_whole = True  # the line read last, up to its end
        self.number = 0

    def read(self) -> str:
        """The next line with its end, or the next piece of one that is longer than ``LONGEST``; empty at the end."""
        piece = self._pushed_back or self._file.readline(LONGEST + 1)
        self._pushed_back = ""
        if len(piece) > LONGEST and piece[-1] == "\r":  # perhaps one half of a line end
            following = self._file.readline(LONGEST + 1)
            if following == "\n":
                piece += following
            else:
                self._pushed_back = following
        self.number += self.is_whole and piece != ""
        self.is_whole = is_ended(piece)
        return piece

    def skip(self, count: int) -> None:
        """Go behind so many lines."""
        while self.number < count or not self.is_whole:
            if not self.read():
                return

    def skip_line(self) -> int:
        """Go behind the line whose first piece was read; returns a checksum of what is left out."""
        checksum = 0
        while not self.is_whole and (piece := self.read()):
            checksum = chained(checksum, piece)
        return checksum


def is_ended(piece: str) -> bool:
    """Whether a line ends here."""
    return piece.endswith(("\n", "\r"))


def chained(checksum: int, text: str) -> int:
    """The checksum of a text that comes behind others."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass"), checksum)
