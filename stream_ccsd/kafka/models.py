"""A new model put in the old one's place is picked up while the worker works."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.metrics import Metrics
from stream_ccsd.library.model import Model

log = logging.getLogger(__name__)


def unfit_for(current: Model, new: Model) -> str | None:
    """Why account states of one model cannot go on with another; None if they can."""
    old, now = current.settings, new.settings
    if (old.window, old.local_history) != (now.window, now.local_history):
        return (
            f"its windows are {now.window} and {now.local_history} transactions long, those of the account states "
            f"{old.window} and {old.local_history}"
        )
    return "it is standardised over whole histories" if now.standardise != "causal" else None


class ModelWatch:
    """Looks at the model directory now and then; tells of each new model once."""

    def __init__(self, folder: Path, model: Model, use: Callable[[Model], None], metrics: Metrics) -> None:
        self._folder, self._model, self._use, self._metrics = folder, model, use, metrics
        self._refused: str | None = None
        self._told()

    async def watch(self, interval: float) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(interval)
            await self.look()

    async def look(self) -> bool:
        """Load the model if it is another one; whether it was, and can be used."""
        version = _version(self._folder)
        if version in (None, self._model.version, self._refused):
            return False
        try:
            # Memory-mapped: workers on one machine share its pages.
            new = await asyncio.to_thread(Model.load, self._folder)
            unfit = unfit_for(self._model, new)
        except StreamCcsdError as error:
            if _version(self._folder) != version:
                return False  # it is being written this very moment
            unfit = str(error)
        if unfit:
            self._refused = version
            self._metrics.model_failures.inc()
            log.error("the new model is not used", extra={"model": version, "reason": unfit})
            return False
        log.info("new model", extra={"model": new.version, "before": self._model.version})
        self._model = new
        self._use(new)
        self._told()
        return True

    def _told(self) -> None:
        self._metrics.model.info({"version": self._model.version})
        self._metrics.model_loaded.set(time.time())


def _version(folder: Path) -> str | None:
    """What model.json says; None while there is none to read."""
    try:
        found = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        return str(found["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
