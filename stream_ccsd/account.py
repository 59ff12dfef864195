"""The account profile: a small record of fixed size, packed to bytes between events.

The record holds the K + L - 1 newest transactions, which is what L overlapping windows of K need. It also holds the
running mean and deviation, the usual amounts, gaps and hours, the maximum score, and the answers to the newest
transactions, so that a duplicate gets the answer of the first time. In memory it is one numpy record that compiled
code reads and writes. At rest it is bytes with a version, its sizes and a checksum, and holds only what is in use.

:class:`Batch` and :class:`Accounts` are events and profiles as compiled code takes them, with room for its outputs.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from isal.isal_zlib import crc32  # that of zlib, from vector instructions: a state is checked twice an event

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.scores import COMPILED
from stream_ccsd.transaction import Status

STATE_VERSION = 3
RECENT = 46
"""Newest transactions whose ids are kept, to know duplicates by."""
ANSWERS = 12
"""Newest transactions whose answers are kept, to repeat them."""
TOP = 3
"""Highest scores whose sum is the account's accumulated evidence."""
DENSITY_POINTS = 24
"""Points of each density curve in an alert."""
REGIMES = 3
"""Library regimes named in an alert."""
GAPS = 24
"""Newest gaps that are kept, to count the transactions of an hour and a day."""
HOURS = 24
"""Bins of the hours at which the account pays."""
NAMED = 128
"""Newest transactions whose values of declared categories are kept."""
LATELY = (1.0, 5.0, 20.0)
"""Half-lives, in days, of how far the account's newest amounts lay above its usual ones; in transactions where time
has no unit."""
# What the account's past says about its next transaction is a view: numbers, filled in by ``evidence.profile``. Behind
# these places, for each declared category, comes the weight of earlier transactions with the same value.
USUAL, USUAL_WEIGHT = 0, 1  # its usual distance from the center of amounts, and the weight of that
AT_PLACE, OWN_WEIGHT = 2, 3  # weight of earlier transactions at the same place, and of all that are kept
HOUR, WEEKDAY = 4, 5  # hours since midnight and days since Monday, NaN where time has no unit
AT_HOUR, HOUR_WEIGHT = 6, 7  # its own density at that hour, and the weight of that
GAP, RATE = 8, 9  # since its newest transaction, NaN for its first; class of its usual gap
IN_HOUR, IN_DAY = 10, 11  # earlier transactions within an hour and a day
ALIKE = 12  # density of the amount among earlier ones at the same place, times their weight
VIEW = 13

_MAGIC = b"CA"
_HEAD = struct.Struct("<2sBHHBI")  # magic, version, window, local history, declared categories, checksum


class StateError(StreamCcsdError):
    """Bytes that are not an account state of this version and these settings."""


# The answer to one of the account's newest transactions.
ANSWER = np.dtype(
    [
        ("scores", "f8", (len(COMPILED),)),
        ("previous_maximum", "f8"),
        ("maximum", "f8"),
        ("decision", "i1"),
        ("regime", "i1"),
    ]
)

# The background of the account's latest alert, small enough to be kept in the state.
BACKGROUND = np.dtype(
    [
        ("id", "u8"),
        ("seen", "f4", (VIEW,)),  # its view
        ("run", "i4"),  # transactions that the takeover score added up over
        ("regime_share", "f4", (REGIMES,)),
        ("regime_category", "u4", (REGIMES,)),
        ("regime_merchant", "u4", (REGIMES,)),
        ("reach", "f4"),  # the density curves run from 0 to this abs(Δz)
        ("peak", "f4"),  # of both densities, which are in 255ths of it
        ("local_density", "u1", (DENSITY_POINTS,)),
        ("global_density", "u1", (DENSITY_POINTS,)),
    ]
)

# One earlier transaction.
ENTRY = np.dtype([("amount", "f8"), ("category", "u4"), ("merchant", "u4")])


