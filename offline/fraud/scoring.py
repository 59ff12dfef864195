"""The engine over a stream, day by day, with model updates: every score is made before anything later is known."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from offline.fraud.days import Days
from offline.fraud.investigators import Investigators
from replay.run.fitting import FirstPart
from stream_ccsd.engine import Engine
from stream_ccsd.files import Progress
from stream_ccsd.learning.learner import Learner
from stream_ccsd.model.model import Model
from stream_ccsd.numerics.arrays import FloatArray, IntArray
from stream_ccsd.result import Result
from stream_ccsd.settings import Settings
from stream_ccsd.verdict import Verdict

# An alert score that no transaction has: alerts are made of the queue here, not by the threshold.
_NEVER = float(np.finfo(float).max)
# Transactions whose results are in memory at once.
_BATCH = 5000


class Scorer(Protocol):
    """Whatever scores a stream day by day. Investigators tell it what is known, and nothing else."""

    def watch(self, day: int, rows: slice) -> None:
        """Transactions of the first part: they happened, and are not scored."""

    def score(self, day: int, rows: slice) -> FloatArray:
        """Scores of a day's transactions, each made before anything later is known."""

    def worth(self, rows: slice) -> FloatArray | None:
        """How much can be learnt from verdicts on them, where the scorer knows."""


def run_days(days: Days, investigators: Investigators, scorer: Scorer, progress: Progress | None = None) -> FloatArray:
    """A scorer over all of a stream, investigators at work after each day: scores by row, NaN in the first part."""
    scores = np.full(len(days.time), np.nan)
    for day, rows in days:
        middle = min(max(days.begin, rows.start), rows.stop)
        if rows.start < middle:
            scorer.watch(day, slice(rows.start, middle))
        if middle < rows.stop:
            streamed = slice(middle, rows.stop)
            scores[streamed] = scorer.score(day, streamed)
            investigators.close(day, streamed, scores[streamed], scorer.worth(streamed))
        if progress:
            progress(rows.stop, len(days.time))
    return scores


@dataclass(frozen=True, eq=False)
class Replayed:
    """Scores that were made before: only the investigators are at work again."""

    scores: FloatArray

    def watch(self, day: int, rows: slice) -> None:
        """Nothing to do."""

    def score(self, day: int, rows: slice) -> FloatArray:
        """As they were."""
        return self.scores[rows]

    def worth(self, rows: slice) -> FloatArray | None:
        """Nobody learns."""
        return None


@dataclass(frozen=True, eq=False)
class Begun:
    """The normal model of the first part, and what accounts are like at its end."""

    model: Model
    states: Mapping[str, bytes]
    facts: Mapping[str, Any]


def begin(days: Days, known: float, settings: Settings, progress: Progress | None = None) -> Begun:
    """Fit on the first part without the accounts whose fraud is known by its end, ``known`` after it happened."""
    rows = days.data.transactions[: days.begin]
    suspect = days.fraud[: days.begin] & (days.time[: days.begin] + known <= days.fitted_until)
    left_out = {rows[i].account for i in np.flatnonzero(suspect).tolist()}
    fitted = [t for t in rows if t.account not in left_out]
    model = FirstPart(days.fitted_until, fitted).checked(days.data.name).fit(settings, progress)
    facts = {
        "until": days.fitted_until,
        "transactions": len(fitted),
        "accounts": len({t.account for t in fitted}),
        "left_out": len(left_out),
        "model": model.version,
    }
    return Begun(model, FirstPart(days.fitted_until, rows).states(model), facts)


