"""Learning over a stream: every transaction is scored before anything later is known."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from stream_ccsd.engine import Engine
from stream_ccsd.learning.learner import Learner
from stream_ccsd.learning.schedule import Schedule
from stream_ccsd.learning.selection import average_precision
from stream_ccsd.model.model import Model
from stream_ccsd.result import Result
from stream_ccsd.transaction import Transaction
from stream_ccsd.verdict import Verdict

BUDGET = 0.01
"""Alert rate of the simulated population."""


@dataclass
class LearningRun:
    """The outcome: results in the stream's order, and models by the times of their updates."""

    learner: Learner
    results: list[Result] = field(default_factory=list)
    models: dict[float, Model] = field(default_factory=dict)


def learn_over(
    model: Model,
    schedule: Schedule,
    transactions: Sequence[Transaction],
    verdicts: Iterable[Verdict],
    batch: int | None = None,
    review: Callable[[Result], Verdict | None] = lambda result: None,
) -> LearningRun:
    """Learn over a stream. The learner sees results in batches of a size, or all of an update at once.

    Besides the given verdicts there are those of a ``review`` of results.
    """
    run = LearningRun(Learner(model, schedule))
    engine, pending = Engine(run.learner.model), []
    waiting = sorted(verdicts, key=lambda v: v.time)

    def score() -> None:
        results = engine.process_many(pending)
        for first in range(0, len(results), batch or max(1, len(results))):
            run.learner.see(results[first : first + (batch or len(results))])
        run.results += results
        waiting.extend(said for said in map(review, results) if said is not None)
        waiting.sort(key=lambda v: v.time)
        pending.clear()

    for t in transactions:
        while (moment := run.learner.due(t.time)) is not None:
            score()
            known = [v for v in waiting if v.time <= moment]
            del waiting[: len(known)]
            run.learner.hear(known)
            run.models[moment] = run.learner.learn(moment)
            engine = Engine(run.models[moment], engine.states)
        pending.append(t)
    score()
    return run


def precision(results: Iterable[Result], fraud: Iterable[str], after: float, by: str = "score") -> float:
    """Average precision of results later than this."""
    later = [r for r in results if r.transaction.time >= after]
    labels = np.array([r.transaction.id in fraud for r in later])
    return average_precision(np.array([getattr(r, by) for r in later]), labels, np.ones(len(later)))
