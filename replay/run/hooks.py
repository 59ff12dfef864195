"""Hooks between the batches of a replay: model updates, budgets that people set, and drift.

Budgets are entries of the audit log, so who set one, when and why stays known. A replay looks for them between batches,
and the next batch alerts by the newest. A resumed replay goes on with the newest. What was alerted before stays as it
was.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from replay.cases.audit_log import audit_log_beside
from replay.cases.verdicts import open_beside
from replay.run.learning import ModelUpdates
from replay.run.loop import BeforeEach, Stop, StreamClock
from replay.run.recording import Recording
from replay.run.setup import Setup
from replay.state.batch_output import BatchOutput
from replay.state.schema import stamps
from stream_ccsd.drift.monitor import DriftEvent, DriftMonitor
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import write_whole
from stream_ccsd.learning.learner import listening
from stream_ccsd.transaction import Transaction

log = logging.getLogger(__name__)

BEGUN_BEHIND = "book_at_begin"
"""The note of a state file that says how many lines its book had when it was made."""


def _last_line(state: Path | None) -> int:
    audit_log = None if state is None else open_beside(state)
    if audit_log is None:
        return 0
    with audit_log:
        last = audit_log.last()
    return 0 if last is None else last.sequence


class BudgetChanges:
    """Thresholds in the audit log beside a state file, as far as they are new."""

    def __init__(self, state: Path | None, notes: dict[str, Any]) -> None:
        self._state = state
        self._seen: tuple[tuple[int, int], ...] = ()
        # An audit log may be older than the state file: what was set for an older replay is not for this one.
        self._read = int(notes.setdefault(BEGUN_BEHIND, _last_line(state)))

    def newest(self) -> float | None:
        """The threshold that was set last since this was asked before; None if there is none."""
        if self._state is None:
            return None
        found = stamps(audit_log_beside(self._state))
        if found == self._seen:
            return None
        self._seen = found
        threshold = None
        try:
            audit_log = open_beside(self._state)
            if audit_log is not None:
                with audit_log:
                    for entry in audit_log.lines(after=self._read):
                        self._read = entry.sequence
                        if entry.said.kind == "budget":
                            threshold = float(entry.said.body["to"])
        except StreamCcsdError as error:  # a replay goes on by the threshold it has
            log.warning("budgets that people set cannot be read: %s", error)
        return threshold


class DriftHook:
    """Watches for drift in what is recorded, and in verdicts on alerts as they are learnt from.

    A replay that is resumed shows it everything once more, in the same order, so that it is where it was.
    """

    def __init__(self, setup: Setup) -> None:
        self._path = setup.out / "drift.jsonl"
        model = setup.model if setup.learning is None else listening(setup.model)
        self._watch = DriftMonitor(model) if setup.drift else None
        self.events: list[DriftEvent] = []

    def recall(self, recorded: Iterator[pa.RecordBatch]) -> None:
        """What was recorded before this process, where there are no model updates."""
        if self._watch is not None:
            for scores in recorded:
                self.see(scores)

    def see(self, scores: pa.RecordBatch) -> list[DriftEvent]:
        """What has changed, as of these scores."""
        found = [] if self._watch is None else self._watch.see(scores)
        self.events += found
        return found

    def hear(self, frauds: list[bool]) -> None:
        """Verdicts on alerts since: whether each was fraud."""
        if self._watch is not None:
            self._watch.hear(frauds)

    def write(self) -> list[dict[str, Any]]:
        """``drift.jsonl``; returns what is in it."""
        events = [event.to_dict() for event in self.events]
        if self._watch is not None:
            write_whole(self._path, "".join(json.dumps(event) + "\n" for event in events))
        return events


@dataclass(frozen=True)
class LearningHook:
    """Model updates between the batches of a replay: before each transaction, it is asked whether one is due."""

    lessons: ModelUpdates
    recording: Recording
    drift: DriftHook
    stop: Stop
    seconds: list[float] = field(default_factory=lambda: [0.0])

    @classmethod
    def of(cls, setup: Setup, recording: Recording, drift: DriftHook, stop: Stop) -> LearningHook | None:
        """For this replay, if it learns; of a resumed one, with the updates that were made."""
        if setup.learning is None:
            drift.recall(recording.recorded())
            return None
        updates = ModelUpdates(setup.learning, setup.model, setup.models, setup.state)
        updates.recall(recording.recorded(), drift)
        recording.use(updates.model)
        return cls(updates, recording, drift, stop)

    def __call__(self, transaction: Transaction, flush: Callable[[], None]) -> Engine | None:
        """Another engine, if updates are due before this transaction; no more of them once somebody asked to stop."""
        held = False
        while (moment := self.lessons.due(transaction)) is not None:
            flush()
            begun, before = time.perf_counter(), self.lessons.model
            model = self.lessons.hold(moment)
            if model is not before:
                self.recording.use(model)
            self.drift.hear(self.lessons.judged)
            self.seconds[0] += time.perf_counter() - begun
            held = True
            if self.stop():
                break
        return self.recording.engine if held else None

    def see(self, batch_output: BatchOutput) -> None:
        """What was recorded."""
        begun = time.perf_counter()
        self.lessons.see(batch_output.scores)
        self.seconds[0] += time.perf_counter() - begun

    def summary(self, clock: StreamClock) -> dict[str, Any]:
        """What came of model updates, and what they cost."""
        share = self.seconds[0] / clock.seconds if clock.seconds else None
        return {**self.lessons.summary(), "seconds": self.seconds[0], "share_of_time": share}


@dataclass
class BudgetHook:
    """A budget that somebody set holds from the next transaction on."""

    recording: Recording
    changes: BudgetChanges
    threshold: float | None = None
    _recordings: list[Recording] = field(default_factory=list)
    _held: float | None = None  # what somebody set last

    def __post_init__(self) -> None:
        self.look()  # set before this process began
        self.holds_for(self.recording)
        self._set()

    def holds_for(self, recording: Recording) -> None:
        """From now on; a challenger is compared at the same budget, once somebody set one."""
        self._recordings.append(recording)
        if self._held is not None:
            recording.retune(self._held)

    def _set(self) -> None:
        if self.threshold is not None:
            self._held, self.threshold = self.threshold, None
            for recording in self._recordings:
                recording.retune(self._held)

    def look(self, batch_output: BatchOutput | None = None) -> None:
        """Whether one was set meanwhile: after each batch that was recorded."""
        found = self.changes.newest()
        self.threshold = self.threshold if found is None else found

    def __call__(self, transaction: Transaction, flush: Callable[[], None]) -> Engine | None:
        """Another engine, if one was."""
        if self.threshold is None:
            return None
        flush()
        self._set()
        return self.recording.engine


def all_hooks(learning: LearningHook | None, budget: BudgetHook) -> BeforeEach:
    """Whatever changes the engine between transactions; each change is made to the one that is used then."""
    if learning is None:
        return budget

    def before(transaction: Transaction, flush: Callable[[], None]) -> Engine | None:
        updated = learning(transaction, flush)
        return budget(transaction, flush) or updated

    return before
