"""How a replay goes, for whoever looks while it runs: notes in its state file, written with each batch."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replay.judging import LATEST
from replay.run import Clock
from stream_ccsd.lessons.drift import DriftEvent


@dataclass
class Bulletin:
    """What there is to say; ``notes`` is the dict that a state file keeps."""

    notes: dict[str, Any]
    source: str
    model: Path | None
    events: list[DriftEvent] = field(default_factory=list)
    latest: float = math.inf
    """The latest time that the model takes."""

    def __post_init__(self) -> None:
        model = None if self.model is None else str(self.model.absolute())
        latest = self.latest if math.isfinite(self.latest) else None
        self.notes |= {"source": self.source, "model": model, "finished": False, "latency_ms": None}
        self.notes |= {LATEST: latest}

    def tell(self, clock: Clock, threshold: float) -> None:
        """After a batch; it is written with the next, so that a batch stays one write."""
        if clock.recent:
            self.notes["latency_ms"] = {"p50": clock.latency_ms(0.5, True), "p99": clock.latency_ms(0.99, True)}
        self.notes |= {
            "updated": time.time(),
            "threshold": threshold,
            "drift": [{"time": event.time, "text": event.text} for event in self.events],
        }

    def end(self, complete: bool) -> None:
        """After the last batch."""
        self.notes |= {"finished": complete, "updated": time.time()}
