"""Weights of the terms of the evidence: a logistic regression with a prior around 1.

Fraud is as likely as ``sigmoid(intercept + sum of weight x term)``. Each weight has a normal prior around 1, so that
with few verdicts evidence stays the plain sum that it is without any. The fit is exact (Newton), so the order of the
rows changes nothing that matters. A model update can be repeated to the bit, because sums are our own, row after row:
those of BLAS depend on how many cores it finds.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit, log_expit

from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.numerics.sums import newton_terms, solve_positive, weighted_sums

_HELD = 4.0  # one over the variance of a weight under the prior
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
    """The shift of the evidence with which it expects as many frauds as there are."""
    wanted = float((weight * fraud).sum())
    low, high = -60.0, 60.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if (weight * expit(evidence + middle)).sum() > wanted else (middle, high)
    return 0.5 * (low + high)


def likelihood(odds: FloatArray, fraud: AnyArray, weight: FloatArray) -> float:
    """Log likelihood of the outcomes, by log odds."""
    return float((weight * log_expit(np.where(fraud, odds, -odds))).sum())


def _cost(
    x: FloatArray, y: FloatArray, weight: FloatArray, at: FloatArray, prior: FloatArray, held: FloatArray
) -> float:
    odds = weighted_sums(x, at)
    return float(-(weight * log_expit(np.where(y > 0, odds, -odds))).sum() + 0.5 * (held * (at - prior) ** 2).sum())
