"""Weights of the terms of the evidence: a logistic regression that begins at 1 and is held there.

Fraud is as likely as ``sigmoid(intercept + sum of weight x term)``; each weight is held to 1 as by a normal prior, so
that with few verdicts evidence stays the plain sum it is without any. Solved exactly (Newton), so the order of the rows
changes nothing that matters, and a lesson can be repeated to the bit: sums are our own, row after row. Those of BLAS
depend on how many cores it finds.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit, log_expit

from stream_ccsd.compiling import compiled
from stream_ccsd.numeric import AnyArray, FloatArray

_HELD = 4.0  # one over the variance of a weight, before anything is known
_STEPS = 30


def fit_weights(terms: FloatArray, fraud: AnyArray, weight: FloatArray) -> tuple[FloatArray, float]:
    """Weights of the terms, and the intercept."""
    rows, count = terms.shape
    prior = np.append(np.ones(count), 0.0)
    held = np.append(np.full(count, _HELD), 1e-6)
    x = np.column_stack([terms, np.ones(rows)])
    y = fraud.astype(float)
    found = np.append(np.ones(count), match_rate(terms.sum(axis=1), fraud, weight))
    cost = _cost(x, y, weight, found, prior, held)
    for _ in range(_STEPS):
        p = expit(weighted_sums(x, found))
        gradient, curvature = newton_terms(x, weight * (p - y), weight * p * (1.0 - p))
        step = solve_positive(curvature + np.diag(held), gradient + held * (found - prior))
        scale = 1.0
        while scale > 1e-4 and (new := _cost(x, y, weight, found - scale * step, prior, held)) > cost:
            scale *= 0.5
        if scale <= 1e-4:
            break
        found, gained, cost = found - scale * step, cost - new, new
        if gained < 1e-7 * (1.0 + abs(cost)):
            break
    return found[:-1], float(found[-1])


def match_rate(evidence: FloatArray, fraud: AnyArray, weight: FloatArray) -> float:
    """What to add to evidence, so that it expects as many frauds as there are."""
    wanted = float((weight * fraud).sum())
    low, high = -60.0, 60.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if (weight * expit(evidence + middle)).sum() > wanted else (middle, high)
    return 0.5 * (low + high)


def likelihood(odds: FloatArray, fraud: AnyArray, weight: FloatArray) -> float:
    """Of what was found, by log odds."""
    return float((weight * log_expit(np.where(fraud, odds, -odds))).sum())


def _cost(
    x: FloatArray, y: FloatArray, weight: FloatArray, at: FloatArray, prior: FloatArray, held: FloatArray
) -> float:
    odds = weighted_sums(x, at)
    return float(-(weight * log_expit(np.where(y > 0, odds, -odds))).sum() + 0.5 * (held * (at - prior) ** 2).sum())


@compiled()
def weighted_sums(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Of each row, the sum of its values times the weights, added from left to right."""
    out = np.empty(len(rows))
    for i in range(len(rows)):
        total = 0.0
        for j in range(len(weights)):
            total += rows[i, j] * weights[j]
        out[i] = total
    return out


@compiled()
def newton_terms(rows: FloatArray, slope: FloatArray, bend: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sums over rows, one after the other, of ``slope x row`` and of ``bend x row x row``."""
    count = rows.shape[1]
    gradient, curvature = np.zeros(count), np.zeros((count, count))
    for i in range(len(rows)):
        for j in range(count):
            gradient[j] += slope[i] * rows[i, j]
            part = bend[i] * rows[i, j]
            for k in range(j + 1):
                curvature[j, k] += part * rows[i, k]
    for j in range(count):
        for k in range(j):
            curvature[k, j] = curvature[j, k]
    return gradient, curvature


@compiled()
def solve_positive(matrix: FloatArray, right: FloatArray) -> FloatArray:
    """What the matrix, symmetric and positive definite, turns into the right side: Cholesky's way."""
    count = len(right)
    lower, out = np.zeros((count, count)), right.copy()
    for j in range(count):
        for i in range(j, count):
            total = matrix[i, j]
            for k in range(j):
                total -= lower[i, k] * lower[j, k]
            lower[i, j] = np.sqrt(total) if i == j else total / lower[j, j]
    for i in range(count):
        for k in range(i):
            out[i] -= lower[i, k] * out[k]
        out[i] /= lower[i, i]
    for i in range(count - 1, -1, -1):
        for k in range(i + 1, count):
            out[i] -= lower[k, i] * out[k]
        out[i] /= lower[i, i]
    return out
