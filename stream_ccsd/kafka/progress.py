"""How far partitions were read, and what a broker had deleted before that: retention does not wait for readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Place = tuple[str, int]
"""Topic and partition."""


class Progress:
    """The next offset of each partition, and stretches that were passed over.

    Such a stretch may hold ends of Kafka's transactions, which are no messages; what of it lies before the first offset
    that the broker still has is lost.

    >>> progress = Progress({("scores", 0): 5})
    >>> for offset in (5, 6, 9, 20):
    ...     progress.read(("scores", 0), offset)
    >>> progress.gaps(), progress.lost({("scores", 0): 18})
    ({('scores', 0)}, {('scores', 0): 12})
    >>> progress.gaps()
    set()
    """

    def __init__(self, positions: Mapping[Place, int]) -> None:
        self._next = dict(positions)  # those that are not there begin with whatever comes
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

    def gaps(self) -> set[Place]:
        """Partitions of which something was passed over."""
        return {place for place, _, _ in self._passed}

    def lost(self, beginnings: Mapping[Place, int]) -> dict[Place, int]:
        """How many messages were deleted in front of us, by the first offsets there are; each is told once."""
        found: dict[Place, int] = {}
        for place, first, end in self._passed:
            count = min(end, beginnings.get(place, 0)) - first
            if count > 0:
                found[place] = found.get(place, 0) + count
        self._passed.clear()
        return found


def by_topic(lost: Mapping[Place, int], topics: Iterable[str]) -> dict[str, int]:
    """The same by topic."""
    counts = {topic: sum(count for (name, _), count in lost.items() if name == topic) for topic in topics}
    return {topic: count for topic, count in counts.items() if count}
