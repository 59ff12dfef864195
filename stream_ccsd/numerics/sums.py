"""Sums and small systems of equations, computed in one fixed order.

Those of BLAS depend on how many cores it finds. What a model learns must not.
"""

from __future__ import annotations

import numpy as np

from stream_ccsd.numerics.arrays import FloatArray
from stream_ccsd.numerics.compiling import compiled


@compiled()
def weighted_sums(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """For each row, the sum of its values times the weights, added from left to right."""
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
    """Solve ``matrix x = right`` by Cholesky's decomposition, for a symmetric positive definite matrix."""
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