@dataclass(eq=False)
class EngineScorer:
    """The engine as it is: no model updates."""

    days: Days
    begun: Begun

    def __post_init__(self) -> None:
        self.evidence = np.full(len(self.days.time), np.nan)
        self.states = dict(self.begun.states)
        self.engine = Engine(self.begun.model, self.states, threshold=_NEVER)

    def watch(self, day: int, rows: slice) -> None:
        """Known already: the states are those at the end of the first part."""

    def score(self, day: int, rows: slice) -> FloatArray:
        """The alert score; the evidence is kept beside."""
        answers = [(r.score, r.evidence) for results in self._results(rows) for r in results]
        scores, self.evidence[rows] = np.array(answers, float).T
        return scores

    def worth(self, rows: slice) -> FloatArray | None:
        """Nobody learns."""
        return None

    def _results(self, rows: slice) -> Iterator[list[Result]]:
        for start in range(rows.start, rows.stop, _BATCH):
            yield self.engine.process_many(self.days.data.transactions[start : min(start + _BATCH, rows.stop)])


@dataclass(eq=False)
class LearningScorer(EngineScorer):
    """The engine with model updates at set moments of the stream's time."""

    desk: Investigators
    learner: Learner
    every: float
    first_part: bool = False
    """Whether the learner also sees the first part, as the first model scores it, and hears its verdicts."""
    said: Counter[str] = field(default_factory=Counter)
    models: list[str] = field(default_factory=list)
    lessons: int = 0
    seconds: float = 0.0
    """Spent on learning: seeing, hearing and lessons."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.engine = Engine(self.learner.model, self.states, threshold=_NEVER)
        self.models.append(self.learner.model.version)
        self._watching = Engine(self.learner.model, {}, threshold=_NEVER) if self.first_part else None

    def watch(self, day: int, rows: slice) -> None:
        """See it, where that is asked for; there is no model to update yet."""
        if self._watching is not None:
            for start in range(rows.start, rows.stop, _BATCH):
                batch = self.days.data.transactions[start : min(start + _BATCH, rows.stop)]
                self._see(self._watching.process_many(batch))

    def score(self, day: int, rows: slice) -> FloatArray:
        """The alert score, by the model of the newest model update before each transaction."""
        turn = np.floor(self.days.time[rows] / self.every)
        edges = [0, *(np.flatnonzero(np.diff(turn)) + 1).tolist(), len(turn)]
        scores = []
        for begin, end in pairwise(edges):
            self._updates_before(float(self.days.time[rows.start + begin]))
            for results in self._results(slice(rows.start + begin, rows.start + end)):
                scores.append(_alert_scores(results))
                self._see(results)
        return np.concatenate(scores)

    def worth(self, rows: slice) -> FloatArray | None:
        """The less is known of a transaction's merchant, the more."""
        code = self.learner.model.codes
        return self.learner.worth(np.array([code(t.merchant) for t in self.days.data.transactions[rows]], np.uint64))

    def _updates_before(self, moment: float) -> None:
        if moment > self.engine.model.latest_time:  # a mistake, which the engine refuses: no years of updates before it
            return
        while (due := self.learner.due(moment)) is not None:
            started = time.perf_counter()
            self.learner.hear(self._verdicts(self.desk.news(due)))
            model = self.learner.learn(due)
            self.lessons += 1
            self.seconds += time.perf_counter() - started
            if model.version != self.models[-1]:
                self.models.append(model.version)
                self.engine = Engine(model, self.states, threshold=_NEVER)

    def _see(self, results: list[Result]) -> None:
        started = time.perf_counter()
        self.learner.see(results)
        self.seconds += time.perf_counter() - started

    def _verdicts(self, rows: IntArray) -> list[Verdict]:
        rows = self.desk.spoken(rows)
        if not self.first_part:
            rows = rows[rows >= self.days.begin]
        verdicts = []
        for row in rows.tolist():
            transaction, looked = self.days.data.transactions[row], bool(self.desk.looked_at[row])
            verdicts.append(
                Verdict(
                    transaction.id,
                    transaction.account,
                    "fraud" if self.desk.told[row] else "normal",
                    who="investigator" if looked else "label",
                    time=float(self.desk.known[row]),
                    source="investigator" if looked else "label",
                )
            )
        self.said.update(verdict.verdict for verdict in verdicts)
        return verdicts


def _alert_scores(results: list[Result]) -> FloatArray:
    return np.array([result.score for result in results], float)
