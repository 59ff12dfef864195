"""Learning from verdicts that come late, one pass over a stream: the engine, and beside it what else could learn.

Two modes. ``all``: every label becomes known a delay after its transaction. ``alerted``: each day investigators look at
the most suspicious cards, within a budget; all other labels take much longer.

The Fraud Detection Handbook's own protocol (Le Borgne et al., chapter 3) has a week to train on, a week whose labels
are not known, and a week to test. It takes compromised cards out of its test days.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from offline import published
from offline.fraud.data import LabelledData
from offline.fraud.days import Days
from offline.fraud.investigators import REST, Investigators, Judged, Mistakes, Queue
from offline.fraud.raw_features import raw_features
from offline.fraud.scoring import EngineScorer, LearningScorer, Replayed, Scorer, begin, run_days
from offline.fraud.supervised import Boosting, Forest, RawScorer
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import Progress, write_whole
from stream_ccsd.learning.learner import Learner
from stream_ccsd.learning.schedule import Schedule
from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.settings import Settings

ORIGIN = "2018-04-01"
"""The moment of time 0 of the Handbook's stream, whose times are seconds."""
TRAINED, TESTED = range(115, 122), range(129, 136)
DELAY = 7


def tested_rows(days: Days) -> AnyArray:
    """Which transactions the Handbook tests on.

    From each test day those of cards are left out that are known to be compromised by then: with fraud in the week of
    training, or on a day whose labels came before this test day or an earlier one.

    Raises
    ------
    StreamCcsdError
        If the stream does not reach that far.
    """
    if days.last < TESTED[-1]:
        raise StreamCcsdError(
            f"{days.data.name} ends with day {days.last}: the Handbook's protocol tests days {TESTED[0]} to "
            f"{TESTED[-1]} of its own stream. For another one, use --protocol verdicts"
        )
    compromised = np.zeros(int(days.account.max()) + 1, bool)
    compromised[days.account[np.isin(days.day, TRAINED) & days.fraud]] = True
    tested = np.zeros(len(days.day), bool)
    for day in TESTED:
        # Labels of a day are known when the delay has passed after its end.
        compromised[days.account[(days.day == day - DELAY - 1) & days.fraud]] = True
        tested |= (days.day == day) & ~compromised[days.account]
    return tested


Mode = Literal["all", "alerted"]
OWN, LABEL_FREE, EVIDENCE = "learnt", "label-free", "label-free evidence"
PEERS: dict[str, type[RawScorer]] = {"arf": Forest, "boosting": Boosting}
# Part of every key that kept scores have: raised whenever a change of the code can change them.
_KEPT_VERSION = 1


@dataclass(frozen=True)
class Plan:
    """When verdicts come, how often the model is updated (all in days), and what stands beside."""

    modes: tuple[Mode, ...] = ("all", "alerted")
    delay: float = 7.0
    label_delay: float = 30.0
    budget: int = 100
    explore: float = 0.0
    """Share of the budget that goes to what would teach most."""
    every: float = 1.0
    first_part: bool = False
    """Whether the learner sees the first part, too."""
    mistakes: Mistakes = field(default_factory=Mistakes)
    days: tuple[int, int] | None = None
    """Also judge these days alone, both included."""
    baselines: bool = True
    without: frozenset[str] = frozenset()
    """Baselines to leave out."""
    seed: int = 0


Start = Callable[[str], Progress]


def run_verdicts(
    data: LabelledData,
    settings: Settings,
    plan: Plan,
    *,
    cache: Path | None = None,
    start: Start | None = None,
) -> list[dict[str, Any]]:
    """A run a mode: figures over the second half of the stream's time and by week, baselines beside."""
    days = Days.of(data, settings)
    stage = _Stage(days, settings, plan, cache, start)
    return [stage.run(mode, days.judged) for mode in plan.modes]


def run_handbook(
    data: LabelledData,
    settings: Settings,
    plan: Plan,
    *,
    cache: Path | None = None,
    start: Start | None = None,
) -> list[dict[str, Any]]:
    """One run: all labels after the delay, judged on the Handbook's test rows, its published table beside."""
    days = Days.of(data, settings)
    days = days.until(TESTED[-1]).judged_since(TESTED[0])
    run = _Stage(days, settings, plan, cache, start).run("all", tested_rows(days))
    return [{**run, "mode": "handbook", "published": published.HANDBOOK}]


