"""Slow, obvious references: the paper's formulas as loops. Every fast form is tested against these."""

from __future__ import annotations

import math
from itertools import product

import numpy as np


def gaussian(a, b, bandwidth) -> float:
    a, b = np.atleast_1d(a), np.atleast_1d(b)
    bandwidth = np.broadcast_to(bandwidth, a.shape)
    return math.exp(-sum((x - y) ** 2 / (2 * s**2) for x, y, s in zip(a, b, bandwidth, strict=True)))


def match(c, d, gamma) -> float:
    return math.prod(1.0 if x == y else gamma for x, y in zip(np.atleast_1d(c), np.atleast_1d(d), strict=True))


def row_weights(reference, condition, tau):
    """A_li = K(x_l, x_i) / sum_i' K(x_l, x_i')."""
    a = np.array([[gaussian(x, c, tau) for c in condition] for x in reference])
    return a / a.sum(axis=1, keepdims=True)


def complete(x, y):
    keep = [
        not (np.isnan(np.atleast_1d(a)).any() or np.isnan(np.atleast_1d(b)).any()) for a, b in zip(x, y, strict=True)
    ]
    return np.asarray(x)[keep], np.asarray(y)[keep]


def gram_term(x_p, y_p, x_q, y_q, reference, tau, sigma, likeness=None) -> float:
    """I_pq = 1/n_r sum_l a_l^T L_pq b_l (Eq. 3)."""
    a, b = row_weights(reference, x_p, tau), row_weights(reference, x_q, tau)
    likeness = likeness or (lambda i, j: gaussian(y_p[i], y_q[j], sigma))
    total = 0.0
    for r, i, j in product(range(len(reference)), range(len(x_p)), range(len(x_q))):
        total += a[r, i] * b[r, j] * likeness(i, j)
    return total / len(reference)


def one_sided_term(x_p, y_p, x_q, y_q, tau, sigma) -> float:
    """One law smoothed, the other as observed; averaged over both directions."""
    forward, backward = row_weights(x_p, x_q, tau), row_weights(x_q, x_p, tau)
    total = 0.0
    for i, j in product(range(len(x_p)), range(len(x_q))):
        weight = 0.5 * (forward[i, j] / len(x_p) + backward[j, i] / len(x_q))
        total += weight * gaussian(y_p[i], y_q[j], sigma)
    return total


def symmetric_logarithm(pp, qq, pq, ridge) -> float:
    return 0.5 * (math.log(pp + ridge) + math.log(qq + ridge) - 2 * math.log(pq + ridge))


def divergence(x_p, y_p, x_q, y_q, tau, sigma, reference=None, weighting="two-sided", ridge=None) -> float:
    (x_p, y_p), (x_q, y_q) = complete(x_p, y_p), complete(x_q, y_q)
    if weighting == "one-sided":
        pp = one_sided_term(x_p, y_p, x_p, y_p, tau, sigma)
        qq = one_sided_term(x_q, y_q, x_q, y_q, tau, sigma)
        pq = one_sided_term(x_p, y_p, x_q, y_q, tau, sigma)
    else:
        if reference is None:
            reference = np.unique(np.concatenate([x_p, x_q]), axis=0)
        pp = gram_term(x_p, y_p, x_p, y_p, reference, tau, sigma)
        qq = gram_term(x_q, y_q, x_q, y_q, reference, tau, sigma)
        pq = gram_term(x_p, y_p, x_q, y_q, reference, tau, sigma)
    ridge = 1e-10 * 0.5 * (pp + qq) if ridge is None else ridge
    return symmetric_logarithm(pp, qq, pq, ridge)


def pairwise(series, other, tau, sigma, weighting, ridge):
    """All pairs, each by :func:`divergence` on the common time grid."""
    others = series if other is None else other
    length = max(len(s) for s in [*series, *others])
    grid = np.arange(length, dtype=float)

    def one(a, b):
        return divergence(grid[: len(a)], a, grid[: len(b)], b, tau, sigma, grid, weighting, ridge)

    return np.array([[one(a, b) for b in others] for a in series])


def effective_rank(gram) -> float:
    eigenvalues = [max(v, 0.0) for v in np.linalg.eigvalsh(gram)]
    shares = [v / sum(eigenvalues) for v in eigenvalues if v > 0]
    return math.exp(-sum(s * math.log(s) for s in shares))


def pair_distances(points):
    points = np.atleast_2d(np.asarray(points, float).T).T
    return [math.dist(points[i], points[j]) for i in range(len(points)) for j in range(i)]
