"""The learner: (model, evidence as it was scored, verdicts) -> the next model.

A lesson changes what verdicts have taught (``Model.learnt``) and how rare evidence then is among normal transactions;
laws of normal transactions stay. Records and the law of fraud are counted anew with every lesson, weights and trees
less often. Which of the plain sum, the weighted sum, and the weighted sum with trees is used is what predicts best on
accounts that were left out: with few verdicts that is the plain sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stream_ccsd.lessons.adapt import HALF_LIFE, adapted, share_of
from stream_ccsd.lessons.notebook import Kept, Notebook, record_codes
from stream_ccsd.lessons.records import base_rate
from stream_ccsd.lessons.rows import Rows
from stream_ccsd.lessons.schedule import Schedule
from stream_ccsd.lessons.trees import NO_TREES, Trees, grow_trees
from stream_ccsd.lessons.weights import fit_weights, likelihood, match_rate
from stream_ccsd.library.learnt import HALF_LIVES, Learnt, nothing_learnt, record_fields, term_names
from stream_ccsd.library.model import Model
from stream_ccsd.library.tails import fit_tail, rarities
from stream_ccsd.numeric import AnyArray, FloatArray, read_only
from stream_ccsd.result import Result
from stream_ccsd.score.weighing import evidence_by
from stream_ccsd.scores import EVIDENCE, TAKEOVER
from stream_ccsd.verdict import Verdict

# Days between two lessons that learn weights, unless there are half as many frauds again.
_WEIGHED_EVERY, _GROWN = 7.0, 1.5
# Fewer frauds, or other transactions, say nothing about weights.
_FEWEST_FRAUDS, _FEWEST_NORMALS = 30, 300
# What takeover may have of the alert budget, as parts of what it had at the fit.
_TAKEOVER_PARTS = (1.0, 0.25, 0.05, 0.0)
SUM, WEIGHTED, TREES = "sum", "weights", "weights and trees"


@dataclass(frozen=True, eq=False)
class Weighing:
    """How terms are weighed, and what it was chosen for."""

    kind: str
    weights: FloatArray
    trees: Trees
    left_out: FloatArray  # evidence of the kept transactions, each by what others taught
    likelihoods: dict[str, float]


def listening(model: Model) -> Model:
    """The model, one that can learn: its engine writes down what lessons are made of."""
    if model.learnt is not None:
        return model
    return replace(model, learnt=read_only(nothing_learnt(model.settings.declared, listening=True)))


class Learner:
    """Holds the newest model. Transactions are shown as they are scored, verdicts told as they arrive."""

    def __init__(self, model: Model, schedule: Schedule, adapt: bool = False) -> None:
        self.model = self.first = listening(model)
        self.schedule = schedule
        self.notebook = Notebook(model.laws, model.settings.declared, schedule)
        self._adapt = adapt
        self._next: float | None = None
        self._weighed_every = max(1, round(_WEIGHED_EVERY / self.notebook.days))  # lessons
        self._weighed_at = 0  # frauds that weights were last learnt from

    def see(self, results: Iterable[Result]) -> None:
        """Transactions that were scored, in the stream's order."""
        self.notebook.see(Rows.of(results, self.model))

    def see_rows(self, rows: Rows) -> None:
        """The same, from records."""
        self.notebook.see(rows)

    def hear(self, verdicts: Iterable[Verdict]) -> None:
        """Verdicts, in the order of their arrival."""
        self.notebook.hear(verdicts)

    def due(self, time: float) -> float | None:
        """The moment of a lesson that comes before a transaction of this time; None if there is none."""
        if self._next is None:
            self._next = self.schedule.first_after(time)
        return self._next if time >= self._next else None

    def remember(self, moment: float, model: Model | None = None) -> None:
        """A lesson that was held before: what was known is entered. Without its model, take up a later one."""
        self._advance(moment)
        if model is not None:
            self.take_up(model)

    def take_up(self, model: Model) -> None:
        """Go on with the model of a lesson that was remembered."""
        self.model = model
        self._weighed_at = int(model.facts.get("lessons", {}).get("weighed_at", 0))

    def learn(self, moment: float) -> Model:
        """Hold the lesson of this moment."""
        self._advance(moment)
        book = self.notebook
        if self._adapt and book.silent is not None:
            self.model = self._adapted(book.silent)
        if book.kept is not None and book.kept.fraud.any():
            self.model = self._next_model(moment, book.kept)
        return self.model

    def _adapted(self, silent: Rows) -> Model:
        """Laws moved towards what nobody objected to; rates as well, until verdicts say what they are."""
        moved = adapted(self.model, silent.take(~silent.alerted), share_of(self.notebook.days, HALF_LIFE))
        return moved if "lessons" not in self.model.facts else replace(moved, tails=self.model.tails)

    def _advance(self, moment: float) -> None:
        self.notebook.advance(moment)
        self._next = moment + self.schedule.every

    def _next_model(self, moment: float, kept: Kept) -> Model:
        before = self.model.learnt
        assert before is not None
        learnt = self._counted(before)
        frauds = int(kept.fraud.sum())
        enough = frauds >= _FEWEST_FRAUDS and len(kept.fraud) - frauds >= _FEWEST_NORMALS
        weighing = None
        if enough and (self.notebook.lessons % self._weighed_every == 0 or frauds >= _GROWN * max(self._weighed_at, 1)):
            weighing = weigh_terms(learnt, kept)
            self._weighed_at = frauds
            learnt = learnt._replace(weights=weighing.weights, **weighing.trees._asdict())
        if weighing is None and len(before.roots):
            tail, facts = self.model.tails["evidence"], dict(self.model.facts["lessons"])
        else:
            evidence = self._evidence(learnt, kept, weighing)
            facts = {"weighed_by": SUM} if weighing is None else _measured(weighing, kept)
            tail = fit_tail(evidence[kept.sampled], self.model.settings.tail_share, _whose(kept))
        model = replace(self.model, learnt=read_only(learnt), tails={**self.model.tails, "evidence": tail})
        if weighing is not None:
            model = replace(model, takeover_share=self._takeover_share(model, kept, weighing))
        return replace(model, facts={**model.facts, "lessons": {**facts, **self._account(moment, kept, learnt)}})

    def _counted(self, before: Learnt) -> Learnt:
        """Records and the law of fraud as they are counted by now."""
        book = self.notebook
        everyone = base_rate(book.base)
        laws = [law.ratio() for law in book.law]
        numbers = [ratio for ratio, _ in laws[4:]]
        return before._replace(
            start=np.cumsum([0, *(len(r.codes) for r in book.records)]),
            codes=np.concatenate([r.codes for r in book.records]),
            rates=np.concatenate([r.rates(everyone) for r in book.records]),
            chosen=_chosen(book.choices),
            amount=laws[0][0],
            hour=laws[1][0],
            weekday=laws[2][0],
            gap=laws[3][0],
            number=np.array(numbers).reshape(before.number.shape),
            frauds=np.array([count for _, count in laws]),
        )

    def _evidence(self, learnt: Learnt, kept: Kept, weighing: Weighing | None) -> FloatArray:
        """Of kept transactions, by records as they are now: before, there may have been none."""
        if weighing is not None and weighing.kind != SUM:
            return weighing.left_out
        inputs = kept.rows.inputs.astype(float)
        first = len(learnt.weights)
        for i, codes in enumerate(record_codes(kept.rows)):
            own = slice(learnt.start[i], learnt.start[i + 1])
            places = np.searchsorted(learnt.codes[own], codes)
            known = np.append(learnt.codes[own], 0)[places] == codes
            rates = np.where(
                known[:, None], np.vstack([learnt.rates[own], learnt.unknown[i]])[places], learnt.unknown[i]
            )
            inputs[:, first + i * len(HALF_LIVES) : first + (i + 1) * len(HALF_LIVES)] = rates
            inputs[:, first - len(learnt.start) + 1 + i] = rates[:, learnt.chosen[i]]
        return evidence_by(learnt, inputs, self._terms)

    @property
    def _terms(self) -> int:
        return len(term_names(self.model.settings.declared))

    def _takeover_share(self, model: Model, kept: Kept, weighing: Weighing) -> float:
        """Of the alert budget: the part with which alert scores rank known frauds best: trees know takeovers, too."""
        evidence = rarities(model.tails["evidence"], weighing.left_out)
        takeover = rarities(model.tails["takeover"], kept.rows.takeover)
        best, most = 0.0, -1.0
        for part in _TAKEOVER_PARTS:
            share = part * self.first.takeover_share
            offsets = replace(model, takeover_share=share).budget_offsets()
            score = np.maximum(evidence - offsets[EVIDENCE], takeover - offsets[TAKEOVER])
            precision = average_precision(score, kept.fraud, kept.weight)
            if precision > most:
                best, most = share, precision
        return best

    def _account(self, moment: float, kept: Kept, learnt: Learnt) -> dict[str, Any]:
        """What a model was made from."""
        book, fields = self.notebook, record_fields(self.model.settings.declared)
        return {
            "moment": moment,
            "number": book.lessons,
            "frauds": int(kept.fraud.sum()),
            "others": int(len(kept.fraud) - kept.fraud.sum()),
            "waiting": book.waiting,
            "too_late": book.too_late,
            "disputed": book.disputed,
            "weighed_at": self._weighed_at,
            "half_lives": {f: HALF_LIVES[c] for f, c in zip(fields, learnt.chosen.tolist(), strict=True)},
            "before": self.model.version,
        }


