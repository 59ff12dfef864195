"""Kernels, condition weights and bandwidths.

On outputs, a Gaussian on numbers times a match kernel on categories, in logarithms. On conditions, how much each
observed point counts at a reference point. Bandwidths come from data: medians and interquartile ranges over pairs,
sampled where there are too many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist

from stream_ccsd.numerics.arrays import BANDWIDTH_PAIRS, SMALLEST_RELATIVE_BANDWIDTH, AnyArray, FloatArray, IntArray
from stream_ccsd.numerics.compiling import compiled


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


def median_bandwidth(points: ArrayLike, *, pairs: int = BANDWIDTH_PAIRS, seed: int = 0) -> float:
    """Median Euclidean distance between two different points (the paper's rule for window vectors).

    Parameters
    ----------
    points
        A vector of numbers or a table of vectors; rows with a missing value are left out.
    pairs
        With more pairs than this, the median of a random sample of as many.
    seed
        Of that sample.

    Raises
    ------
    ValueError
        If fewer than two points are complete, or the median is 0 (more than half of all pairs are equal).

    >>> median_bandwidth([0.0, 1.0, 3.0])
    2.0
    """
    table = _complete_rows(points)
    i, j = _pairs(len(table), pairs, seed)
    return _positive(float(np.median(np.sqrt(np.sum((table[i] - table[j]) ** 2, axis=1)))), "median distance")


def iqr_bandwidth(values: ArrayLike, *, pairs: int = BANDWIDTH_PAIRS, seed: int = 0) -> float:
    """``IQR / 1.349`` of the signed differences of two values: a standard deviation that outliers cannot move.

    Arguments and errors as in :func:`median_bandwidth`.

    >>> rng = np.random.default_rng(0)
    >>> round(iqr_bandwidth(rng.normal(size=5000)), 1)  # differences of unit normals: sqrt(2)
    1.4
    """
    flat = _complete_rows(np.asarray(values, dtype=np.float64).ravel())[:, 0]
    i, j = _pairs(len(flat), pairs, seed)
    difference = flat[i] - flat[j]
    # Each unordered pair stands for both its signs, so the quartiles lie symmetrically around 0.
    low, high = np.percentile(np.concatenate([difference, -difference]), [25, 75])
    return _positive(float(high - low) / 1.349, "interquartile range")


def time_bandwidth(tau: float, length: int) -> float:
    """The paper's convention for the time kernel: ``tau <= 1`` is a share of the series' length.

    >>> time_bandwidth(0.05, 140), time_bandwidth(5, 140)
    (7.0, 5.0)
    """
    return float(tau * length if tau <= 1 else tau)


def _complete_rows(points: ArrayLike) -> FloatArray:
    table = np.asarray(points, dtype=np.float64)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2:
        raise ValueError(f"expected a vector or a table, got {table.ndim} dimensions")
    table = table[~np.isnan(table).any(axis=1)]
    if len(table) < 2:
        raise ValueError("a bandwidth needs at least two points without a missing value")
    if np.isinf(table).any():
        raise ValueError("a bandwidth needs finite values")
    return table


def _pairs(n: int, limit: int, seed: int) -> tuple[IntArray, IntArray]:
    if n * (n - 1) // 2 <= limit:
        i, j = np.triu_indices(n, k=1)
        return i.astype(np.int64), j.astype(np.int64)
    rng = np.random.default_rng(seed)
    i = rng.integers(0, n, size=limit)
    j = (i + rng.integers(1, n, size=limit)) % n
    return i, j


def _positive(value: float, what: str) -> float:
    if not value > 0:
        raise ValueError(f"the {what} is 0: more than half of the points are equal, so name a bandwidth yourself")
    return value


Weighting = Literal["two-sided", "one-sided"]


def condition_weights(reference: FloatArray, condition: FloatArray, tau: float) -> FloatArray:
    r"""Row-normalised Gaussian weights (the matrices ``A`` and ``B`` of the paper).

    .. math:: A_{li} = \frac{K_\tau(x_l, x_i)}{\sum_{i'} K_\tau(x_l, x_{i'})}

    Computed as a softmax of ``-d^2 / 2 tau^2``: a reference point far from every observed point gives its
    weight to the nearest ones, which is the limit of the formula where the plain quotient is 0/0.

    >>> condition_weights(np.array([[0.0], [1e9]]), np.array([[0.0], [1.0]]), tau=0.1).round(3)
    array([[1., 0.],
           [0., 1.]])
    """
    check_bandwidth("tau", tau)
    left, right = scaled(reference, condition, np.full(reference.shape[1], tau))
    squared = cdist(left, right, "sqeuclidean")
    weights: FloatArray = np.exp(-0.5 * (squared - squared.min(axis=1, keepdims=True)))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def pair_weights(
    condition_p: FloatArray,
    condition_q: FloatArray,
    tau: float,
    weighting: Weighting,
    reference: FloatArray,
) -> FloatArray:
    """Weight of each pair of observed points in a Gram term ``I_pq``; all of them sum to 1.

    ``two-sided`` is ``A^T B / n_r`` of Eq. 3: both distributions are smoothed towards the reference points.
    ``one-sided`` takes the points of one distribution as they are and smooths only the other, averaged over
    both directions; that is what reproduces Table 1 of the paper. It has no reference points of its own and
    is not positive semi-definite.
    """
    if weighting == "two-sided":
        a = condition_weights(reference, condition_p, tau)
        b = condition_weights(reference, condition_q, tau)
        return a.T @ b / len(reference)
    if weighting == "one-sided":
        forward = condition_weights(condition_p, condition_q, tau) / len(condition_p)
        backward = condition_weights(condition_q, condition_p, tau) / len(condition_q)
        return 0.5 * (forward + backward.T)
    raise ValueError(f"weighting must be 'two-sided' or 'one-sided', got {weighting!r}")