# The profile without the history. The history's length is a setting, so it is not part of the record: compiled
# code is kept on disk by the names of its types, and the compiler gives records of different layouts one name.
ACCOUNT = np.dtype(
    [
        ("count", "i8"),
        ("mean", "f8"),
        ("squares", "f8"),  # sum of squared deviations from the mean (Welford)
        ("newest_time", "f8"),
        ("top", "f8", (TOP,)),  # highest scores, falling; the first is the account's maximum
        ("alerts", "i4"),
        ("alerted_score", "f8"),
        ("alerted_time", "f8"),
        ("usual_sum", "f8"),  # decayed sum of distances of log amounts from the center of their category
        ("usual_weight", "f8"),
        ("gap_sum", "f8"),  # decayed sum of log gaps
        ("gap_weight", "f8"),
        ("gaps", "f4", (GAPS,)),  # a ring, as the ids
        ("hours", "f4", (HOURS,)),  # decayed counts
        ("takeover", "f8"),  # cumulated evidence that this is somebody else
        ("run", "i4"),  # transactions since that was 0
        ("lately", "f4", (2 * len(LATELY),)),  # by half-life: decayed sum of distances from the usual, and count
        ("background", BACKGROUND),
        ("ids", "u8", (RECENT,)),  # a ring: the place of a transaction follows from its number
        ("answers", ANSWER, (ANSWERS,)),  # likewise
        ("held", "i4"),  # history in use
    ]
)
# Where two of these stand in its bytes.
_COUNT, _COUNT_AT = struct.Struct("=q"), ACCOUNT.fields["count"][1]  # type: ignore[index]
_HELD, _HELD_AT = struct.Struct("=i"), ACCOUNT.fields["held"][1]  # type: ignore[index]


class StateSizes(NamedTuple):
    """The settings that the layout of a state depends on."""

    window: int
    local_history: int
    named: int = 0  # declared categories, of which codes are kept

    def __str__(self) -> str:
        declared = f", {self.named} declared categories" if self.named else ""
        return f"window {self.window}, local history {self.local_history}{declared}"


def state_sizes(data: bytes) -> StateSizes | None:
    """The sizes that a state was packed with; None if the bytes do not say."""
    if len(data) < _HEAD.size:
        return None
    magic, version, *sizes, _ = _HEAD.unpack_from(data)
    return StateSizes(*sizes) if (magic, version) == (_MAGIC, STATE_VERSION) else None


class Slab:
    """Working memory for accounts: one record and one history a row, from oldest to newest, also as raw bytes."""

    def __init__(self, blank: AnyArray, rows: int, longest_history: int, named: int) -> None:
        self.records: AnyArray = np.tile(blank, rows)
        self.histories: AnyArray = np.zeros((rows, longest_history), ENTRY)
        # Codes of declared categories of the newest transactions, from oldest to newest, and their part of the view.
        self.named: AnyArray = np.zeros((rows, named, min(NAMED, longest_history)), np.uint32)
        self.views: AnyArray = np.zeros((rows, named), np.float32)
        # Python's own views of the bytes: to copy through numpy takes several times as long for one account.
        self.raw = self.records.view(np.uint8).data
        self.raw_histories = self.histories.view(np.uint8).reshape(-1).data


