"""Which of the plain sum, weights, and weights with trees predicts best, on accounts that it was not learnt from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stream_ccsd.evidence.supervised import HALF_LIVES, Supervised, evidence_by
from stream_ccsd.learning.fraud_rates import base_rate
from stream_ccsd.learning.label_buffer import LabelBuffer, LearningSample, record_codes
from stream_ccsd.learning.logistic import fit_weights, likelihood, match_rate
from stream_ccsd.learning.trees import NO_TREES, Trees, grow_trees
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, read_only
from stream_ccsd.numerics.sums import weighted_sums

# Normal transactions that were scored when there were records, from which on the others are not asked any more.
_ENOUGH = 1000
# Of so many accounts one is left out, to judge by.
_PARTS = 4
SUM, WEIGHTED, TREES = "sum", "weights", "weights and trees"


@dataclass(frozen=True, eq=False)
class Selection:
    """How terms are weighed, and what it was chosen for: how it does on kept transactions that were left out."""

    kind: str
    weights: FloatArray
    trees: Trees
    judged: LearningSample  # accounts that nothing was learnt from
    evidence: FloatArray  # of their transactions, as they were scored
    today: FloatArray  # the same, as they would be scored now
    speaking: AnyArray  # which of them say how rare evidence is
    likelihoods: dict[str, float]


def select_weights(learnt: Supervised, kept: LearningSample, book: LabelBuffer) -> Selection:
    """Weights and trees from three of four accounts, judged on the fourth.

    They are not learnt again from all of them: that would cost as much as this, and nobody could say how rare the
    evidence of what was learnt from is.
    """
    aside = kept.rows.account % np.uint64(_PARTS) == 0
    taught, judged = kept.take(~aside), kept.take(aside)
    now, speaking = inputs_today(judged, book)
    count = len(learnt.weights)
    terms, fraud, weight = taught.rows.inputs[:, :count].astype(float), taught.fraud, taught.weight
    weights, shift = fit_weights(terms, fraud, weight)
    trees = grow_trees(taught.rows.inputs, weighted_sums(terms, weights) + shift, fraud, weight)
    roots = float(trees.value[trees.roots].sum())
    one = np.ones(count)
    candidates = {
        SUM: (one, NO_TREES, match_rate(terms.sum(axis=1), fraud, weight)),
        WEIGHTED: (weights, NO_TREES, shift),
        TREES: (weights, trees, shift + roots),
    }
    scored = {name: _evidence(learnt, judged.rows.inputs, w, t) for name, (w, t, _) in candidates.items()}
    likelihoods = {
        name: likelihood(scored[name] + candidates[name][2], judged.fraud, judged.weight) for name in candidates
    }
    kind = max(likelihoods, key=lambda name: likelihoods[name])
    chosen, grown, _ = candidates[kind]
    today = _evidence(learnt, now, chosen, grown)
    return Selection(kind, chosen, grown, judged, scored[kind], today, speaking, likelihoods)


def _evidence(learnt: Supervised, inputs: AnyArray, weights: FloatArray, trees: Trees) -> FloatArray:
    weighed = read_only(learnt._replace(weights=weights, **trees._asdict()))
    return evidence_by(weighed, inputs.astype(float), int(learnt.term_of.max()) + 1)


def inputs_today(kept: LearningSample, book: LabelBuffer) -> tuple[FloatArray, AnyArray]:
    """Inputs of kept transactions as they would be now, and which of them say how rare evidence is.

    Those of transactions that were scored when there were records are what they were, and once there are enough of
    them, they alone speak. Until then, the others have the records of now, each without itself: a place that nobody has
    been to before must look as new as it would.
    """
    inputs: FloatArray = kept.rows.inputs.astype(float)
    since = np.inf if book.known_since is None else book.known_since
    prospective = kept.sampled & (kept.rows.time >= since)
    if prospective.sum() >= _ENOUGH:
        return inputs, prospective
    others = np.flatnonzero(kept.rows.time < since)
    rows, own = kept.rows.take(others), book.left_of(kept.entered[others], kept.stale[others])
    everyone, first = base_rate(book.base), book.first_record
    chosen = book.chosen
    for i, (record, codes) in enumerate(zip(book.records, record_codes(rows), strict=True)):
        rates = record.rates_without(codes, kept.fraud[others], own, everyone)
        place = first + len(book.records) + i * len(HALF_LIVES)
        inputs[np.ix_(others, np.arange(place, place + len(HALF_LIVES)))] = rates
        inputs[others, first + i] = rates[:, chosen[i]]
    return inputs, kept.sampled


def evidence_today(learnt: Supervised, kept: LearningSample, book: LabelBuffer) -> tuple[FloatArray, AnyArray]:
    """Evidence of kept transactions, as they would be scored now, and which of them say how rare it is."""
    inputs, speaking = inputs_today(kept, book)
    return evidence_by(read_only(learnt), inputs, int(learnt.term_of.max()) + 1), speaking


def measured(weighing: Selection) -> dict[str, Any]:
    """What a model was measured at, on accounts that were left out."""
    judged = weighing.judged
    total = float(judged.weight.sum())
    return {
        "weighed_by": weighing.kind,
        "likelihood": {name: round(value / total, 6) for name, value in weighing.likelihoods.items()},
        "average_precision": round(average_precision(weighing.evidence, judged.fraud, judged.weight), 4),
    }


def average_precision(score: FloatArray, fraud: AnyArray, weight: FloatArray) -> float:
    """Of a ranking of rows that stand for several each."""
    order = np.argsort(-score, kind="stable")
    hits = (weight * fraud)[order]
    precision = np.cumsum(hits) / np.cumsum(weight[order])
    return float((precision * hits).sum() / max(hits.sum(), 1e-300))
