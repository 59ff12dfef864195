"""How far partitions were read, and what a broker had deleted before that: retention does not wait for readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

Place = tuple[str, int]
"""Topic and partition."""


class Progress:
    """The next offset of each partition, and stretches that were passed over.

    Such a stretch may hold ends of Kafka's transactions, which are no messages; what of it lies before the first offset
    that the broker still has is lost. ``missed`` counts what of a stretch is not known already: all of it, unless
    reading began before what is known.

    >>> progress = Progress({("scores", 0): 5})
    >>> for offset in (5, 6, 9, 20):
    ...     progress.read(("scores", 0), offset)
    >>> progress.gaps(), progress.lost({("scores", 0): 18})
    ({('scores', 0)}, {('scores', 0): 10})
    >>> progress.gaps()
    set()
    """

    def __init__(
        self,
        positions: Mapping[Place, int],
        missed: Callable[[Place, int, int], int] = lambda place, first, end: end - first,
    ) -> None:
        self._next = dict(positions)  # those that are not there begin with whatever comes
        self._missed = missed
        self._passed: list[tuple[Place, int, int]] = []

    def read(self, place: Place, offset: int) -> None:
        """A message."""
        self.reach(place, offset)
        self._next[place] = max(self._next[place], offset + 1)

    def reach(self, place: Place, position: int) -> None:
        """Whatever lies before this was read, or is not there."""
        before = self._next.setdefault(place, position)
        if position > before:
            self._passed.append((place, before, position))
            self._next[place] = position

    def is_past(self, ends: Mapping[Place, int]) -> set[str]:
        """Topics that end before what was read of them: made anew, or their brokers have lost data."""
        return {place[0] for place, end in ends.items() if self._next.get(place, 0) > end}

    def gaps(self) -> set[Place]:
        """Partitions of which something was passed over."""
        return {place for place, _, _ in self._passed}

    def lost(self, beginnings: Mapping[Place, int]) -> dict[Place, int]:
        """How many messages were deleted in front of us, by the first offsets there are; each is told once."""
        found: dict[Place, int] = {}
        for place, first, end in self._passed:
            end = min(end, beginnings.get(place, 0))
            if end > first and (count := self._missed(place, first, end)):
                found[place] = found.get(place, 0) + count
        self._passed.clear()
        return found


def by_topic(lost: Mapping[Place, int], topics: Iterable[str]) -> dict[str, int]:
    """The same by topic."""
    counts = {topic: sum(count for (name, _), count in lost.items() if name == topic) for topic in topics}
    return {topic: count for topic, count in counts.items() if count}
