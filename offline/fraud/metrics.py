"""How good a ranking is, and what a threshold makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from offline.fraud.data import Split
from offline.peers import peer
from stream_ccsd.alerts.policy import threshold_by_f1
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, IntArray

_CURVE_POINTS = 150


def filled(scores: FloatArray) -> FloatArray:
    """A missing score ranks below every other: nothing was found, so nothing is suspected."""
    known = scores[~np.isnan(scores)]
    lowest = known.min() - 1.0 if len(known) else 0.0
    return np.where(np.isnan(scores), lowest, scores)


Figures = dict[str, float | None]


def ranking(labels: AnyArray, scores: FloatArray) -> Figures:
    """Area under the ROC curve and average precision; None where there is nothing to rank above anything."""
    labels = np.asarray(labels, bool)
    if labels.all() or not labels.any():
        return {"auc": None, "ap": None}
    metrics = peer("sklearn.metrics")
    scores = filled(scores)
    return {
        "auc": float(metrics.roc_auc_score(labels, scores)),
        "ap": float(metrics.average_precision_score(labels, scores)),
    }


def at_threshold(labels: AnyArray, scores: FloatArray, threshold: float) -> dict[str, float]:
    """Confusion matrix and what follows from it, for "score or more"."""
    labels, flagged = np.asarray(labels, bool), filled(scores) >= threshold
    tp, fp = int(np.sum(flagged & labels)), int(np.sum(flagged & ~labels))
    fn, tn = int(np.sum(~flagged & labels)), int(np.sum(~flagged & ~labels))
    precision, recall = tp / max(tp + fp, 1), tp / max(tp + fn, 1)
    return {
        "accuracy": (tp + tn) / len(labels),
        "precision": precision,
        "recall": recall,
        "f1": 2 * tp / max(2 * tp + fp + fn, 1),
        "tp": tp,
        "fp": fp,
        "fn": fn,
        "tn": tn,
    }


def judged(
    val: tuple[AnyArray, FloatArray], test: tuple[AnyArray, FloatArray], threshold: float | None = None
) -> dict[str, Any]:
    """Ranking on VAL and TEST, and the threshold: the best F1 on VAL unless given, then held fixed for TEST.

    Where no fraud is in VAL there is no threshold to choose: the ranking on TEST alone.
    """
    if not np.any(val[0]):
        return {"test": ranking(*test)}
    if threshold is None:
        threshold = threshold_by_f1(filled(val[1]), val[0])
    return {
        "threshold": threshold,
        "val": {**ranking(*val), **at_threshold(*val, threshold)},
        "test": {**ranking(*test), **at_threshold(*test, threshold)},
    }


def judge_accounts(split: Split, scores: pd.Series, threshold: float | None = None) -> dict[str, Any]:
    """The same of scores by account, for the accounts of a split."""
    return judged(split.labelled("val", scores), split.labelled("test", scores), threshold)


def ranked(scores: pd.DataFrame, fraud: AnyArray, calm: AnyArray) -> dict[str, Figures]:
    """How each score ranks what is fraud above what is calm; what is neither is left out."""
    kept = fraud | calm
    return {name: ranking(fraud[kept], scores[name].to_numpy()[kept]) for name in scores}


def precision_at(labels: AnyArray, scores: FloatArray, count: int) -> float:
    """Share of positives among the ``count`` highest scores."""
    order = np.argsort(-filled(scores), kind="stable")[:count]
    return float(np.mean(np.asarray(labels)[order]))


def highest_by_card(cards: IntArray, scores: FloatArray) -> tuple[IntArray, FloatArray]:
    """Each card once, and the highest of its scores; a missing score is below every other."""
    names, place = np.unique(cards, return_inverse=True)
    highest = np.full(len(names), -np.inf)
    np.maximum.at(highest, place, filled(scores))
    return names, highest


def card_precisions(
    day: IntArray, card: IntArray, fraud: AnyArray, scores: FloatArray, count: int = 100
) -> dict[int, float]:
    """CP@``count`` of each day, as the Handbook has it: how many of so many cards have fraud that day.

    The cards with the highest scores of a day; those that were found leave all later days. Rows are in order of days.
    """
    found: set[int] = set()
    precisions = {}
    days, edges = np.unique(day, return_index=True)
    for today, begin, end in zip(days.tolist(), edges, [*edges[1:], len(day)], strict=True):
        names, highest = highest_by_card(card[begin:end], scores[begin:end])
        defrauded = set(card[begin:end][fraud[begin:end]].tolist())
        waiting = np.array([name not in found for name in names.tolist()], bool)
        chosen = names[waiting][np.argsort(-highest[waiting], kind="stable")[:count]].tolist()
        caught = defrauded & set(chosen)
        precisions[today] = len(caught) / count
        found |= caught
    return precisions


def curves(labels: AnyArray, scores: FloatArray) -> dict[str, list[list[float]]]:
    """ROC and precision-recall curves, thinned for a plot."""
    metrics = peer("sklearn.metrics")
    fpr, tpr, _ = metrics.roc_curve(labels, filled(scores))
    precision, recall, _ = metrics.precision_recall_curve(labels, filled(scores))
    return {"roc": _thinned(fpr, tpr), "pr": _thinned(recall, precision)}


def _thinned(x: FloatArray, y: FloatArray) -> list[list[float]]:
    """Points evenly spread along both axes: along the curve's own points, whole stretches would have none."""
    if x[0] > x[-1]:
        x, y = x[::-1], y[::-1]
    along_x = np.searchsorted(x, np.linspace(0.0, 1.0, _CURVE_POINTS))
    along_y = np.searchsorted(np.maximum.accumulate(np.abs(y - y[0])), np.linspace(0.0, 1.0, _CURVE_POINTS))
    keep = np.unique(np.clip(np.concatenate([along_x, along_y, [0, len(x) - 1]]), 0, len(x) - 1))
    return [np.round(x[keep], 5).tolist(), np.round(y[keep], 5).tolist()]