class AccountCodec:
    """Moves account records between working memory and bytes.

    >>> codec = AccountCodec(window=50, local_history=120)
    >>> codec.largest <= 4096, (AccountCodec(50, 120, named=3).largest - codec.largest) / 3 <= 4 * codec.longest_history
    (True, True)
    """

    def __init__(self, window: int, local_history: int, named: int = 0) -> None:
        self.sizes = StateSizes(window, local_history, named)
        self.longest_history = window + local_history - 1
        self._named = min(NAMED, self.longest_history)
        self.largest = (
            _HEAD.size + ACCOUNT.itemsize + self.longest_history * ENTRY.itemsize + named * 4 * (self._named + 1)
        )
        self._blank = np.zeros(1, ACCOUNT)
        for name in ("newest_time", "alerted_time", "alerted_score", "top"):
            self._blank[name] = -np.inf
        self._blank_bytes = self._blank.tobytes()
        self._no_history = bytes(self.longest_history * ENTRY.itemsize)
        self._head = (_MAGIC, STATE_VERSION, *self.sizes)
        self._seed = crc32(_HEAD.pack(*self._head, 0))

    def slab(self, rows: int) -> Slab:
        """Working memory for that many accounts, all of them new."""
        return Slab(self._blank, rows, self.longest_history, self.sizes.named)

    def clear(self, slab: Slab, row: int) -> None:
        """Make a row that of a new account."""
        record, history = self._places(row)
        slab.raw[record : record + ACCOUNT.itemsize] = self._blank_bytes
        slab.raw_histories[history : history + len(self._no_history)] = self._no_history
        if self.sizes.named:
            slab.named[row] = 0
            slab.views[row] = 0

    def _places(self, row: int) -> tuple[int, int]:
        """Where the bytes of a row begin, of its record and of its history."""
        return row * ACCOUNT.itemsize, row * len(self._no_history)

    def pack(self, slab: Slab, row: int) -> bytes:
        """A row as bytes, without the history that is not in use."""
        record, history = self._places(row)
        (held,) = _HELD.unpack_from(slab.raw, record + _HELD_AT)
        parts: list[bytes | memoryview] = [
            slab.raw[record : record + ACCOUNT.itemsize],
            slab.raw_histories[history : history + held * ENTRY.itemsize],
        ]
        if self.sizes.named:
            parts += slab.named[row, :, : min(held, self._named)].tobytes(), slab.views[row].tobytes()
        checksum = self._seed
        for part in parts:
            checksum = crc32(part, checksum)
        return b"".join((_HEAD.pack(*self._head, checksum), *parts))

    def unpack(self, data: bytes, slab: Slab, row: int) -> None:
        """Fill a row from bytes; after an error the row is as it was.

        Raises
        ------
        StateError
            If the bytes are cut short, altered, of another version, or of other window settings.
        """
        if not isinstance(data, bytes) or len(data) < _HEAD.size:
            raise StateError(f"an account state has at least {_HEAD.size} bytes, got {_length(data)}")
        *head, checksum = _HEAD.unpack_from(data)
        if tuple(head) != self._head:
            raise StateError(self._explain(*head))
        body = memoryview(data)[_HEAD.size :]
        if crc32(body, self._seed) != checksum:
            raise StateError("the account state is damaged: its checksum does not match")
        if len(body) < ACCOUNT.itemsize:
            raise StateError("the account state is damaged: its length is impossible")
        (held,), (count,) = _HELD.unpack_from(body, _HELD_AT), _COUNT.unpack_from(body, _COUNT_AT)
        named = self.sizes.named
        kept = min(max(held, 0), self._named)
        length = held * ENTRY.itemsize
        if (
            not 0 <= held <= self.longest_history
            or ACCOUNT.itemsize + length + named * 4 * (kept + 1) != len(body)
            or count < held
        ):
            raise StateError("the account state is damaged: its sizes do not agree")
        record, history = self._places(row)
        slab.raw[record : record + ACCOUNT.itemsize] = body[: ACCOUNT.itemsize]
        slab.raw_histories[history : history + length] = body[ACCOUNT.itemsize : ACCOUNT.itemsize + length]
        slab.raw_histories[history + length : history + len(self._no_history)] = self._no_history[length:]
        if named:
            place = ACCOUNT.itemsize + length
            codes = np.frombuffer(body, np.uint32, named * kept, place)
            slab.named[row, :, :kept] = codes.reshape(named, kept)
            slab.named[row, :, kept:] = 0
            slab.views[row] = np.frombuffer(body, np.float32, named, place + codes.nbytes)

    def _explain(self, magic: bytes, version: int, *sizes: int) -> str:
        if magic != _MAGIC:
            return "these bytes are not an account state"
        if version != STATE_VERSION:
            return f"account state of version {version}, this program reads version {STATE_VERSION}"
        return f"account state for {StateSizes(*sizes)}, the model has {self.sizes}"


