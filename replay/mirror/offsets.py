"""Which messages were seen: offsets as ranges, so that millions of them are a few numbers beside the data."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping

# Ranges that are kept in all, and of each key at least: with many keys, the latter.
_IN_ALL, _EACH = 4096, 64
# After a failure a worker repeats at most what one commit interval held; this is more than that.
_REMEMBERED = 100_000


class Ranges:
    """Whole numbers, as ranges in order.

    >>> ranges = Ranges()
    >>> [ranges.add(number) for number in (3, 5, 4, 4, 9)], ranges.pairs()
    ([True, True, True, False, True], [(3, 5), (9, 9)])
    >>> ranges.forget_lowest(1), ranges.pairs()
    (None, [(9, 9)])
    >>> ranges.forget_above(4), ranges.pairs()
    (None, [])
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

    def forget_lowest(self, most: int) -> None:
        """The lowest ranges, until there are no more than that."""
        over = len(self._firsts) - most
        if over > 0:
            del self._firsts[:over]
            del self._lasts[:over]

    def forget_above(self, number: int) -> None:
        """All that is higher."""
        keep = bisect_right(self._firsts, number)
        del self._firsts[keep:]
        del self._lasts[keep:]
        if self._lasts and self._lasts[-1] > number:
            self._lasts[-1] = number

    def pairs(self) -> list[tuple[int, int]]:
        """First and last of each range."""
        return list(zip(self._firsts, self._lasts, strict=True))


class Seen:
    """Places of messages by where they came from, and what the newest of them said.

    Workers write in the order of offsets, and after a failure the newest ones again. So what was seen at a place is the
    same message, unless somebody else wrote there: of the newest, what they said is compared, and those of places that
    workers have not come to are forgotten when one of an earlier place is new. A forged message at a place to come may
    be shown beside the genuine one; it does not hide it. Memory is bounded, and so are the bytes that go with each
    batch: the lowest ranges go.
    """

    def __init__(self, known: Mapping[str, Iterable[Iterable[int]]] | None = None) -> None:
        self._ranges = {key: Ranges(pairs) for key, pairs in (known or {}).items()}
        self._said: OrderedDict[tuple[str, int], tuple[int, ...]] = OrderedDict()

    def has(self, key: str, number: int, said: int) -> bool | None:
        """Whether it was added; ``said`` stands for what it says. None: something was, and nobody remembers what."""
        if (known := self._said.get((key, number))) is not None:
            return said in known
        return None if key in self._ranges and number in self._ranges[key] else False

    def add(self, key: str, number: int, said: int) -> bool:
        """Whether nothing of this place was there."""
        ranges = self._ranges.setdefault(key, Ranges())
        is_new = ranges.add(number)
        ranges.forget_above(number)
        ranges.forget_lowest(max(_EACH, _IN_ALL // len(self._ranges)))
        self._said[key, number] = (*self._said.pop((key, number), ())[-7:], said)
        if len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)
        return is_new

    def to_dict(self) -> dict[str, list[tuple[int, int]]]:
        """Plain values, for JSON."""
        return {key: ranges.pairs() for key, ranges in self._ranges.items()}
