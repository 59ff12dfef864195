"""Counts along the stream's time, in bins that can be made wider without counting again."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from stream_ccsd.calendar import Calendar
from stream_ccsd.numeric import AnyArray
from stream_ccsd.status import Status

COUNTED = ("transactions", "late", "alerts", "labelled")
"""What is counted in each bin, in this order."""


@dataclass
class Timeline:
    """Counts by bin: of the transactions whose time divided by ``width`` lies from that whole number to the next."""

    calendar: Calendar = field(default_factory=Calendar)
    width: int = 1
    bins: dict[int, AnyArray] = field(default_factory=dict)

    def add(self, scores: pa.RecordBatch) -> None:
        """Count a batch of scores."""
        kinds = (
            np.ones(scores.num_rows, bool),
            np.array([status == Status.LATE for status in scores.column("status").to_pylist()], bool),
            scores.column("alert").to_numpy(zero_copy_only=False),
            scores.column("label").is_valid().to_numpy(zero_copy_only=False),
        )
        places = np.floor(scores.column("time").to_numpy() / self.width).astype(np.int64)
        bins, owner = np.unique(places, return_inverse=True)
        counts = np.stack([np.bincount(owner[kind], minlength=len(bins)) for kind in kinds], axis=1)
        for place, row in zip(bins.tolist(), counts, strict=True):
            self.put(place, row)

    def put(self, place: int, counts: AnyArray) -> None:
        """Add to the counts of one bin."""
        known = self.bins.get(place)
        self.bins[place] = counts if known is None else known + counts

    def widen(self) -> None:
        """The next larger bins: hours, days, weeks as the calendar knows them, or twice as much."""
        wider = next((width for width in self.calendar.widths if width > self.width), 2 * self.width)
        self._merge(wider // self.width)

    def at_least(self, width: float) -> Timeline:
        """The same counts in bins of this width, or as they are if they are wider."""
        merged = Timeline(self.calendar, self.width, dict(self.bins))
        merged._merge(max(1, int(np.ceil(width / self.width))))
        return merged

    def of(self, kind: str) -> dict[int, int]:
        """Counts of one kind by bin."""
        column = COUNTED.index(kind)
        return {place: int(counts[column]) for place, counts in self.bins.items()}

    def _merge(self, factor: int) -> None:
        narrow, self.bins = self.bins, {}
        for place, counts in narrow.items():
            self.put(place // factor, counts)
        self.width *= factor
