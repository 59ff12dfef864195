"""Where a replay is recorded: in memory and plain files, or in a state file that can be resumed.

:class:`RunStatus` says how a replay goes, for whoever looks while it runs: notes in its state file, written with each
batch.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from replay.cases.judgement import LATEST
from replay.run.loop import StreamClock
from replay.run.output import OutputFiles
from replay.run.setup import Setup
from replay.sources.source import START, Position
from replay.state.batch_output import BatchOutput, alert_line
from replay.state.file import StateFile
from replay.state.records import SqliteRecords
from replay.state.schema import DamageError
from replay.state.statistics import RunStatistics
from stream_ccsd.alerts.policy import build_policy
from stream_ccsd.drift.monitor import DriftEvent
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.model.model import Model
from stream_ccsd.stores import DeadLetterCount
from stream_ccsd.transaction import Status


@dataclass
class RunStatus:
    """The status of a run; ``notes`` is the dict that a state file keeps."""

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

    def tell(self, clock: StreamClock, threshold: float) -> None:
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


class InMemory:
    """States in memory, outputs written as they come."""

    def __init__(self, setup: Setup) -> None:
        self._setup, self._states = setup, dict(setup.states)
        self.notes: dict[str, Any] = {}
        self.engine = Engine(setup.model, self._states, setup.threshold, setup.explore)
        self.reached = START
        self._statistics = RunStatistics(setup.model.calendar, self.engine.threshold)
        self._files = OutputFiles(setup.out, setup.model.version)

    def use(self, model: Model) -> None:
        """Go on with another model."""
        self.engine = Engine(model, self._states, self.engine.threshold, self._setup.explore)

    def retune(self, threshold: float) -> None:
        """Alert by another threshold."""
        self.engine = Engine(self.engine.model, self._states, threshold, self._setup.explore)

    def recorded(self) -> Iterator[pa.RecordBatch]:
        """Nothing: what is in memory ends with the process."""
        return iter(())

    def record(self, batch_output: BatchOutput) -> None:
        """A batch, whole or not at all."""
        self._files.add(batch_output)
        self._statistics.add_scores(batch_output.scores)
        self._statistics.add_alerts(json.loads(alert_line(*alert)) for alert in batch_output.alerts)
        self._statistics.add_dead_letters(DeadLetterCount(d.kind.value, d.field, 1) for d in batch_output.dead_letters)
        self.reached = batch_output.reached

    def finish(self) -> RunStatistics:
        """Write the output files; returns what is in them."""
        self._files.close()
        return self._statistics

    def abandon(self) -> None:
        """Leave it as it is."""
        self._files.close()


class Durable:
    """States and outputs in a state file; the output files are made of it when the replay stops."""

    def __init__(self, setup: Setup) -> None:
        assert setup.state is not None
        self._setup = setup
        threshold = setup.model.threshold if setup.threshold is None else setup.threshold
        facts = {
            "source": setup.source.fingerprint(),
            "model": setup.model.version,
            "threshold": threshold,
            "policy": build_policy(setup.model.settings, threshold, setup.explore)._asdict(),
            "calendar": setup.model.calendar.to_dict(),
            "learning": None if setup.learning is None else setup.learning.to_dict(),
        }
        if setup.resume:
            self._file = self._resumed(setup, facts)
        else:
            self._file = StateFile.create(setup.state, facts, setup.states)
        self._begun = self._file.position
        self.engine = Engine(setup.model, self._file.states, threshold, setup.explore)

    def _resumed(self, setup: Setup, facts: dict[str, Any]) -> StateFile:
        assert setup.state is not None
        file = StateFile.open(setup.state)
        same = {name: file.facts.get(name) == value for name, value in facts.items()}
        same["source"] = setup.source.matches(file.facts["source"])
        other = next((name for name, agrees in same.items() if not agrees), None)
        if other is not None:
            file.close()
            detail = "" if other == "source" else f" ({file.facts.get(other)!r}, now {facts[other]!r})"
            raise StreamCcsdError(
                f"{setup.state} was begun with another {other}{detail}: resume with the same file, options and "
                "model, or start anew with another --state"
            )
        return file

    def use(self, model: Model) -> None:
        """Go on with another model."""
        self.engine = Engine(model, self._file.states, self.engine.threshold, self._setup.explore)

    def retune(self, threshold: float) -> None:
        """Alert by another threshold."""
        self.engine = Engine(self.engine.model, self._file.states, threshold, self._setup.explore)

    @property
    def notes(self) -> dict[str, Any]:
        """How it goes, for whoever looks."""
        return self._file.notes

    def recorded(self) -> Iterator[pa.RecordBatch]:
        """All scores that are in the file, in order."""
        return self._file.records.score_batches()

    def record(self, batch_output: BatchOutput) -> None:
        """A batch, whole or not at all."""
        damaged = next((d for d in batch_output.dead_letters if d.kind is Status.DAMAGED), None)
        if damaged is not None:  # a good transaction must not become a dead letter because the file is damaged
            raise DamageError(self._file.path, damaged.reason)
        self._file.record(batch_output)

    @property
    def reached(self) -> Position:
        """How far the stream is recorded."""
        return self._file.reached

    def finish(self) -> RunStatistics:
        """Write the output files; returns what is in them."""
        statistics = RunStatistics(self._setup.model.calendar, self.engine.threshold)
        try:
            if self._file.position > self._begun or self._file.notes.get("finished"):
                self._file.write_notes()  # else nothing happened, and a file that could not be resumed stays as it was
            export(self._file.records, self._setup.out, statistics)
            self._file.check_in_place()
        finally:
            self._file.close()
        return statistics

    def abandon(self) -> None:
        """Leave it as it is."""
        self._file.close()


Recording = InMemory | Durable


def recording_of(setup: Setup) -> Recording:
    """Where this replay is recorded."""
    return Durable(setup) if setup.state is not None else InMemory(setup)


def export(records: SqliteRecords, out: Path, statistics: RunStatistics | None = None) -> None:
    """The output files of a state, the same to the byte however often the replay was stopped."""
    statistics = statistics or RunStatistics()
    with OutputFiles(out, records.facts["model"], live=False) as files:
        for scores in records.score_batches():
            files.add_scores(scores)
            statistics.add_scores(scores)
        for line in records.alert_lines():
            files.add_lines([line], [])
            statistics.add_alerts([json.loads(line)])
        for line in records.dead_letter_lines():
            files.add_lines([], [line])
    statistics.add_dead_letters(records.dead_letter_counts())
