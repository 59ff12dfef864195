"""The conditional Cauchy-Schwarz divergence between two samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stream_ccsd.divergence.kernels import (
    OutputKernel,
    Weighting,
    check_bandwidth,
    log_weighted_gaussian_sum,
    pair_weights,
    scaled,
)
from stream_ccsd.numerics.arrays import RELATIVE_RIDGE, AnyArray, FloatArray


@dataclass(frozen=True, eq=False)
class Sample:
    """Points ``(x_i, y_i)`` of one conditional distribution: ``n`` conditions, and for each of them an output.

    Build it with :meth:`of`, which accepts vectors or tables and leaves out points with a missing value.
    """

    condition: FloatArray
    output: FloatArray
    categories: AnyArray

    @classmethod
    def of(cls, condition: ArrayLike, output: ArrayLike | None = None, categories: Any = None) -> Sample:
        """A sample from vectors ``(n,)`` or tables ``(n, d)``; a point with a NaN carries no weight.

        Parameters
        ----------
        condition
            The conditions ``x``, numbers.
        output
            The numeric part of the outputs ``y``; may be left out when there are categories.
        categories
            The categorical part of the outputs: strings or integers, compared by equality.

        Raises
        ------
        ValueError
            If lengths differ, a number is infinite, there is no output at all, or no point is complete.

        >>> Sample.of([0, 1, 2], [0.5, np.nan, 0.25]).condition.ravel()
        array([0., 2.])
        """
        x = _table("condition", condition)
        if output is None and categories is None:
            raise ValueError("a sample needs an output: numbers, categories or both")
        y = np.empty((len(x), 0)) if output is None else _table("output", output)
        c = np.empty((len(x), 0), dtype=np.int64) if categories is None else _columns(np.asarray(categories))
        if not len(x) == len(y) == len(c):
            raise ValueError(f"lengths differ: {len(x)} conditions, {len(y)} outputs, {len(c)} categories")
        complete = ~(np.isnan(x).any(axis=1) | np.isnan(y).any(axis=1))
        if not complete.any():
            raise ValueError("a sample needs at least one point without a missing value")
        return cls(x[complete], y[complete], c[complete])

    def __len__(self) -> int:
        return len(self.condition)


@dataclass(frozen=True)
class GramTerms:
    """The three Gram terms of a pair, as logarithms, and whether the Cauchy-Schwarz inequality binds them."""

    log_pp: float
    log_qq: float
    log_pq: float
    bounded: bool

    def divergence(self, ridge: float | None = None) -> float:
        """The symmetric logarithm ``1/2 [log(I_pp+e) + log(I_qq+e)] - log(I_pq+e)``.

        The paper prints it with a leading minus, twice; with that sign it would be negative. Where the
        inequality binds, a result below 0 can only be rounding and becomes 0.
        """
        e = median_ridge([self.log_pp, self.log_qq]) if ridge is None else check_ridge(ridge)
        log_ridge = np.log(e) if e > 0 else -np.inf
        pp, qq, pq = (np.logaddexp(term, log_ridge) for term in (self.log_pp, self.log_qq, self.log_pq))
        # Halving each difference, not their sum, keeps identical samples at exactly 0.
        value = 0.5 * (pp - pq) + 0.5 * (qq - pq)
        return max(0.0, float(value)) if self.bounded else float(value)


def conditional_divergence(
    p: Sample,
    q: Sample,
    *,
    tau: float,
    kernel: OutputKernel | None = None,
    reference: ArrayLike | None = None,
    weighting: Weighting = "two-sided",
    ridge: float | None = None,
    leave_one_out: bool = False,
) -> float:
    r"""Conditional Cauchy-Schwarz divergence (C-CSD) between two samples, in nats.

    .. math::
        D = \tfrac12\left[\log(I_{pp}+\varepsilon) + \log(I_{qq}+\varepsilon)\right] - \log(I_{pq}+\varepsilon),
        \qquad I_{pq} = \tfrac1{n_r}\operatorname{tr}(L_{pq} A^\top B)

    It is 0 when both samples describe the same conditional distribution, symmetric, and never negative (except
    ``one-sided`` or ``leave_one_out``, where no inequality forbids it and the value is given as it is).

    Parameters
    ----------
    p, q
        The samples; their sizes may differ.
    tau
        Bandwidth of the Gaussian on the conditions.
    kernel
        Kernel on the outputs; by default a Gaussian with ``sigma = 1`` and an exact match of categories.
    reference
        Points where the conditional distributions are compared: by default the distinct conditions of both samples.
    weighting
        ``two-sided`` (Eq. 3 of the paper) or ``one-sided`` (its Table 1); see :func:`pair_weights`.
    ridge
        The ridge ``e``; by default :data:`~stream_ccsd.numerics.arrays.RELATIVE_RIDGE` times the median of the two
        self-terms, which caps the divergence near 23 nats. 0 switches it off; the sums are taken in logarithms
        and stay finite all the same, unless ``mismatch`` is 0 and no category of ``p`` occurs in ``q``: ``inf``.
    leave_one_out
        Remove each point's similarity to itself from ``I_pp`` and ``I_qq``; needs two points a sample.

    Raises
    ------
    ValueError
        For a bandwidth or ridge out of range, dimensions that do not agree, or leave-one-out with nothing left.

    Examples
    --------
    >>> x = np.linspace(0, 1, 50)
    >>> p, q = Sample.of(x, np.sin(6 * x)), Sample.of(x, np.cos(6 * x))
    >>> round(conditional_divergence(p, q, tau=0.05), 4)
    0.3746
    >>> conditional_divergence(p, p, tau=0.05)
    0.0
    """
    terms = gram_terms(
        p, q, tau=tau, kernel=kernel, reference=reference, weighting=weighting, leave_one_out=leave_one_out
    )
    return terms.divergence(ridge)


def gram_terms(
    p: Sample,
    q: Sample,
    *,
    tau: float,
    kernel: OutputKernel | None = None,
    reference: ArrayLike | None = None,
    weighting: Weighting = "two-sided",
    leave_one_out: bool = False,
) -> GramTerms:
    """The three Gram terms behind :func:`conditional_divergence`, which documents the arguments."""
    kernel = kernel or OutputKernel()
    check_bandwidth("tau", tau)
    for what, left, right in (
        ("condition", p.condition, q.condition),
        ("output", p.output, q.output),
        ("categories", p.categories, q.categories),
    ):
        if left.shape[1] != right.shape[1]:
            raise ValueError(f"{what} has {left.shape[1]} columns in p and {right.shape[1]} in q")
    if reference is not None and weighting == "one-sided":
        raise ValueError("one-sided weights use the samples' own points: leave reference out")
    grid = _reference_points(p, q, reference)
    outputs = dict(zip("pq", scaled(p.output, q.output, kernel.sigmas(p.output.shape[1])), strict=True))
    samples = {"p": p, "q": q}

    def log_term(left: str, right: str) -> float:
        a, b = samples[left], samples[right]
        weights = pair_weights(a.condition, b.condition, tau, weighting, grid)
        if leave_one_out and left == right:
            np.fill_diagonal(weights, 0.0)
            if not weights.any():
                raise ValueError("leave-one-out leaves nothing: a sample has one point, or tau is too narrow")
            weights /= weights.sum()
        with np.errstate(divide="ignore"):
            log_weights = np.log(weights)
        log_weights += kernel.log_gate(a.categories, b.categories)
        value = float(log_weighted_gaussian_sum(log_weights, outputs[left], outputs[right]))
        if value == -np.inf and left == right:
            raise ValueError("leave-one-out leaves nothing: no two points of a sample share a category")
        return value

    bounded = weighting == "two-sided" and not leave_one_out
    return GramTerms(log_term("p", "p"), log_term("q", "q"), log_term("p", "q"), bounded)


def median_ridge(log_self_terms: ArrayLike, relative: float = RELATIVE_RIDGE) -> float:
    """The default ridge: ``relative`` times the median of the self-terms ``I_pp`` (given as logarithms)."""
    return float(relative * np.median(np.exp(np.asarray(log_self_terms, dtype=float))))


def check_ridge(ridge: float) -> float:
    """The ridge itself, or ``ValueError`` where it is negative or not finite."""
    if not (np.isfinite(ridge) and ridge >= 0):
        raise ValueError(f"ridge must be 0 or a positive finite number, got {ridge!r}")
    return ridge


def _reference_points(p: Sample, q: Sample, reference: ArrayLike | None) -> FloatArray:
    if reference is None:
        # A set, as in the paper: duplicating a sample must not move weight towards its conditions.
        return np.unique(np.vstack([p.condition, q.condition]), axis=0)
    grid = _table("reference", reference)
    if grid.shape[1] != p.condition.shape[1]:
        raise ValueError(f"reference has {grid.shape[1]} columns, conditions have {p.condition.shape[1]}")
    if not len(grid) or np.isnan(grid).any():
        raise ValueError("reference points must be at least one, none of them missing")
    return grid


def _table(name: str, values: ArrayLike) -> FloatArray:
    array = _columns(np.asarray(values, dtype=np.float64))
    if np.isinf(array).any():
        raise ValueError(f"{name} must be finite (or NaN for a missing value)")
    return array


def _columns(array: AnyArray) -> AnyArray:
    if array.ndim not in (1, 2):
        raise ValueError(f"expected a vector or a table, got {array.ndim} dimensions")
    return array[:, None] if array.ndim == 1 else array
