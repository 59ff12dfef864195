"""A worker says so when the stream changes: in its log, and in its metrics."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from stream_ccsd.kafka.metrics import Metrics
from stream_ccsd.lessons.drift import Watch
from stream_ccsd.library.model import Model
from stream_ccsd.result import Result

log = logging.getLogger(__name__)

# Results that are looked at together: batches may be small, and each look has its price.
_TOGETHER = 256


class DriftWatch:
    """A watch a partition: within one, transactions come in order. They begin anew when partitions change hands."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._watches: dict[int, Watch] = {}
        self._waiting: dict[int, list[Result]] = {}
        self._broken = False

    def forget(self) -> None:
        """Other partitions, or others' transactions in between: nothing that was seen can be compared with."""
        self._watches.clear()
        self._waiting.clear()

    def see(self, partition: int, model: Model, results: Sequence[Result]) -> None:
        """What was scored; a model that follows another is watched on with the names of the first."""
        if self._broken:
            return
        waiting = self._waiting.setdefault(partition, [])
        waiting += results
        if len(waiting) < _TOGETHER:
            return
        self._waiting[partition] = []
        try:
            watch = self._watches.get(partition)
            if watch is None:
                watch = self._watches[partition] = Watch(model)
            events = watch.see_results(waiting)
        except Exception:  # whatever it is, transactions go on
            self._broken = True
            log.exception("changes of the stream are not watched any more")
            return
        for event in events:
            self._metrics.drift.labels(event.what).inc()
            log.warning("the stream has changed", extra={"partition": partition, **event.to_dict()})