def _length(data: object) -> str:
    return str(len(data)) if isinstance(data, bytes | bytearray | memoryview) else type(data).__name__


# Outcomes of an event.
SCORED, LATE, DUPLICATE, TOO_LATE = 0, 1, 2, 3
# Duplicates by id with another content, and those whose answer is no longer kept.
DIFFERENT, FORGOTTEN = 4, 5
STATUSES = (Status.SCORED, Status.LATE, Status.DUPLICATE, Status.TOO_LATE, Status.DUPLICATE, Status.DUPLICATE)

# An event as compiled code takes it, and its answer.
EVENT = np.dtype(
    [
        ("row", "i8"),
        ("time", "f8"),
        ("amount", "f8"),
        ("category", "u4"),
        ("merchant", "u4"),
        ("id", "u8"),
        ("account", "u8"),
    ]
)
PACKED_EVENT = struct.Struct("=qddIIQQ")
"""The same as Python packs it: quicker than an assignment to a row."""
# Eight bytes each, whole numbers first.
OUTPUT = np.dtype(
    [
        ("status", "i8"),
        ("decision", "i8"),
        ("regime", "i8"),  # change flags of the transaction, -1 for an account's first
        ("count", "i8"),  # transactions of the account so far
        ("scores", "f8", (len(COMPILED),)),  # NaN where there is nothing to compare yet
        ("rarities", "f8", (len(COMPILED),)),  # of each, among normal transactions
        ("score", "f8"),  # the alert score: rarity of the score that alerts are on
        ("previous_maximum", "f8"),
        ("maximum", "f8"),
        ("accumulated", "f8"),  # sum of the account's highest scores
        ("newest_time", "f8"),  # of the account, before the event
    ]
)
_ROW = struct.Struct(f"=4q{OUTPUT.itemsize // 8 - 4}d")


class Answers(NamedTuple):
    """An output as Python's own values."""

    status: int
    decision: int
    transactions: int  # of the account so far
    scores: list[float | None]
    rarities: list[float | None]
    score: float
    maximum: float
    accumulated: float
    newest_time: float


def answers(outputs: AnyArray) -> list[Answers]:
    """Rows of a table of outputs; a score or rarity that is NaN is None."""
    n, found = len(COMPILED), []
    # Unpacked as bytes: for one row, numpy's ways to Python's own numbers take several times as long.
    for status, decision, _, count, *row in _ROW.iter_unpack(outputs.data):
        scores = [None if value != value else value for value in row[:n]]  # noqa: PLR0124
        rated = zip(scores, row[n : 2 * n], strict=True)
        rarities = [None if score is None or value != value else value for score, value in rated]  # noqa: PLR0124
        score, _, maximum, accumulated, newest = row[2 * n :]
        found.append(Answers(status, decision, count, scores, rarities, score, maximum, accumulated, newest))
    return found


class Accounts(NamedTuple):
    """Working memory of accounts, a row each (``account.Slab``)."""

    records: AnyArray
    histories: AnyArray
    named: AnyArray
    views: AnyArray


class Batch(NamedTuple):
    """Events as compiled code takes them, and room for its outputs, a row each."""

    events: AnyArray
    names: AnyArray  # codes of declared categories
    numbers: FloatArray  # declared numbers, NaN where missing
    outputs: AnyArray
    terms: FloatArray  # of the evidence
    inputs: FloatArray  # what a model update learns from, where the model learns
    backgrounds: AnyArray  # filled in for alerts
    views: AnyArray  # likewise, of declared categories

    @staticmethod
    def of(rows: int, terms: int, named: int, numbers: int, inputs: int = 0) -> Batch:
        """A batch of so many rows, for models with so many terms and declared fields."""
        return Batch(
            np.zeros(rows, EVENT),
            np.zeros((rows, named), np.uint32),
            np.zeros((rows, numbers)),
            np.zeros(rows, OUTPUT),
            np.zeros((rows, terms)),
            np.zeros((rows, inputs)),
            np.zeros(rows, BACKGROUND),
            np.zeros((rows, named), np.float32),
        )
