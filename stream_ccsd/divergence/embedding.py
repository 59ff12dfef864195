"""Series as vectors whose dot products are Gram terms ``I_pq``.

A conditional distribution at a reference point is a weighted mean of Fourier features. Stacked over all reference
points, it is one vector a series. The vectors come in blocks of columns, so that memory stays bounded whatever their
length: the Gram matrix is the sum over blocks of ``(left right^T + right left^T) / 2``. Components of a spectrum that
are only noise are left out; :func:`effective_rank` says how many a kernel matrix really has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count

import numpy as np
from numpy.typing import ArrayLike

from stream_ccsd.divergence.fourier import FourierFeatures
from stream_ccsd.divergence.kernels import Weighting, condition_weights, pair_weights
from stream_ccsd.divergence.series import SeriesTable
from stream_ccsd.numerics.arrays import MACHINE_EPSILON, PAIRWISE_BLOCK_BYTES, AnyArray, FloatArray


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


_FLOAT_BYTES = 8


@dataclass(frozen=True, eq=False)
class Block:
    """Some columns of the embedding of each table: ``left`` and, where it differs, ``right`` (else None)."""

    sign: float
    left: list[FloatArray]
    right: list[FloatArray] | None


@dataclass(frozen=True, eq=False)
class Embedding:
    """What turns tables of series into blocks of columns; ``blocks`` counts them for a progress bar."""

    blocks: int
    make: Callable[[list[SeriesTable]], Iterator[Block]]


@dataclass(frozen=True, eq=False)
class WeightSpectrum:
    """Eigenvalues and eigenvectors of the pair weights on a common time grid: one a time bandwidth."""

    values: FloatArray
    vectors: FloatArray

    @classmethod
    def of(cls, length: int, tau: float, weighting: Weighting) -> WeightSpectrum:
        """For the times ``0 .. length - 1``."""
        times = np.arange(length, dtype=float)[:, None]
        return cls(*np.linalg.eigh(pair_weights(times, times, tau, weighting, times)))


class Waves:
    """Cosines and sines of tables of series; kept for the next time bandwidth where memory allows."""

    def __init__(self, features: FourierFeatures, tables: list[SeriesTable], keep: bool) -> None:
        self.features = features
        numbers = 2 * len(features.weight) * sum(t.values.shape[0] * t.values.shape[1] for t in tables)
        self._keep = keep and _FLOAT_BYTES * numbers <= PAIRWISE_BLOCK_BYTES
        self._kept: dict[tuple[int, int], FloatArray] = {}

    def rows(self, table: SeriesTable, part: slice, first: int, last: int) -> FloatArray:
        """Waves ``(2, rows, last - first, T)`` of some series at the frequencies from ``first`` to ``last``."""
        if not self._keep:
            return self.features.waves(table.values[part], first, last)
        place = id(table), part.start
        if place not in self._kept:
            self._kept[place] = self.features.waves(table.values[part], 0, len(self.features.weight))
        return self._kept[place][:, :, first:last]

    def rows_at_once(self, length: int) -> int:
        """How many series to handle at once; does not depend on the time bandwidth."""
        return max(1, PAIRWISE_BLOCK_BYTES // (16 * _FLOAT_BYTES * length * len(self.features.weight)))


def shared_weights_embedding(waves: Waves, spectrum: WeightSpectrum, series: int, tolerance: float) -> Embedding:
    """For complete series: the pair weights are one matrix, whose eigenvectors compress the time axis.

    Products of an eigenvalue and a feature weight are left out from the smallest up, as long as no Gram term can
    change by more than ``tolerance``. One-sided weights can have negative eigenvalues; those columns are kept
    separate and subtracted.
    """
    eigenvalues, vectors = spectrum.values, spectrum.vectors
    length = len(eigenvalues)
    strength = np.abs(eigenvalues)[None, :] * waves.features.weight[:, None]
    # A product of strength s adds at most s * length to a Gram term.
    kept = kept_components(strength, tolerance / (length * strength.sum()))
    used = kept.any(axis=0)
    basis = _Basis(vectors[:, used], np.sqrt(strength[:, used]), kept[:, used], np.sign(eigenvalues[used]))
    widths = 2 * kept.sum(axis=1)
    ranges = _ranges_within(widths, max(1, PAIRWISE_BLOCK_BYTES // (_FLOAT_BYTES * max(1, series))))

    def make(tables: list[SeriesTable]) -> Iterator[Block]:
        for first, last in ranges:
            embedded = [_project(waves, basis, table, first, last) for table in tables]
            for sign in (1.0, -1.0):
                if embedded[0][sign].shape[1]:
                    yield Block(sign, [e[sign] for e in embedded], None)

    return Embedding(len(ranges), make)


def own_weights_embedding(
    features: FourierFeatures, length: int, tau: float, weighting: Weighting, series: int
) -> Embedding:
    """For series with missing values: each has weights of its own, so the time axis stays as it is."""
    times = np.arange(length, dtype=float)[:, None]
    step = int(np.clip(PAIRWISE_BLOCK_BYTES // (2 * _FLOAT_BYTES * features.size * max(1, series)), 1, length))
    ranges = [(first, min(first + step, length)) for first in range(0, length, step)]

    def make(tables: list[SeriesTable]) -> Iterator[Block]:
        for first, last in ranges:
            smooth = [_smoothed(features, times, tau, table, first, last) for table in tables]
            if weighting == "two-sided":
                yield Block(1.0 / length, smooth, None)
            else:
                yield Block(1.0, [_own_points(features, table, first, last) for table in tables], smooth)

    return Embedding(len(ranges), make)


@dataclass(frozen=True, eq=False)
class _Basis:
    vectors: FloatArray  # (T, r), eigenvectors of the pair weights
    root: FloatArray  # (f, r), square root of each product's strength
    kept: AnyArray  # (f, r)
    sign: FloatArray  # (r,)


def _project(waves: Waves, basis: _Basis, table: SeriesTable, first: int, last: int) -> dict[float, FloatArray]:
    """Waves of every series along the eigenvectors: the kept columns, by the sign they count with."""
    n, length, _ = table.values.shape
    columns = {s: np.flatnonzero(basis.kept[first:last] & (basis.sign == s)) for s in (1.0, -1.0)}
    root = basis.root[first:last].ravel()
    out = {s: np.empty((n, 2 * len(c))) for s, c in columns.items()}
    rows = waves.rows_at_once(length)

    def work(start: int) -> None:
        part = slice(start, start + rows)
        straight = waves.rows(table, part, first, last)
        turned = (straight.reshape(-1, length) @ basis.vectors).reshape(2, straight.shape[1], -1)
        for s, column in columns.items():
            for half in range(2):
                target = out[s][part, half * len(column) : (half + 1) * len(column)]
                np.multiply(turned[half][:, column], root[column], out=target)

    with ThreadPoolExecutor(cpu_count()) as pool:
        list(pool.map(work, range(0, n, rows)))
    return out


def _smoothed(
    features: FourierFeatures, times: FloatArray, tau: float, table: SeriesTable, first: int, last: int
) -> FloatArray:
    out = np.empty((len(table), last - first, features.size))
    for i, seen in enumerate(table.observed):
        weights = condition_weights(times[first:last], times[seen], tau)
        out[i] = weights @ features.transform(table.values[i, seen])
    return out.reshape(len(table), -1)


def _own_points(features: FourierFeatures, table: SeriesTable, first: int, last: int) -> FloatArray:
    points = table.values[:, first:last].reshape(-1, table.dimensions)
    own = features.transform(points).reshape(len(table), last - first, features.size)
    share = table.observed[:, first:last] / table.observed.sum(axis=1, keepdims=True)
    return (own * share[:, :, None]).reshape(len(table), -1)


def _ranges_within(widths: FloatArray, limit: int) -> list[tuple[int, int]]:
    """Consecutive ranges of frequencies whose columns together stay within the limit, at least one each."""
    ranges, first, total = [], 0, 0
    for f, width in enumerate(widths):
        if f > first and total + width > limit:
            ranges.append((first, f))
            first, total = f, 0
        total += int(width)
    return [*ranges, (first, len(widths))]
