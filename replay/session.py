"""A replay from start to end: where it begins, where it is recorded, and what is written when it stops."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from replay.database import DamageError, check_free
from replay.harvest import Harvest, alert_line
from replay.lessons import Learning, Lessons, forget_lessons, models_beside
from replay.outputs import OutputFiles
from replay.pace import Pace
from replay.report import write_report
from replay.run import BATCH, BrokenSourceError, Clock, Stop, replay_stream
from replay.shadow import Shadow, last_position
from replay.source import START, Place, Source
from replay.state import StateFile
from replay.store import SqliteRecords
from replay.tally import Tally
from stream_ccsd.alert.policy import build_policy
from stream_ccsd.alert.reasons import Alert
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.lessons.drift import DriftEvent, Watch
from stream_ccsd.lessons.learner import listening
from stream_ccsd.library.model import Model
from stream_ccsd.status import Status
from stream_ccsd.stores import DeadLetterCount
from stream_ccsd.transaction import Transaction
from stream_ccsd.writing import write_whole

Progress = Callable[[Clock, Harvest], None]


@dataclass(frozen=True)
class Session:
    """One replay. With a ``state`` file it can be stopped in any way and resumed; without, it is all in memory."""

    source: Source
    model: Model
    out: Path
    state: Path | None = None
    resume: bool = False
    threshold: float | None = None
    states: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Of accounts that have a past, where the replay begins; a resumed one has them in its file."""
    challenger: Session | None = None
    """A second model on the same stream, with its own states, records and threshold; this one knows nothing of it.

    Resumed where it has a state file, else begun anew: it catches up.
    """
    drift: bool = True
    """Whether to say so when the stream changes."""
    learning: Learning | None = None
    """How it learns from verdicts, if it does."""

    def run(
        self,
        *,
        pace: Pace | None = None,
        stop: Stop = lambda: False,
        on_alert: Callable[[Alert], None] = lambda alert: None,
        on_drift: Callable[[DriftEvent], None] = lambda event: None,
        progress: Progress | None = None,
        batch: int = BATCH,
    ) -> dict[str, Any]:
        """Replay to the end of the source, or until asked to stop; write the outputs; return the summary."""
        broken: BrokenSourceError | None = None
        clock = Clock()

        def watch(now: Clock, harvest: Harvest) -> None:
            nonlocal clock
            clock = now
            for _, alert in harvest.alerts:
                on_alert(alert)
            for event in drift.see(harvest.scores):
                on_drift(event)
            if progress:
                progress(now, harvest)

        rival = self._rival()
        self._forget_older()
        recording = _recording(self)
        beside: _Recording | None = None
        shadow: Shadow | None = None

        def record(harvest: Harvest) -> None:
            recording.record(harvest)
            if lessons is not None:
                lessons.see(harvest)
            if shadow is not None:
                shadow.follow(last_position(harvest))

        try:
            drift = _Drift(self, recording.recorded())
            lessons = _Teaching.of(self, recording)
            if rival is not None:
                beside = _recording(rival)
                shadow = Shadow(rival.source, beside, batch)
                shadow.follow(recording.reached.position, stop)
            replay_stream(
                self.source,
                recording.engine,
                record,
                after=recording.reached,
                pace=pace,
                stop=stop,
                progress=watch,
                batch=batch,
                lessons=lessons,
            )
        except BrokenSourceError as error:
            broken = error
        except BaseException:
            recording.abandon()
            if beside is not None:
                beside.abandon()
            raise
        complete = not stop() and broken is None
        try:
            summary = self._finished(recording, clock, complete, drift, lessons)
        except BaseException:
            if beside is not None:
                beside.abandon()
            raise
        if rival is not None and beside is not None:
            summary["challenger"] = rival._finished(beside, Clock(), complete)
        if broken is not None:
            raise broken
        return summary

    @property
    def models(self) -> Path:
        """Where the models are that lessons make."""
        return self.out / "replay.models" if self.state is None else models_beside(self.state)

    def _forget_older(self) -> None:
        """Before there is a state file: one that is resumed finds its own lessons only."""
        if self.learning is None or self.resume:
            return
        if self.state is not None:
            check_free(self.state)
        forget_lessons(self.models, self.state)

    def _rival(self) -> Session | None:
        """The challenger, resumed if it was begun; a new one whose place is taken is refused before there is work."""
        if self.challenger is None or self.challenger.state is None:
            return self.challenger
        if not self.resume:
            check_free(self.challenger.state)
        return replace(self.challenger, resume=self.resume and self.challenger.state.exists())

    def _finished(
        self,
        recording: _Recording,
        clock: Clock,
        complete: bool,
        drift: _Drift | None = None,
        lessons: _Teaching | None = None,
    ) -> dict[str, Any]:
        """The outputs of what was recorded, and its summary."""
        tally = recording.finish()
        summary = self._summary(tally, clock, recording, complete)
        summary["drift"] = [] if drift is None else drift.write()
        summary["lessons"] = None if lessons is None else lessons.lessons.summary()
        write_report(self.out / "report.html", self.source.name, summary, tally)
        return summary

    def _summary(self, tally: Tally, clock: Clock, recording: _Recording, complete: bool) -> dict[str, Any]:
        return {
            "source": self.source.name,
            "model": self.model.version,
            "library_windows": self.model.facts["library_windows"],
            "threshold": recording.engine.threshold,
            "asked_rate": math.exp(-recording.engine.threshold),
            "calendar": self.model.calendar.to_dict(),
            "complete": complete,
            "position": recording.reached.position,
            "events": clock.events,
            "events_per_s": clock.events / clock.seconds if clock.seconds else None,
            "scoring_share": clock.scoring / clock.seconds if clock.seconds else None,
            "latency_p50_ms": clock.latency_ms(0.5),
            "latency_p99_ms": clock.latency_ms(0.99),
            **tally.to_dict(),
            "outputs": str(self.out),
            "state": None if self.state is None else str(self.state),
        }


