"""The loop of a replay: items in, batches through the engine, batch output recorded.

:class:`GarbageControl` has Python look for circles of objects between batches only. By itself Python looks whenever
some hundred objects were made that are still there. All objects of a batch are there until it is recorded, so Python
would look through the same thousands again and again and find nothing. That takes a tenth of a replay's time.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from replay.sources.source import START, Item, Pace, Position, Source
from replay.state.batch_output import BatchOutput
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.result import Result
from stream_ccsd.transaction import Transaction

# Batches between two looks at all objects there are; the young ones are looked at after each.
_ALL_EVERY = 25


class GarbageControl:
    """Control of the garbage collector: inside it, only :meth:`between_batches` looks."""

    def __init__(self) -> None:
        self._was_enabled = False
        self._batches = 0

    def __enter__(self) -> GarbageControl:
        self._was_enabled = gc.isenabled()
        gc.disable()
        return self

    def between_batches(self) -> None:
        """A batch is recorded, and what it was made of is gone."""
        self._batches += 1
        gc.collect(1 if self._batches % _ALL_EVERY else 2)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._was_enabled:
            gc.enable()


BATCH = 8000
"""Transactions that are recorded together: less than a second's. An account that pays twice in it is written once."""


class BrokenSourceError(StreamCcsdError):
    """A source could not be read to its end; everything before that was recorded."""


_LATENCIES = 20_000
_RECENT = 500
_ALONE = 5  # transactions of a batch that go alone
# With a pace, a transaction waits at most this long for others to be recorded with.
_LONGEST_WAIT = 0.05
_SLEEP = 0.2  # so that a request to stop takes effect soon

Recorder = Callable[[BatchOutput], None]
BeforeEach = Callable[[Transaction, Callable[[], None]], Engine | None]


class Stop(Protocol):
    """Whether somebody asked to stop."""

    def __call__(self) -> bool:
        """At the next whole batch."""


@dataclass
class StreamClock:
    """Clock of a replay: where its time went; latencies are of single events, some of each batch."""

    events: int = 0
    seconds: float = 0.0
    scoring: float = 0.0
    latencies: list[float] = field(default_factory=list)
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def latency_ms(self, share: float, recent: bool = False) -> float | None:
        """The latency that so many events stay under: of all, or of the newest."""
        ordered = sorted(self.recent if recent else self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def replay_stream(
    source: Source,
    engine: Engine,
    record: Recorder,
    *,
    after: Position = START,
    pace: Pace | None = None,
    stop: Stop = lambda: False,
    progress: Callable[[StreamClock, BatchOutput], None] | None = None,
    batch: int = BATCH,
    before_each: BeforeEach | None = None,
) -> StreamClock:
    """Replay a source from behind a place to its end, or until asked to stop: always at a whole batch.

    ``record`` is called once a batch, after the engine has written the batch's states. ``before_each`` is asked
    before each transaction, and gives another engine if one is used from then on: it has flushed what came before.
    """
    clock, begun, waiting = StreamClock(), time.perf_counter(), 0.0
    pending: list[Item] = []
    flushed = begun
    pace = pace or Pace()
    waits = pace.waits

    def flush() -> None:
        if not pending:
            return
        batch_output = BatchOutput.of(pending, _scored(engine, pending, clock))
        record(batch_output)
        clock.events += len(pending)
        clock.seconds = time.perf_counter() - begun - waiting
        pending.clear()
        if progress:
            progress(clock, batch_output)
        del batch_output
        garbage_control.between_batches()

    with GarbageControl() as garbage_control:
        items = source.items(after)
        while True:
            try:
                item = next(items, None)
            except StreamCcsdError as error:  # the source broke off: what came before it is whole
                flush()
                raise BrokenSourceError(str(error)) from error
            if item is None:
                break
            delay = pace.delay(item.parsed.time) if waits and isinstance(item.parsed, Transaction) else 0.0
            waited_long = delay > 0 and time.perf_counter() - flushed + delay > _LONGEST_WAIT
            if pending and (waited_long or len(pending) >= batch):
                flush()
                flushed = time.perf_counter()
            while delay > 0 and not stop():
                waited = min(delay, _SLEEP)
                time.sleep(waited)
                waiting, delay = waiting + waited, delay - waited
            if stop():
                break
            if before_each is not None and isinstance(item.parsed, Transaction):
                changed = before_each(item.parsed, flush)
                engine = changed or engine
                if changed is not None and stop():  # asked between two model updates: this one is for the next start
                    break
            pending.append(item)
        flush()
    clock.seconds = time.perf_counter() - begun - waiting
    return clock


def _scored(engine: Engine, items: list[Item], clock: StreamClock) -> list[Result]:
    """Results of the transactions; the first few one by one, for their latency: the bits are the same."""
    transactions = [item.parsed for item in items if isinstance(item.parsed, Transaction)]
    begun = time.perf_counter()
    results: list[Result] = []
    for number, transaction in enumerate(transactions[:_ALONE]):
        alone = time.perf_counter()
        results.append(engine.process(transaction))
        # The very first loads compiled code, and the first of a batch finds caches full of other things.
        took = time.perf_counter() - alone
        if clock.events:
            clock.recent.append(took)
        if clock.events and number and len(clock.latencies) < _LATENCIES:
            clock.latencies.append(took)
    results += engine.process_many(transactions[_ALONE:])
    clock.scoring += time.perf_counter() - begun
    return results
