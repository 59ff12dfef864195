"""Weights of the condition space: how much each observed point speaks for a reference point."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.spatial.distance import cdist

from stream_ccsd.divergence.kernels import check_bandwidth, scaled
from stream_ccsd.numeric import FloatArray

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

    ``two-sided`` is ``A^T B / n_r`` of Eq. 3: both laws are smoothed towards the reference points.
    ``one-sided`` lets the points of one law stand for themselves and smooths only the other, averaged over
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