@dataclass(frozen=True)
class _Teaching:
    """Lessons between the batches of a replay: before each transaction, it is asked whether one is held."""

    lessons: Lessons
    recording: _Recording

    @classmethod
    def of(cls, session: Session, recording: _Recording) -> _Teaching | None:
        """Lessons of this replay, if there are any; of a resumed one, as far as they were held."""
        if session.learning is None:
            return None
        lessons = Lessons(session.learning, session.model, session.models, session.state)
        lessons.recall(recording.recorded())
        recording.use(lessons.model)
        return cls(lessons, recording)

    def __call__(self, transaction: Transaction, flush: Callable[[], None]) -> Engine | None:
        """Another engine, if a lesson comes before this transaction."""
        held = False
        while (moment := self.lessons.due(transaction)) is not None:
            flush()
            self.recording.use(self.lessons.hold(moment))
            held = True
        return self.recording.engine if held else None

    def see(self, harvest: Harvest) -> None:
        """What was recorded."""
        self.lessons.see(harvest.scores)


class _Drift:
    """Watches what is recorded. What was recorded before a replay was resumed it sees again, and is where it was."""

    def __init__(self, session: Session, recorded: Iterator[pa.RecordBatch]) -> None:
        self._path = session.out / "drift.jsonl"
        model = session.model if session.learning is None else listening(session.model)
        self._watch = Watch(model) if session.drift else None
        self._events: list[DriftEvent] = []
        if self._watch is not None:
            for scores in recorded:
                self.see(scores)

    def see(self, scores: pa.RecordBatch) -> list[DriftEvent]:
        found = [] if self._watch is None else self._watch.see(scores)
        self._events += found
        return found

    def write(self) -> list[dict[str, Any]]:
        """``drift.jsonl``; returns what is in it."""
        events = [event.to_dict() for event in self._events]
        if self._watch is not None:
            write_whole(self._path, "".join(json.dumps(event) + "\n" for event in events))
        return events


