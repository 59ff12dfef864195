"""A replay from start to end: where it begins, where it is recorded, and what is written when it stops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from replay.between import Budget, Drift, Teaching, both
from replay.budget_changes import BudgetChanges
from replay.bulletin import Bulletin
from replay.database import check_free
from replay.harvest import Harvest
from replay.lessons import forget_lessons
from replay.pace import Pace
from replay.recording import Recording, recording_of
from replay.report import write_report
from replay.run import BATCH, BrokenSourceError, Clock, Stop, replay_stream
from replay.setup import Setup
from replay.shadow import Shadow, last_position
from replay.source import Place
from replay.tally import Tally
from stream_ccsd.alert.reasons import Alert
from stream_ccsd.lessons.drift import DriftEvent

Progress = Callable[[Clock, Harvest], None]


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
        clock = Clock()

        def watch(now: Clock, harvest: Harvest) -> None:
            nonlocal clock
            clock = now
            _tell(on_alert, (alert for _, alert in harvest.alerts))
            _tell(on_drift, drift.see(harvest.scores))
            bulletin.tell(now, recording.engine.threshold)
            if progress:
                progress(now, harvest)

        rival = self._rival()
        self._forget_older()
        recording = recording_of(self)
        beside: Recording | None = None
        followers: list[Callable[[Harvest], None]] = [recording.record]

        def record(harvest: Harvest) -> None:
            for follow in followers:
                follow(harvest)

        try:
            drift = Drift(self)
            budget = Budget(recording, BudgetChanges(self.state, recording.notes))
            lessons = Teaching.of(self, recording, drift, stop)
            followers += [budget.look, *([] if lessons is None else [lessons.see])]
            bulletin = Bulletin(
                recording.notes, self.source.name, self.model_place, drift.events, self.model.latest_time
            )
            if rival is not None:
                beside = recording_of(rival)
                budget.holds_for(beside)
                followers.append(_following(Shadow(rival.source, beside, batch), recording.reached, stop))
            replay_stream(
                self.source,
                recording.engine,
                record,
                after=recording.reached,
                pace=pace,
                stop=stop,
                progress=watch,
                batch=batch,
                before_each=both(lessons, budget),
            )
        except BrokenSourceError as error:
            broken = error
        except BaseException:
            recording.abandon()
            if beside is not None:
                beside.abandon()
            raise
        complete = not stop() and broken is None
        bulletin.end(complete)
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
        recording: Recording,
        clock: Clock,
        complete: bool,
        drift: Drift | None = None,
        lessons: Teaching | None = None,
    ) -> dict[str, Any]:
        """The outputs of what was recorded, and its summary."""
        tally = recording.finish()
        summary = self._summary(tally, clock, recording, complete)
        summary["drift"] = [] if drift is None else drift.write()
        summary["lessons"] = None if lessons is None else lessons.summary(clock)
        write_report(self.out / "report.html", self.source.name, summary, tally)
        return summary

    def _summary(self, tally: Tally, clock: Clock, recording: Recording, complete: bool) -> dict[str, Any]:
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


def _following(shadow: Shadow, reached: Place, stop: Stop) -> Callable[[Harvest], None]:
    """A challenger that has come as far as the champion, and goes on with it."""
    shadow.follow(reached.position, stop)
    return lambda harvest: shadow.follow(last_position(harvest))


def _tell(listener: Callable[[Any], None], news: Iterable[Any]) -> None:
    for item in news:
        listener(item)
