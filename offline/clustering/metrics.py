"""How well clusters agree with classes, and whether one distance is really better than another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment
from scipy.stats import friedmanchisquare, studentized_range, wilcoxon

from stream_ccsd.numeric import AnyArray, FloatArray, IntArray

# Two NMI closer than this are a tie: fewer digits than tables show.
_TIE = 5e-4


def agreement(classes: AnyArray, clusters: AnyArray) -> dict[str, float]:
    """Normalised mutual information, adjusted Rand index, and the share right under the best naming of clusters.

    >>> agreement(np.array([1, 1, 2, 2]), np.array([5, 5, 5, 7]))["accuracy"]
    0.75
    """
    table = contingency(classes, clusters)
    rows, columns = linear_sum_assignment(-table)
    return {
        "nmi": mutual_information(classes, clusters),
        "ari": _adjusted_rand(table),
        "accuracy": float(table[rows, columns].sum() / table.sum()),
    }


def mutual_information(classes: AnyArray, clusters: AnyArray) -> float:
    """NMI alone, normalised by the mean of both entropies: a grid asks for it tens of thousands of times.

    >>> round(mutual_information(np.array([1, 1, 2, 2]), np.array([5, 5, 5, 7])), 4)
    0.3437
    """
    table = contingency(classes, clusters) / len(classes)
    own, other = _entropy(table.sum(axis=1)), _entropy(table.sum(axis=0))
    if own + other == 0:  # one class in one cluster: nothing is left unsaid
        return 1.0
    return max(0.0, 2 * (own + other - _entropy(table)) / (own + other))


def contingency(classes: AnyArray, clusters: AnyArray) -> IntArray:
    """How many of each class (row) are in each cluster (column)."""
    _, rows = np.unique(classes, return_inverse=True)
    _, columns = np.unique(clusters, return_inverse=True)
    height, width = int(rows.max()) + 1, int(columns.max()) + 1
    return np.bincount(rows * width + columns, minlength=height * width).reshape(height, width)


def _adjusted_rand(table: IntArray) -> float:
    """Pairs that are together in both, against how many would be by chance (Hubert and Arabie)."""

    def pairs(counts: IntArray) -> float:
        return float(np.sum(counts * (counts - 1)) / 2)

    together, rows, columns = pairs(table), pairs(table.sum(axis=1)), pairs(table.sum(axis=0))
    chance = rows * columns / max(pairs(table.sum(keepdims=True)), 1.0)
    most = (rows + columns) / 2
    return 1.0 if most == chance else (together - chance) / (most - chance)


def _entropy(shares: FloatArray) -> float:
    positive = shares[shares > 0]
    return float(-np.sum(positive * np.log(positive)))


def compare(scores: pd.DataFrame, reference: str) -> dict[str, Any]:
    """Each method (a column) against the reference over the same data sets (rows), and all of them by ranks.

    Wins are the reference's. The paired test is Wilcoxon's signed ranks, two-sided; ranks are compared by Friedman's
    test, and mean ranks further apart than the critical difference (Nemenyi, 5 %) differ.
    """
    own = scores[reference]
    against = []
    for name, other in scores.drop(columns=reference).items():
        difference = own - other
        tied = np.abs(difference) < _TIE
        p = float(wilcoxon(own, other).pvalue) if (difference != 0).any() else 1.0
        against.append(
            {
                "method": name,
                "wins": int(np.sum((difference > 0) & ~tied)),
                "ties": int(tied.sum()),
                "losses": int(np.sum((difference < 0) & ~tied)),
                "mean_difference": float(difference.mean()),
                "wilcoxon_p": p,
            }
        )
    ranks = scores.rank(axis=1, ascending=False)
    datasets, methods = scores.shape
    result: dict[str, Any] = {
        "reference": reference,
        "datasets": datasets,
        "mean_nmi": {name: float(column.mean()) for name, column in scores.items()},
        "mean_rank": ranks.mean().to_dict(),
        "against": against,
    }
    if methods > 2 and datasets > 1:
        q = float(studentized_range.ppf(0.95, methods, np.inf)) / np.sqrt(2)
        result["critical_difference"] = float(q * np.sqrt(methods * (methods + 1) / (6 * datasets)))
        result["friedman_p"] = float(friedmanchisquare(*scores.to_numpy().T).pvalue)
    return result
