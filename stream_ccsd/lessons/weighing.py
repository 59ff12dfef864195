"""Which of the plain sum, weights, and weights with trees predicts best, on accounts that it was not learnt from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stream_ccsd.lessons.notebook import Kept, record_codes
from stream_ccsd.lessons.trees import NO_TREES, Trees, grow_trees
from stream_ccsd.lessons.weights import fit_weights, likelihood, match_rate
from stream_ccsd.library.learnt import HALF_LIVES, Learnt
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.score.weighing import evidence_by

SUM, WEIGHTED, TREES = "sum", "weights", "weights and trees"


@dataclass(frozen=True, eq=False)
class Weighing:
    """How terms are weighed, and what it was chosen for."""

    kind: str
    weights: FloatArray
    trees: Trees
    left_out: FloatArray  # evidence of the kept transactions, each by what others taught
    today: FloatArray  # the same, as they would be scored now
    likelihoods: dict[str, float]


def weigh_terms(learnt: Learnt, kept: Kept) -> Weighing:
    """Weights and trees, each judged on accounts that it was not learnt from: halves take turns."""
    half = (kept.rows.account & np.uint64(1)).astype(bool)
    odds, evidence, today = ({name: np.empty(len(half)) for name in (SUM, WEIGHTED, TREES)} for _ in range(3))
    now = inputs_today(learnt, kept)
    fraud, weight = kept.fraud, kept.weight
    for side in (half, ~half):
        for name, (score, shift, by_now) in _taught(learnt, kept, now, side).items():
            evidence[name][~side], odds[name][~side], today[name][~side] = score, score + shift, by_now
    likelihoods = {name: likelihood(o, fraud, weight) for name, o in odds.items()}
    kind = max(likelihoods, key=lambda name: likelihoods[name])
    weights, trees = np.ones(len(learnt.weights)), NO_TREES
    if kind != SUM:
        terms = kept.rows.inputs[:, : len(weights)].astype(float)
        weights, shift = fit_weights(terms, fraud, weight)
        if kind == TREES:
            trees = grow_trees(kept.rows.inputs, terms @ weights + shift, fraud, weight)
    return Weighing(kind, weights, trees, evidence[kind], today[kind], likelihoods)


def _taught(
    learnt: Learnt, kept: Kept, now: FloatArray, side: AnyArray
) -> dict[str, tuple[FloatArray, float, FloatArray]]:
    """Evidence of the other side by what this side teaches, what makes log odds of it, and the evidence by now."""
    count = len(learnt.weights)
    terms = kept.rows.inputs[:, :count].astype(float)
    fraud, weight, plain = kept.fraud[side], kept.weight[side], terms.sum(axis=1)
    weights, shift = fit_weights(terms[side], fraud, weight)
    weighted = terms @ weights
    trees = grow_trees(kept.rows.inputs[side], weighted[side] + shift, fraud, weight)
    grown = learnt._replace(weights=weights, **trees._asdict())
    corrected, by_now = (
        evidence_by(grown, inputs[~side].astype(float), _count_terms(learnt)) for inputs in (kept.rows.inputs, now)
    )
    terms_now = now[~side, :count]
    return {
        SUM: (plain[~side], match_rate(plain[side], fraud, weight), terms_now.sum(axis=1)),
        WEIGHTED: (weighted[~side], shift, terms_now @ weights),
        TREES: (corrected, shift + float(trees.value[trees.roots].sum()), by_now),
    }


def inputs_today(learnt: Learnt, kept: Kept) -> FloatArray:
    """Inputs of kept transactions, with records as they are now: when these were scored, there may have been none.

    How rare evidence is among normal transactions is asked of what will be scored next.
    """
    inputs: FloatArray = kept.rows.inputs.astype(float)
    first = len(learnt.weights)
    for i, codes in enumerate(record_codes(kept.rows)):
        own = slice(learnt.start[i], learnt.start[i + 1])
        places = np.searchsorted(learnt.codes[own], codes)
        known = np.append(learnt.codes[own], 0)[places] == codes
        rates = np.vstack([learnt.rates[own], learnt.unknown[i]])[places]
        rates = np.where(known[:, None], rates, learnt.unknown[i])
        inputs[:, first + i * len(HALF_LIVES) : first + (i + 1) * len(HALF_LIVES)] = rates
        inputs[:, first - len(learnt.start) + 1 + i] = rates[:, learnt.chosen[i]]
    return inputs


def evidence_today(learnt: Learnt, kept: Kept) -> FloatArray:
    """Evidence of kept transactions, as they would be scored now."""
    return evidence_by(learnt, inputs_today(learnt, kept), _count_terms(learnt))


def _count_terms(learnt: Learnt) -> int:
    return int(learnt.term_of.max()) + 1


def measured(weighing: Weighing, kept: Kept) -> dict[str, Any]:
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