@dataclass(frozen=True, eq=False)
class _Stage:
    """A stream, and how it is run through."""

    days: Days
    settings: Settings
    plan: Plan
    cache: Path | None = None
    start: Start | None = None

    def run(self, mode: Mode, rows: AnyArray) -> dict[str, Any]:
        """All scorers in one mode, judged on some rows."""
        days, plan = self.days, self.plan
        delay = plan.delay if mode == "all" else plan.label_delay
        begun = begin(days, delay * days.length, self.settings, self._progress(f"{mode}: fit"))
        desks: dict[str, Investigators] = {}

        def opened(name: str) -> Investigators:
            queue = Queue(plan.budget, plan.explore) if mode == "alerted" else None
            desks[name] = Investigators(days, delay * days.length, queue, plan.mistakes)
            return desks[name]

        every, investigators = plan.every * days.length, opened(OWN)
        learner = Learner(begun.model, Schedule(every, delay * days.length))
        own = LearningScorer(days, begun, investigators, learner, every, plan.first_part)
        scores = {OWN: self._scores(mode, OWN, investigators, own)}
        if plan.baselines:
            plain = EngineScorer(days, begun)
            scores[LABEL_FREE] = self._scores(mode, LABEL_FREE, opened(LABEL_FREE), plain)
            # Without takeover, which joins the alert: single transactions are what is judged here.
            scores[EVIDENCE] = self._scores(mode, EVIDENCE, opened(EVIDENCE), Replayed(plain.evidence))
        for name, kind in PEERS.items():
            if plan.baselines and name not in plan.without:
                scores[name] = self._peer(mode, delay, name, kind, opened(name))
        judged = Judged(days, scores, {name: investigators.worked for name, investigators in desks.items()}, OWN)
        return {
            "mode": mode,
            "delay": delay,
            "every": plan.every,
            **({"budget": plan.budget, "explore": plan.explore, "rest": REST} if mode == "alerted" else {}),
            **judged.over(rows),
            **({} if plan.days is None else {"days": judged.over_days(*plan.days)}),
            "judged": {
                "from": int(days.day[rows].min()),
                "to": int(days.day[rows].max()),
                "transactions": int(rows.sum()),
                "frauds": int(days.fraud[rows].sum()),
            },
            "fitted": dict(begun.facts),
            "learner": {
                "first_part": plan.first_part,
                "lessons": own.lessons,
                "models": len(own.models),
                "last_model": own.models[-1],
                "verdicts": dict(sorted(own.said.items())),
                "seconds": round(own.seconds, 1),
            },
            "mistakes": asdict(plan.mistakes),
            "normals_learnt_by_baselines": {name: f"1 in {kind.normals}" for name, kind in PEERS.items()},
            "weeks": judged.by_week(),
        }

    def _scores(self, mode: Mode, name: str, investigators: Investigators, scorer: Scorer) -> FloatArray:
        return run_days(self.days, investigators, scorer, self._progress(f"{mode}: {name}"))

    def _peer(
        self, mode: Mode, delay: float, name: str, kind: type[RawScorer], investigators: Investigators
    ) -> FloatArray:
        """From the cache, where it was run before: it takes minutes, and is not what changes."""
        place = None
        if self.cache is not None:
            described = [_KEPT_VERSION, self.days.data.fingerprint, self.settings.to_dict(), name, mode, delay]
            described += [self.plan.budget if mode == "alerted" else None, self.plan.seed, asdict(self.plan.mistakes)]
            described += [len(self.days.time)]
            key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:24]
            place = self.cache / f"fraud-{key}.npy"
            if place.exists():
                return self._scores(mode, name, investigators, Replayed(np.load(place)))
        scores = self._scores(mode, name, investigators, kind(self.days, investigators, self._raw, self.plan.seed))
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            content = io.BytesIO()
            np.save(content, scores, allow_pickle=False)
            write_whole(place, content.getvalue())
        return scores

    @cached_property
    def _raw(self) -> FloatArray:
        return raw_features(self.days, self.settings).to_numpy()

    def _progress(self, name: str) -> Progress | None:
        return None if self.start is None else self.start(name)
