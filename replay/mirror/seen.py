"""Which messages were seen: offsets as ranges, so that millions of them are a few numbers beside the data."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

# Ranges that are kept in all, and of each key at least: with many keys, the latter.
_IN_ALL, _EACH = 4096, 64


class Ranges:
    """Whole numbers, as ranges in order.

    >>> ranges = Ranges()
    >>> [ranges.add(number) for number in (3, 5, 4, 4, 9)], ranges.pairs()
    ([True, True, True, False, True], [(3, 5), (9, 9)])
    >>> ranges.close_gaps(1), ranges.pairs()
    (None, [(3, 9)])
    """

    def __init__(self, pairs: Iterable[Iterable[int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in pairs:
            self._firsts.append(first)
            self._lasts.append(last)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, number: int) -> bool:
        """Whether it was not there."""
        at = bisect_right(self._firsts, number) - 1
        if at >= 0 and number <= self._lasts[at]:
            return False
        joins_before = at >= 0 and self._lasts[at] == number - 1
        joins_after = at + 1 < len(self._firsts) and self._firsts[at + 1] == number + 1
        if joins_before and joins_after:
            self._lasts[at] = self._lasts.pop(at + 1)
            del self._firsts[at + 1]
        elif joins_before:
            self._lasts[at] = number
        elif joins_after:
            self._firsts[at + 1] = number
        else:
            self._firsts.insert(at + 1, number)
            self._lasts.insert(at + 1, number)
        return True

    def close_gaps(self, most: int) -> None:
        """Take what lies between the lowest ranges as seen, too, until there are no more ranges than that."""
        over = len(self._firsts) - most
        if over > 0:
            del self._firsts[1 : over + 1]
            del self._lasts[:over]

    def pairs(self) -> list[tuple[int, int]]:
        """First and last of each range."""
        return list(zip(self._firsts, self._lasts, strict=True))


class Seen:
    """Places of messages by where they came from, each once.

    Workers write in the order of offsets, and after a failure the newest ones again. So a gap that lies many ranges
    back is never filled any more, and is closed: memory is bounded, and so are the bytes that go with each batch.
    """

    def __init__(self, known: Mapping[str, Iterable[Iterable[int]]] | None = None) -> None:
        self._ranges = {key: Ranges(pairs) for key, pairs in (known or {}).items()}

    def has(self, key: str, number: int) -> bool:
        """Whether it was added."""
        return key in self._ranges and number in self._ranges[key]

    def add(self, key: str, number: int) -> bool:
        """Whether it was not there."""
        ranges = self._ranges.setdefault(key, Ranges())
        is_new = ranges.add(number)
        ranges.close_gaps(max(_EACH, _IN_ALL // len(self._ranges)))
        return is_new

    def to_dict(self) -> dict[str, list[tuple[int, int]]]:
        """Plain values, for JSON."""
        return {key: ranges.pairs() for key, ranges in self._ranges.items()}
