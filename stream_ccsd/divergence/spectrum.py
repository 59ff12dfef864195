"""How many directions a kernel matrix really has, and leaving out the ones that are only noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from stream_ccsd.numeric import MACHINE_EPSILON, FloatArray


def effective_rank(gram: ArrayLike) -> float:
    r"""Exponential of the spectral entropy, :math:`\exp(-\sum_k p_k \log p_k)`, ``p`` the eigenvalue shares.

    1 for a matrix of ones (a bandwidth so wide that all is alike), ``n`` for the identity (so narrow that
    nothing is). Eigenvalues below 0 are rounding and count as 0.

    Raises
    ------
    ValueError
        If the matrix is not square and symmetric, holds a value that is not finite, or has no positive eigenvalue.

    >>> effective_rank(np.eye(4))
    4.0
    >>> round(effective_rank(np.ones((4, 4))), 12)
    1.0
    """
    eigenvalues = np.clip(np.linalg.eigvalsh(_symmetric(gram)), 0.0, None)
    total = eigenvalues.sum()
    if not total > 0:
        raise ValueError("the effective rank needs a positive eigenvalue")
    share = eigenvalues[eigenvalues > 0] / total
    return float(np.exp(-np.sum(share * np.log(share))))


def cut_spectrum(gram: ArrayLike, drop: float = 1e-10) -> FloatArray:
    """The same matrix without its weakest components, which together hold at most ``drop`` of the variance.

    Raises
    ------
    ValueError
        If ``drop`` is not in ``[0, 1)``, or the matrix is refused by :func:`effective_rank`.

    >>> cut_spectrum(np.diag([1.0, 1e-14]))
    array([[1., 0.],
           [0., 0.]])
    """
    if not 0 <= drop < 1:
        raise ValueError(f"drop must lie in [0, 1), got {drop!r}")
    eigenvalues, vectors = np.linalg.eigh(_symmetric(gram))
    kept = kept_components(np.clip(eigenvalues, 0.0, None), drop)
    result: FloatArray = (vectors[:, kept] * eigenvalues[kept]) @ vectors[:, kept].T
    return result


def kept_components(strengths: FloatArray, drop: float) -> FloatArray:
    """Mask of the components that stay when the weakest, at most ``drop`` of the sum, are left out."""
    order = np.argsort(strengths, axis=None)
    below = np.cumsum(strengths.ravel()[order]) <= drop * strengths.sum()
    kept = np.ones(strengths.size, dtype=bool)
    kept[order[below]] = False
    return kept.reshape(strengths.shape)


def _symmetric(gram: ArrayLike) -> FloatArray:
    matrix = np.asarray(gram, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise ValueError(f"expected a square matrix, got shape {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise ValueError("the matrix holds a value that is not finite")
    if not np.allclose(matrix, matrix.T, atol=64 * MACHINE_EPSILON * np.abs(matrix).max()):
        raise ValueError("the matrix is not symmetric")
    return matrix