def weigh_terms(learnt: Learnt, kept: Kept) -> Weighing:
    """Weights and trees, each judged on accounts that it was not learnt from: halves take turns."""
    half = (kept.rows.account & np.uint64(1)).astype(bool)
    odds = {SUM: np.empty(len(half)), WEIGHTED: np.empty(len(half)), TREES: np.empty(len(half))}
    evidence = {name: np.empty(len(half)) for name in odds}
    fraud, weight = kept.fraud, kept.weight
    for side in (half, ~half):
        for name, (score, shift) in _taught(learnt, kept, side).items():
            evidence[name][~side], odds[name][~side] = score, score + shift
    likelihoods = {name: likelihood(o, fraud, weight) for name, o in odds.items()}
    kind = max(likelihoods, key=lambda name: likelihoods[name])
    weights, trees = np.ones(len(learnt.weights)), NO_TREES
    if kind != SUM:
        terms = kept.rows.inputs[:, : len(weights)].astype(float)
        weights, shift = fit_weights(terms, fraud, weight)
        if kind == TREES:
            trees = grow_trees(kept.rows.inputs, terms @ weights + shift, fraud, weight)
    return Weighing(kind, weights, trees, evidence[kind], likelihoods)


def _taught(learnt: Learnt, kept: Kept, side: AnyArray) -> dict[str, tuple[FloatArray, float]]:
    """Evidence of the other side by what this side teaches, and what makes log odds of it."""
    count = len(learnt.weights)
    terms = kept.rows.inputs[:, :count].astype(float)
    fraud, weight, plain = kept.fraud[side], kept.weight[side], terms.sum(axis=1)
    weights, shift = fit_weights(terms[side], fraud, weight)
    weighted = terms @ weights
    trees = grow_trees(kept.rows.inputs[side], weighted[side] + shift, fraud, weight)
    grown = learnt._replace(weights=weights, **trees._asdict())
    corrected = evidence_by(grown, kept.rows.inputs[~side].astype(float), int(learnt.term_of.max()) + 1)
    return {
        SUM: (plain[~side], match_rate(plain[side], fraud, weight)),
        WEIGHTED: (weighted[~side], shift),
        TREES: (corrected, shift + float(trees.value[trees.roots].sum())),
    }


def _measured(weighing: Weighing, kept: Kept) -> dict[str, Any]:
    """What a model was measured at, on accounts that were left out."""
    total = float(kept.weight.sum())
    return {
        "weighed_by": weighing.kind,
        "likelihood": {name: round(value / total, 6) for name, value in weighing.likelihoods.items()},
        "average_precision": round(average_precision(weighing.left_out, kept.fraud, kept.weight), 4),
    }


def average_precision(score: FloatArray, fraud: AnyArray, weight: FloatArray) -> float:
    """Of a ranking of rows that stand for several each."""
    order = np.argsort(-score, kind="stable")
    hits = (weight * fraud)[order]
    precision = np.cumsum(hits) / np.cumsum(weight[order])
    return float((precision * hits).sum() / max(hits.sum(), 1e-300))


def _chosen(choices: FloatArray) -> AnyArray:
    """Half-lives that predicted best; the second until anything was predicted."""
    best = np.argmax(choices, axis=1)
    return np.where(np.ptp(choices, axis=1) > 0, best, 1)


def _whose(kept: Kept) -> AnyArray:
    return kept.rows.account[kept.sampled].view(np.int64)
