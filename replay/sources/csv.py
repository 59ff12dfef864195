"""Records of a CSV file as any standard reader has them (RFC 4180), and what to do where a quote never closes.

A field that begins with a quote runs until the quote that closes it, over any number of lines: whoever writes a text
into such a field must not be able to make a record of it. Only a quote that never closes before the end of the file is
taken for a stray one. Then its record ends with its line and is refused, and the following lines are read anew. That
happens at most once in a file: behind such a quote all quotes are doubled, and none of those opens a field that leaves
its line.

:class:`Lines` reads a text line by line, in pieces where a line is longer than any line of data. :class:`GrowingFile`
waits for lines that are still being written.
"""

from __future__ import annotations

import csv
import io
import os
import re
import time
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from enum import Enum, auto
from pathlib import Path
from typing import IO, Any, NamedTuple

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


OpenText = Callable[[], AbstractContextManager[IO[str]]]

# Characters looked at to see how fields are quoted.
_LOOKED_AT = 1 << 14
_FIELD = re.compile(r"('(?:[^']|'')*+'|[^,\r\n]*)(,|\r\n|\r|\n|\Z)")
_NUMBER = re.compile(r"[+-]?[\d.]*(?:[eE][+-]?\d+)?")


class CsvRecord(NamedTuple):
    """A record: the line it begins in, its values or what is wrong with it, its text or the beginning of that."""

    line: int
    values: list[str]
    raw: str
    problem: str | None = None
    is_ended: bool = True  # a line end closes it: nothing of it can follow when the file grows
    left_out: int = 0  # a checksum of what ``raw`` does not show


def csv_records(open_text: OpenText, may_grow: Callable[[], bool] = lambda: False) -> Iterator[CsvRecord]:
    """Every record of a file but the empty ones, the header among them.

    A quote that never closes is waited for while the file may grow: the rest of its field may be on its way.
    """
    with open_text() as file:
        quote = quote_of(file.read(_LOOKED_AT))
    behind: int | None = 0
    while behind is not None:
        with open_text() as file:
            behind = yield from _Records(file, quote, behind, may_grow).all()


def quote_of(sample: str) -> str:
    """BankSim quotes with apostrophes, everybody else with quotation marks.

    Apostrophes it is where BankSim's way is evident: most records have all their texts, and only them, enclosed in
    apostrophes, and no field at all begins with a quotation mark. Who can write into one field decides nothing.
    """
    rows: list[list[str]] = [[]]
    for value, separator in _FIELD.findall(sample):
        rows[-1].append(value)
        if separator != ",":
            rows.append([])
    rows = [row for row in rows[1:] if any(row)]  # without the header
    if any(value.startswith('"') for row in rows for value in row):
        return '"'
    enclosed = sum(_is_enclosed(row) for row in rows)
    return "'" if 2 * enclosed > len(rows) else '"'


def _is_enclosed(row: list[str]) -> bool:
    texts = [value for value in row if not _NUMBER.fullmatch(value)]
    return bool(texts) and all(len(t) > 1 and t[0] == t[-1] == "'" for t in texts)


class _TooLongError(Exception):
    """A record beyond all bounds."""


class _Records:
    """Reads records with the standard library's reader, which takes its lines from here."""

    def __init__(self, file: IO[str], quote: str, behind: int, may_grow: Callable[[], bool]) -> None:
        self._lines, self._quote, self._may_grow = Lines(file), quote, may_grow
        self._lines.skip(behind)
        self._kept: list[str] = []  # the lines of the record at hand
        self._size = 0
        self._is_over = False

    def __iter__(self) -> _Records:
        return self

    def __next__(self) -> str:
        piece = self._lines.read()
        if not piece:
            self._is_over = True
            raise StopIteration
        self._kept.append(piece)
        self._size += len(piece)
        if self._size > LONGEST:
            raise _TooLongError(f"more than {LONGEST:,} characters")
        return piece

    def all(self) -> Generator[CsvRecord, None, int | None]:
        """Records in order; returns the line behind which to begin again, because of a quote that never closes."""
        reader = csv.reader(self, quotechar=self._quote)
        while True:
            self._kept, self._size = [], 0
            line, problem, left_out, stray = self._lines.number + 1, None, 0, None
            try:
                values = next(reader, None)
                if values is None:
                    return None
                if self._is_over:  # the reader asks for more lines than there are only inside a quoted field
                    stray, left_out = self._leave(line)
            except (csv.Error, _TooLongError) as error:
                values, problem = [], f"not a row of values: {error}"
                stray, left_out = self._leave(line)
            if stray is not None:
                if self._may_grow():
                    time.sleep(LOOK_AGAIN)
                    return line - 1
                raw, is_last = "".join(self._kept[: stray - line + 1]), self._lines.number == stray
                yield CsvRecord(line, [], _stripped(raw), "a quoted field that never closes", not is_last, left_out)
                return stray
            if values or problem:
                yield CsvRecord(line, values, _stripped("".join(self._kept)), problem, self._lines.is_whole, left_out)

    def _leave(self, line: int) -> tuple[int | None, int]:
        """Go behind the record at hand, keeping nothing more of it.

        Returns the line of a quote that never closes, and a checksum of what was not kept of the record.
        """
        place, left_out, left_out_there = _Place(self._quote), 0, 0
        for number, piece in enumerate(self._kept, start=line):
            place.move(piece, number)
        while (place.is_quoted or not self._lines.is_whole) and (piece := self._lines.read()):
            left_out = chained(left_out, piece)
            if place.move(piece, self._lines.number):
                left_out_there = left_out
        return (place.opened_in, left_out_there) if place.is_quoted else (None, left_out)


class _At(Enum):
    """Where in a record a standard reader stands."""

    START = auto()  # of a field
    PLAIN = auto()  # inside a field without quotes
    QUOTED = auto()
    QUOTE = auto()  # behind a quote inside a quoted field: doubled, or the closing one


class _Place:
    """Follows a standard reader through a record without keeping anything of it."""

    def __init__(self, quote: str) -> None:
        self._quote = quote
        self._at = _At.START
        self.opened_in = 0  # the line of the last quote that opened a field

    @property
    def is_quoted(self) -> bool:
        """Whether a line end here would be part of a field."""
        return self._at is _At.QUOTED

    def move(self, piece: str, line: int) -> bool:
        """Go behind a line or a part of one; whether a quote opened a field in it."""
        i, opened = 0, False
        while i < len(piece):
            if self._at is _At.QUOTED:
                i = piece.find(self._quote, i) + 1
                if not i:
                    break
                self._at = _At.QUOTE
            elif self._at is _At.QUOTE and piece[i] == self._quote:
                self._at, i = _At.QUOTED, i + 1
            elif self._at is _At.START and piece[i] == self._quote:
                self._at, i, opened = _At.QUOTED, i + 1, True
            else:
                i = piece.find("," + self._quote, i) + 2
                if i == 1:
                    self._at = _At.START if piece.endswith(",") else _At.PLAIN
                    break
                self._at, opened = _At.QUOTED, True
        self.opened_in = line if opened else self.opened_in
        return opened


def _stripped(text: str) -> str:
    return text.rstrip("\r\n")
