"""Which of the plain sum, weights, and weights with trees predicts best, on accounts that it was not learnt from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stream_ccsd.lessons.notebook import Kept, Notebook, record_codes
from stream_ccsd.lessons.records import base_rate
from stream_ccsd.lessons.trees import NO_TREES, Trees, grow_trees
from stream_ccsd.lessons.weights import fit_weights, likelihood, match_rate
from stream_ccsd.library.learnt import HALF_LIVES, Learnt
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.score.weighing import evidence_by

# Normal transactions that were scored when there were records, from which on the others are not asked any more.
_ENOUGH = 2000
SUM, WEIGHTED, TREES = "sum", "weights", "weights and trees"


@dataclass(frozen=True, eq=False)
class Weighing:
    """How terms are weighed, and what it was chosen for."""

    kind: str
    weights: FloatArray
    trees: Trees
    left_out: FloatArray  # evidence of the kept transactions, each by what others taught
    today: FloatArray  # the same, as they would be scored now
    speaking: AnyArray  # which of them say how rare evidence is
    likelihoods: dict[str, float]


def weigh_terms(learnt: Learnt, kept: Kept, book: Notebook) -> Weighing:
    """Weights and trees, each judged on accounts that it was not learnt from: halves take turns."""
    half = (kept.rows.account & np.uint64(1)).astype(bool)
    odds, evidence, today = ({name: np.empty(len(half)) for name in (SUM, WEIGHTED, TREES)} for _ in range(3))
    now, speaking = inputs_today(kept, book)
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
    return Weighing(kind, weights, trees, evidence[kind], today[kind], speaking, likelihoods)


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


def inputs_today(kept: Kept, book: Notebook) -> tuple[FloatArray, AnyArray]:
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


def evidence_today(learnt: Learnt, kept: Kept, book: Notebook) -> tuple[FloatArray, AnyArray]:
    """Evidence of kept transactions, as they would be scored now, and which of them say how rare it is."""
    inputs, speaking = inputs_today(kept, book)
    return evidence_by(learnt, inputs, _count_terms(learnt)), speaking


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
