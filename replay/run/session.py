"""A replay from start to end: where it begins, where it is recorded, and what is written when it stops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from replay.run.challenger import Challenger, last_position
from replay.run.hooks import BudgetChanges, BudgetHook, DriftHook, LearningHook, all_hooks
from replay.run.learning import forget_updates
from replay.run.loop import BATCH, BrokenSourceError, Stop, StreamClock, replay_stream
from replay.run.recording import Recording, RunStatus, recording_of
from replay.run.report import write_report
from replay.run.setup import Setup
from replay.sources.source import Pace, Position
from replay.state.batch_output import BatchOutput
from replay.state.schema import check_free
from replay.state.statistics import RunStatistics
from stream_ccsd.alerts.alert import Alert
from stream_ccsd.drift.monitor import DriftEvent

Progress = Callable[[StreamClock, BatchOutput], None]


@dataclass(frozen=True)
class Session(Setup):
    """One replay, to be run."""

    challenger: Session | None = None
    """A second model on the same stream, with its own states, records and threshold; this one knows nothing of it.

    Resumed where it has a state file, else begun anew: it catches up.
    """

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
        clock = StreamClock()

        def watch(now: StreamClock, batch_output: BatchOutput) -> None:
            nonlocal clock
            clock = now
            _tell(on_alert, (alert for _, alert in batch_output.alerts))
            _tell(on_drift, drift.see(batch_output.scores))
            run_status.tell(now, recording.engine.threshold)
            if progress:
                progress(now, batch_output)

        challenger = self._resumed_challenger()
        self._forget_older()
        recording = recording_of(self)
        beside: Recording | None = None
        followers: list[Callable[[BatchOutput], None]] = [recording.record]

        def record(batch_output: BatchOutput) -> None:
            for follow in followers:
                follow(batch_output)

        try:
            drift = DriftHook(self)
            budget = BudgetHook(recording, BudgetChanges(self.state, recording.notes))
            updates = LearningHook.of(self, recording, drift, stop)
            followers += [budget.look, *([] if updates is None else [updates.see])]
            run_status = RunStatus(
                recording.notes, self.source.name, self.model_place, drift.events, self.model.latest_time
            )
            if challenger is not None:
                beside = recording_of(challenger)
                budget.holds_for(beside)
                followers.append(_following(Challenger(challenger.source, beside, batch), recording.reached, stop))
            replay_stream(
                self.source,
                recording.engine,
                record,
                after=recording.reached,
                pace=pace,
                stop=stop,
                progress=watch,
                batch=batch,
                before_each=all_hooks(updates, budget),
            )
        except BrokenSourceError as error:
            broken = error
        except BaseException:
            recording.abandon()
            if beside is not None:
                beside.abandon()
            raise
        complete = not stop() and broken is None
        run_status.end(complete)
        try:
            summary = self._finished(recording, clock, complete, drift, updates)
        except BaseException:
            if beside is not None:
                beside.abandon()
            raise
        if challenger is not None and beside is not None:
            summary["challenger"] = challenger._finished(beside, StreamClock(), complete)
        if broken is not None:
            raise broken
        return summary

    def _forget_older(self) -> None:
        """Before there is a state file: one that is resumed finds its own model updates only."""
        if self.learning is None or self.resume:
            return
        if self.state is not None:
            check_free(self.state)
        forget_updates(self.models, self.state)

    def _resumed_challenger(self) -> Session | None:
        """The challenger, resumed if it was begun; a new one whose place is taken is refused before there is work."""
        if self.challenger is None or self.challenger.state is None:
            return self.challenger
        if not self.resume:
            check_free(self.challenger.state)
        return replace(self.challenger, resume=self.resume and self.challenger.state.exists())

    def _finished(
        self,
        recording: Recording,
        clock: StreamClock,
        complete: bool,
        drift: DriftHook | None = None,
        lessons: LearningHook | None = None,
    ) -> dict[str, Any]:
        """The outputs of what was recorded, and its summary."""
        statistics = recording.finish()
        summary = self._summary(statistics, clock, recording, complete)
        summary["drift"] = [] if drift is None else drift.write()
        summary["lessons"] = None if lessons is None else lessons.summary(clock)
        write_report(self.out / "report.html", self.source.name, summary, statistics)
        return summary

    def _summary(
        self, statistics: RunStatistics, clock: StreamClock, recording: Recording, complete: bool
    ) -> dict[str, Any]:
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
            **statistics.to_dict(),
            "outputs": str(self.out),
            "state": None if self.state is None else str(self.state),
        }


def _following(challenger: Challenger, reached: Position, stop: Stop) -> Callable[[BatchOutput], None]:
    """A challenger that has come as far as the champion, and goes on with it."""
    challenger.follow(reached.position, stop)
    return lambda batch_output: challenger.follow(last_position(batch_output))


def _tell(listener: Callable[[Any], None], news: Iterable[Any]) -> None:
    for item in news:
        listener(item)
