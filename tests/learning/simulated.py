"""A stream with lessons: every transaction is scored before anything later is known."""

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
"""Of the alerts of the simulated town."""


@dataclass
class Term:
    """What came of it: results in the stream's order, and the models by the moments of their lessons."""

    learner: Learner
    results: list[Result] = field(default_factory=list)
    models: dict[float, Model] = field(default_factory=dict)


def hold(
    model: Model,
    schedule: Schedule,
    transactions: Sequence[Transaction],
    verdicts: Iterable[Verdict],
    batch: int | None = None,
    review: Callable[[Result], Verdict | None] = lambda result: None,
) -> Term:
    """Lessons over a stream; results are shown to the learner in batches of a size, or all of a lesson at once.

    Besides the verdicts there are those of a ``review`` of what was scored.
    """
    term = Term(Learner(model, schedule))
    engine, pending = Engine(term.learner.model), []
    waiting = sorted(verdicts, key=lambda v: v.time)

    def score() -> None:
        results = engine.process_many(pending)
        for first in range(0, len(results), batch or max(1, len(results))):
            term.learner.see(results[first : first + (batch or len(results))])
        term.results += results
        waiting.extend(said for said in map(review, results) if said is not None)
        waiting.sort(key=lambda v: v.time)
        pending.clear()

    for t in transactions:
        while (moment := term.learner.due(t.time)) is not None:
            score()
            known = [v for v in waiting if v.time <= moment]
            del waiting[: len(known)]
            term.learner.hear(known)
            term.models[moment] = term.learner.learn(moment)
            engine = Engine(term.models[moment], engine.states)
        pending.append(t)
    score()
    return term


def precision(results: Iterable[Result], fraud: Iterable[str], after: float, by: str = "score") -> float:
    """Average precision of what came later than this."""
    later = [r for r in results if r.transaction.time >= after]
    labels = np.array([r.transaction.id in fraud for r in later])
    return average_precision(np.array([getattr(r, by) for r in later]), labels, np.ones(len(later)))
