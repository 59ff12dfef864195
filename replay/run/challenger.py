"""A challenger beside the champion: a second model that scores the same stream.

It reads the stream by itself, with the fields that its own model declares, and records by itself. So it has its own
place in the stream: whatever was killed in which moment, each goes on from where it was, and the one that is behind
catches up. Nothing that the champion does depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from replay.run.loop import BATCH, Stop
from replay.sources.source import Item, Position, Source
from replay.state.batch_output import BatchOutput
from stream_ccsd.engine import Engine
from stream_ccsd.transaction import Transaction

NAME = "challenger"


class Recording(Protocol):
    """Where a replay is recorded, with the engine that has its states there."""

    @property
    def engine(self) -> Engine:
        """What scores."""

    @property
    def reached(self) -> Position:
        """How far the stream is recorded."""

    def record(self, batch_output: BatchOutput) -> None:
        """A batch, whole or not at all."""


def challenger_beside(state: Path) -> Path:
    """The state file of a challenger; any replay can have one, also later."""
    return state.with_name(f"{state.name}.{NAME}")


def last_position(batch_output: BatchOutput) -> int:
    """Of all records of a batch; the last one may be a dead letter that is not counted as read."""
    return max([batch_output.reached.position, *(letter.position for letter in batch_output.dead_letters[-1:])])


class Challenger:
    """Follows a replay through the same stream, from its own place."""

    def __init__(self, source: Source, recording: Recording, batch: int = BATCH) -> None:
        self._source, self._recording, self._batch = source, recording, batch
        self._last = recording.reached.position
        self._items: Iterator[Item] | None = None
        self._held: Item | None = None  # read, and behind what was asked for

    def follow(self, position: int, stop: Stop = lambda: False) -> None:
        """Score and record all that is not recorded yet, up to a position of the stream."""
        while self._last < position and not stop():
            items = self._next_items(position)
            if not items:
                return
            transactions = [item.parsed for item in items if isinstance(item.parsed, Transaction)]
            self._recording.record(BatchOutput.of(items, self._recording.engine.process_many(transactions)))

    def _next_items(self, position: int) -> list[Item]:
        """A batch of them, never read further than that position needs: a file may still grow behind it."""
        if self._items is None:
            self._items = self._source.items(self._recording.reached)
        items: list[Item] = []
        while len(items) < self._batch and self._last < position:
            item = self._held or next(self._items, None)
            self._held = None
            if item is None:
                self._items = None  # by the next time there may be more
                break
            if item.position > position:  # one of the two leaves out what the other refuses
                self._held = item
                break
            self._last = item.position
            items.append(item)
        return items
