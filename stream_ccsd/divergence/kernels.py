"""The kernels of the output space, in logarithms: a Gaussian on numbers times a match kernel on categories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream_ccsd.compiling import compiled
from stream_ccsd.numeric import SMALLEST_RELATIVE_BANDWIDTH, AnyArray, FloatArray


@dataclass(frozen=True)
class OutputKernel:
    r"""Similarity of two outputs ``(y, c)`` and ``(y', c')``, numbers and categories together.

    .. math:: L = \prod_d \exp\left(-\frac{(y_d - y'_d)^2}{2\sigma_d^2}\right)
              \prod_m \left([c_m = c'_m] + \gamma_m [c_m \ne c'_m]\right)

    Both factors are positive definite for ``sigma > 0`` and ``0 <= gamma <= 1``, hence so is their product.
    The density inner products of the paper have a Gaussian of width ``sigma * sqrt(2)``; its Eq. 3 and its
    experiments keep ``sigma``, and so does this kernel.

    Parameters
    ----------
    sigma
        Bandwidth of the numbers: one for all of them, or one for each.
    mismatch
        ``gamma``: what a differing category still counts for. One for all categories, or one for each.

    Raises
    ------
    ValueError
        If a bandwidth is not positive and finite, or a mismatch is outside ``[0, 1]``.
    """

    sigma: float | Sequence[float] = 1.0
    mismatch: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        check_bandwidth("sigma", self.sigma)
        gamma = np.atleast_1d(np.asarray(self.mismatch, dtype=float))
        if not np.all((gamma >= 0) & (gamma <= 1)):
            raise ValueError(f"mismatch must lie in [0, 1], got {self.mismatch!r}")

    def sigmas(self, dimensions: int) -> FloatArray:
        """One bandwidth for each of ``dimensions`` numbers."""
        return _per_dimension("sigma", self.sigma, dimensions)

    def log_gate(self, categories_p: AnyArray, categories_q: AnyArray) -> FloatArray:
        """Logarithm of the match kernel between all rows of two category tables; ``-inf`` where it is 0."""
        gamma = _per_dimension("mismatch", self.mismatch, categories_p.shape[1])
        gate = np.ones((len(categories_p), len(categories_q)))
        for m, value in enumerate(gamma):
            same = categories_p[:, m][:, None] == categories_q[:, m][None, :]
            gate *= np.where(same, 1.0, value)
        with np.errstate(divide="ignore"):
            return np.log(gate)


def check_bandwidth(name: str, value: float | Sequence[float]) -> None:
    """Raise ``ValueError`` unless every bandwidth is a positive, finite number."""
    array = np.atleast_1d(np.asarray(value, dtype=float))
    if array.size == 0 or not np.all(np.isfinite(array) & (array > 0)):
        raise ValueError(f"{name} must be positive and finite, got {value!r}")


def scaled(p: FloatArray, q: FloatArray, bandwidth: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Both tables in units of the bandwidth, centred together so that neither squares nor differences overflow.

    A bandwidth narrower than ``SMALLEST_RELATIVE_BANDWIDTH`` of the spread acts as if it were just that wide.
    """
    if p.shape[1] == 0:
        return p, q
    low = np.minimum(p.min(axis=0), q.min(axis=0))
    high = np.maximum(p.max(axis=0), q.max(axis=0))
    # Halves are taken first: high - low and high + low can overflow where the values themselves do not.
    half_spread = high / 2 - low / 2
    centre = low / 2 + high / 2
    unit = np.maximum(bandwidth, half_spread * SMALLEST_RELATIVE_BANDWIDTH)
    unit = np.where(unit > 0, unit, 1.0)
    return (p - centre) / unit, (q - centre) / unit


@compiled()
def log_weighted_gaussian_sum(log_weights: FloatArray, p: FloatArray, q: FloatArray) -> float:
    """``log sum_ij w_ij exp(-|p_i - q_j|^2 / 2)`` without underflow; ``-inf`` where every weight is 0.

    The one place where a Gram term is summed directly: outputs come in units of their bandwidth, categories
    have already entered ``log_weights``.
    """
    rows, columns = log_weights.shape
    dimensions = p.shape[1]
    largest = -np.inf
    exponents = np.empty((rows, columns))
    for i in range(rows):
        for j in range(columns):
            distance = 0.0
            for d in range(dimensions):
                difference = p[i, d] - q[j, d]
                distance += difference * difference
            value = log_weights[i, j] - 0.5 * distance
            exponents[i, j] = value
            largest = max(largest, value)
    if largest == -np.inf:
        return -np.inf
    total = 0.0
    for i in range(rows):
        for j in range(columns):
            total += np.exp(exponents[i, j] - largest)
    return largest + np.log(total)


def _per_dimension(name: str, value: float | Sequence[float], dimensions: int) -> FloatArray:
    array = np.atleast_1d(np.asarray(value, dtype=float))
    if array.size == 1:
        return np.full(dimensions, array[0])
    if array.size != dimensions:
        raise ValueError(f"{name} has {array.size} values for {dimensions} dimensions")
    return array
