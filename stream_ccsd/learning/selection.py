"""Selection among the plain sum, weights, and weights with trees, by accounts that were left out."""

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

# So many normal transactions that were scored with fraud rates are enough; the others are no longer used.
_ENOUGH = 1000
# Of so many accounts one is left out, to evaluate on.
_PARTS = 4
SUM, WEIGHTED, TREES = "sum", "weights", "weights and trees"


@dataclass(frozen=True, eq=False)
class Selection:
    """The chosen weights and trees, and their evidence on kept transactions that were left out."""

    kind: str
    weights: FloatArray
    trees: Trees
    judged: LearningSample  # accounts that were left out
    evidence: FloatArray  # of their transactions, as they were scored
    today: FloatArray  # the same, as they would be scored now
    speaking: AnyArray  # which of them calibrate how rare evidence is
    likelihoods: dict[str, float]


def select_weights(supervised: Supervised, kept: LearningSample, buffer: LabelBuffer) -> Selection:
    """Weights and trees from three of four accounts, evaluated on the fourth.

    They are not fitted again on all of them: that would cost as much again, and the evidence of accounts that were
    learnt from cannot be calibrated.
    """
    aside = kept.rows.account % np.uint64(_PARTS) == 0
    training, judged = kept.take(~aside), kept.take(aside)
    now, speaking = inputs_today(judged, buffer)
    count = len(supervised.weights)
    terms, fraud, weight = training.rows.inputs[:, :count].astype(float), training.fraud, training.weight
    weights, shift = fit_weights(terms, fraud, weight)
    trees = grow_trees(training.rows.inputs, weighted_sums(terms, weights) + shift, fraud, weight)
    roots = float(trees.value[trees.roots].sum())
    one = np.ones(count)
    candidates = {
        SUM: (one, NO_TREES, match_rate(terms.sum(axis=1), fraud, weight)),
        WEIGHTED: (weights, NO_TREES, shift),
        TREES: (weights, trees, shift + roots),
    }
    scored = {name: _evidence(supervised, judged.rows.inputs, w, t) for name, (w, t, _) in candidates.items()}
    likelihoods = {
        name: likelihood(scored[name] + candidates[name][2], judged.fraud, judged.weight) for name in candidates
    }
    kind = max(likelihoods, key=lambda name: likelihoods[name])
    chosen, grown, _ = candidates[kind]
    today = _evidence(supervised, now, chosen, grown)
    return Selection(kind, chosen, grown, judged, scored[kind], today, speaking, likelihoods)


def _evidence(supervised: Supervised, inputs: AnyArray, weights: FloatArray, trees: Trees) -> FloatArray:
    weighed = read_only(supervised._replace(weights=weights, **trees._asdict()))
    return evidence_by(weighed, inputs.astype(float), int(supervised.term_of.max()) + 1)


def inputs_today(kept: LearningSample, buffer: LabelBuffer) -> tuple[FloatArray, AnyArray]:
    """Inputs of kept transactions as they would be now, and which of them calibrate how rare evidence is.

    Transactions that were scored with fraud rates keep their inputs, and once there are enough of them, they alone are
    used. Until then, the others get the fraud rates of now, each without itself: a place where nobody has paid before
    must look as new as it would be.
    """
    inputs: FloatArray = kept.rows.inputs.astype(float)
    since = np.inf if buffer.known_since is None else buffer.known_since
    prospective = kept.sampled & (kept.rows.time >= since)
    if prospective.sum() >= _ENOUGH:
        return inputs, prospective
    others = np.flatnonzero(kept.rows.time < since)
    rows, own = kept.rows.take(others), buffer.left_of(kept.entered[others], kept.stale[others])
    everyone, first = base_rate(buffer.base), buffer.first_record
    chosen = buffer.chosen
    for i, (record, codes) in enumerate(zip(buffer.records, record_codes(rows), strict=True)):
        rates = record.rates_without(codes, kept.fraud[others], own, everyone)
        place = first + len(buffer.records) + i * len(HALF_LIVES)
        inputs[np.ix_(others, np.arange(place, place + len(HALF_LIVES)))] = rates
        inputs[others, first + i] = rates[:, chosen[i]]
    return inputs, kept.sampled


def evidence_today(supervised: Supervised, kept: LearningSample, buffer: LabelBuffer) -> tuple[FloatArray, AnyArray]:
    """Evidence of kept transactions, as they would be scored now, and which of them calibrate how rare it is."""
    inputs, speaking = inputs_today(kept, buffer)
    return evidence_by(read_only(supervised), inputs, int(supervised.term_of.max()) + 1), speaking


def measured(selection: Selection) -> dict[str, Any]:
    """The measures of a model, on accounts that were left out."""
    judged = selection.judged
    total = float(judged.weight.sum())
    return {
        "weighed_by": selection.kind,
        "likelihood": {name: round(value / total, 6) for name, value in selection.likelihoods.items()},
        "average_precision": round(average_precision(selection.evidence, judged.fraud, judged.weight), 4),
    }


def average_precision(score: FloatArray, fraud: AnyArray, weight: FloatArray) -> float:
    """Average precision of a ranking of rows with weights."""
    order = np.argsort(-score, kind="stable")
    hits = (weight * fraud)[order]
    precision = np.cumsum(hits) / np.cumsum(weight[order])
    return float((precision * hits).sum() / max(hits.sum(), 1e-300))
