"""Watches beside a worker: for a new model in the model directory, and for drift of the stream.

A worker picks up a new model, or another version that becomes current, while it works. It reports drift in its log and
in its metrics.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from stream_ccsd.drift.monitor import DriftMonitor
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.ops.metrics import Metrics
from stream_ccsd.model.model import Model
from stream_ccsd.model.registry import model_place
from stream_ccsd.result import Result

log = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, ...], ...]


def unfit_for(current: Model, new: Model) -> str | None:
    """Why account states of one model cannot go on with another; None if they can."""
    old, now = current.settings, new.settings
    if current.state_sizes != new.state_sizes:
        return f"it is for {new.state_sizes}, the account states are for {current.state_sizes}"
    if old.fields != now.fields:
        return f"it has the fields {', '.join(now.fields)}, the account states those of {', '.join(old.fields)}"
    return "it is standardised over whole histories" if now.standardise != "causal" else None


class ModelWatch:
    """Looks at the model directory, or the current one of a folder of versions; tells of each new model once."""

    def __init__(
        self,
        folder: Path,
        model: Model,
        use: Callable[[Model], None],
        metrics: Metrics,
        prepare: Callable[[Model], Model] = lambda model: model,
    ) -> None:
        self._prepare = prepare
        self._folder, self._model, self._use, self._metrics = folder, model, use, metrics
        self._seen: _Stamp | str | None = None
        self._told(model.version)

    async def watch(self, interval: float) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(interval)
            await self.look()

    async def look(self) -> bool:
        """Load the model if it is another one; whether it was, and can be used."""
        # Off the event loop: a model's description alone is long enough to hold up transactions.
        new = await asyncio.to_thread(self._find)
        if new is None:
            return False
        if isinstance(new, str):
            self._metrics.model_failures.inc()
            log.error("the new model is not used", extra={"reason": new})
            return False
        log.info("new model", extra={"model": new.version, "before": self._model.version})
        self._model = new
        self._use(new)
        self._told(new.version)
        return True

    def _find(self) -> Model | str | None:
        """Another model than the one in use, or why it cannot be used; None if there is none, or none yet."""
        try:
            place = model_place(self._folder)
        except StreamCcsdError as error:  # a folder of versions that does not say which is current: reported once
            told, self._seen = self._seen == str(error), str(error)
            return None if told else str(error)
        seen = _stamp(place)
        if seen is None or seen == self._seen:
            return None
        try:
            new = self._prepare(Model.load(place))
            unfit = unfit_for(self._model, new)
        except Exception as error:  # whatever is wrong with it, the one in use goes on
            if _stamp(place) != seen:
                return None  # it is being written this very moment
            new, unfit = self._model, str(error) if isinstance(error, StreamCcsdError) else repr(error)
        self._seen = seen
        if unfit:
            return unfit
        return None if new.version == self._model.version else new

    def _told(self, version: str) -> None:
        self._metrics.model.info({"version": version})
        self._metrics.model_loaded.set(time.time())


def _stamp(folder: Path) -> _Stamp | None:
    """What changes when another model is put in place, as a whole or file by file; None while there is none."""
    try:
        files = [file.stat() for file in sorted(folder.iterdir())]
    except OSError:
        return None
    return tuple((f.st_ino, f.st_mtime_ns, f.st_size) for f in files) or None


log = logging.getLogger(__name__)

# Results that are looked at together: batches may be small, and each look has its price.
_TOGETHER = 256


class DriftWatch:
    """A drift monitor for each partition, since only within one transactions come in order.

    All begin anew when partitions change hands.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._watches: dict[int, DriftMonitor] = {}
        self._waiting: dict[int, list[Result]] = {}
        self._broken = False

    def forget(self) -> None:
        """Begin all monitors anew: other transactions came in between, so there is nothing to compare with."""
        self._watches.clear()
        self._waiting.clear()

    def see(self, partition: int, model: Model, results: Sequence[Result]) -> None:
        """Take in what was scored. Where one model follows another, the monitor keeps the names of the first."""
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
                watch = self._watches[partition] = DriftMonitor(model)
            events = watch.see_results(waiting)
        except Exception:  # whatever it is, transactions go on
            self._broken = True
            log.exception("changes of the stream are not watched any more")
            return
        for event in events:
            self._metrics.drift.labels(event.what).inc()
            log.warning("the stream has changed", extra={"partition": partition, **event.to_dict()})