class _InMemory:
    """States in memory, outputs written as they come."""

    def __init__(self, session: Session) -> None:
        self._states = dict(session.states)
        self.engine = Engine(session.model, self._states, session.threshold)
        self.reached = START
        self._tally = Tally(session.model.calendar, self.engine.threshold)
        self._files = OutputFiles(session.out, session.model.version)

    def use(self, model: Model) -> None:
        """Go on with another model."""
        self.engine = Engine(model, self._states, self.engine.threshold)

    def recorded(self) -> Iterator[pa.RecordBatch]:
        return iter(())

    def record(self, harvest: Harvest) -> None:
        self._files.add(harvest)
        self._tally.add_scores(harvest.scores)
        self._tally.add_alerts(json.loads(alert_line(*alert)) for alert in harvest.alerts)
        self._tally.add_dead_letters(DeadLetterCount(d.kind.value, d.field, 1) for d in harvest.dead_letters)
        self.reached = harvest.reached

    def finish(self) -> Tally:
        self._files.close()
        return self._tally

    def abandon(self) -> None:
        self._files.close()


class _Durable:
    """States and outputs in a state file; the output files are made of it when the replay stops."""

    def __init__(self, session: Session) -> None:
        assert session.state is not None
        self._session = session
        threshold = session.model.threshold if session.threshold is None else session.threshold
        facts = {
            "source": session.source.fingerprint(),
            "model": session.model.version,
            "threshold": threshold,
            "policy": build_policy(session.model.settings, threshold)._asdict(),
            "calendar": session.model.calendar.to_dict(),
            "learning": None if session.learning is None else session.learning.to_dict(),
        }
        if session.resume:
            self._file = self._resumed(session, facts)
        else:
            self._file = StateFile.create(session.state, facts, session.states)
        self.engine = Engine(session.model, self._file.states, threshold)

    def _resumed(self, session: Session, facts: dict[str, Any]) -> StateFile:
        assert session.state is not None
        file = StateFile.open(session.state)
        same = {name: file.facts.get(name) == value for name, value in facts.items()}
        same["source"] = session.source.matches(file.facts["source"])
        other = next((name for name, agrees in same.items() if not agrees), None)
        if other is not None:
            file.close()
            detail = "" if other == "source" else f" ({file.facts.get(other)!r}, now {facts[other]!r})"
            raise StreamCcsdError(
                f"{session.state} was begun with another {other}{detail}: resume with the same file, options and "
                "model, or start anew with another --state"
            )
        return file

    def use(self, model: Model) -> None:
        """Go on with another model."""
        self.engine = Engine(model, self._file.states, self.engine.threshold)

    def recorded(self) -> Iterator[pa.RecordBatch]:
        return self._file.records.score_batches()

    def record(self, harvest: Harvest) -> None:
        damaged = next((d for d in harvest.dead_letters if d.kind is Status.DAMAGED), None)
        if damaged is not None:  # a good transaction must not become a dead letter because the file is damaged
            raise DamageError(self._file.path, damaged.reason)
        self._file.record(harvest)

    @property
    def reached(self) -> Place:
        return self._file.reached

    def finish(self) -> Tally:
        tally = Tally(self._session.model.calendar, self.engine.threshold)
        try:
            export(self._file.records, self._session.out, tally)
            self._file.check_in_place()
        finally:
            self._file.close()
        return tally

    def abandon(self) -> None:
        self._file.close()


_Recording = _InMemory | _Durable


def _recording(session: Session) -> _Recording:
    return _Durable(session) if session.state is not None else _InMemory(session)


def export(records: SqliteRecords, out: Path, tally: Tally | None = None) -> None:
    """The output files of a state, the same to the byte however often the replay was stopped."""
    tally = tally or Tally()
    with OutputFiles(out, records.facts["model"], live=False) as files:
        for scores in records.score_batches():
            files.add_scores(scores)
            tally.add_scores(scores)
        for line in records.alert_lines():
            files.add_lines([line], [])
            tally.add_alerts([json.loads(line)])
        for line in records.dead_letter_lines():
            files.add_lines([], [line])
    tally.add_dead_letters(records.dead_letter_counts())
