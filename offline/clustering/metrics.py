"""How well clusters agree with classes, and whether one distance is really better than another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment
from scipy.stats import friedmanchisquare, studentized_range, wilcoxon

from stream_ccsd.clustering.selection import adjusted_rand
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, IntArray

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
        "ari": float(adjusted_rand([np.unique(given, return_inverse=True)[1] for given in (classes, clusters)])[0, 1]),
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


def _entropy(shares: FloatArray) -> float:
    positive = shares[shares > 0]
    return float(-np.sum(positive * np.log(positive)))


def compare(scores: pd.DataFrame, reference: str) -> dict[str, Any]:
    """Each method (a column) against the reference over the same data sets (rows), and all of them by ranks.

    Wins are the reference's. The paired test is Wilcoxon's signed ranks, two-sided, and corrected by Holm for all pairs
    of methods; methods within a clique, neighbours by mean rank, do not differ by it (5 %). Ranks are also compared by
    Friedman's test, and by it mean ranks further apart than the critical difference (Nemenyi, 5 %) differ.
    """
    tests = paired_tests(scores)
    corrected = {frozenset(test["methods"]): test for test in tests}
    own = scores[reference]
    against = []
    for name, other in scores.drop(columns=reference).items():
        difference = own - other
        tied = np.abs(difference) < _TIE
        test = corrected[frozenset((reference, name))]
        against.append(
            {
                "method": name,
                "wins": int(np.sum((difference > 0) & ~tied)),
                "ties": int(tied.sum()),
                "losses": int(np.sum((difference < 0) & ~tied)),
                "mean_difference": float(difference.mean()),
                "wilcoxon_p": test["wilcoxon_p"],
                "holm_p": test["holm_p"],
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
        "tests": tests,
        "cliques": cliques(ranks.mean().to_dict(), tests),
    }
    if methods > 2 and datasets > 1:
        q = float(studentized_range.ppf(0.95, methods, np.inf)) / np.sqrt(2)
        result["critical_difference"] = float(q * np.sqrt(methods * (methods + 1) / (6 * datasets)))
        result["friedman_p"] = float(friedmanchisquare(*scores.to_numpy().T).pvalue)
    return result


def paired_tests(scores: pd.DataFrame) -> list[dict[str, Any]]:
    """Wilcoxon's signed ranks for every pair of methods, and the same with Holm's correction for their number."""
    tests: list[dict[str, Any]] = []
    for one, two in combinations(scores, 2):
        a, b = scores[one], scores[two]
        p = float(wilcoxon(a, b).pvalue) if (a != b).any() else 1.0
        tests.append({"methods": [one, two], "wilcoxon_p": p})
    for test, p in zip(tests, holm([test["wilcoxon_p"] for test in tests]), strict=True):
        test["holm_p"] = p
    return tests


def holm(p_values: Sequence[float]) -> list[float]:
    """Each p for so many tests at once (Holm 1979): the smallest times all of them, the next times one less.

    >>> [round(p, 3) for p in holm([0.03, 0.01, 0.5])]
    [0.06, 0.03, 0.5]
    """
    corrected, highest = [0.0] * len(p_values), 0.0
    for place, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[i]))
        corrected[i] = highest
    return corrected


def cliques(mean_rank: dict[str, float], tests: Sequence[dict[str, Any]], level: float = 0.05) -> list[list[str]]:
    """The longest runs of methods, in order of mean rank, of which no two differ by the corrected tests.

    >>> tests = [{"methods": [a, b], "holm_p": p} for a, b, p in (("x", "y", 0.5), ("y", "z", 0.2), ("x", "z", 0.01))]
    >>> cliques({"x": 1.2, "z": 2.9, "y": 1.9}, tests)
    [['x', 'y'], ['y', 'z']]
    """
    differ = {frozenset(test["methods"]) for test in tests if test["holm_p"] < level}
    names = sorted(mean_rank, key=lambda name: mean_rank[name])
    found: list[list[str]] = []
    end = 0
    for first in range(len(names)):
        last = first
        while last + 1 < len(names) and not any(
            frozenset((name, names[last + 1])) in differ for name in names[first : last + 1]
        ):
            last += 1
        if last > first and last + 1 > end:  # not within the run before
            found.append(names[first : last + 1])
            end = last + 1
    return found
