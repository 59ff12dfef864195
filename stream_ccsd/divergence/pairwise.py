"""The divergence between all pairs of many series, as one matrix product.

Pairs for which the product does not have the digits are computed again by the direct double sum, which is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg.blas import dgemm, dsyr2k, dsyrk

from stream_ccsd.divergence.embedding import (
    Embedding,
    Waves,
    WeightSpectrum,
    own_weights_embedding,
    shared_weights_embedding,
)
from stream_ccsd.divergence.estimator import check_ridge, median_ridge
from stream_ccsd.divergence.fourier import FourierFeatures, TooManyFrequenciesError
from stream_ccsd.divergence.kernels import (
    OutputKernel,
    Weighting,
    check_bandwidth,
    log_weighted_gaussian_sum,
    pair_weights,
    scaled,
)
from stream_ccsd.divergence.series import SeriesTable
from stream_ccsd.files import Progress
from stream_ccsd.numerics.arrays import MACHINE_EPSILON, PAIRWISE_TOLERANCE, AnyArray, FloatArray, IntArray
from stream_ccsd.numerics.compiling import compiled


class DirectForm:
    """The double sum for any list of pairs, on all cores."""

    def __init__(self, tables: list[SeriesTable], tau: float, sigmas: FloatArray, weighting: Weighting) -> None:
        dimensions = tables[0].dimensions
        flat = scaled(tables[0].values.reshape(-1, dimensions), tables[-1].values.reshape(-1, dimensions), sigmas)
        # A single table is compared with itself: both ends of the list are it.
        self.values = [f.reshape(t.values.shape) for f, t in zip(flat, (tables[0], tables[-1]), strict=True)]
        self.observed = [tables[0].observed, tables[-1].observed]
        self.alone = len(tables) == 1
        self.complete = all(t.complete for t in tables)
        self.times = np.arange(tables[0].length, dtype=float)[:, None]
        self.tau, self.weighting = tau, weighting

    def log_terms(
        self, rows: IntArray, columns: IntArray, which: tuple[int, int], progress: Progress | None = None
    ) -> FloatArray:
        """``log I`` for each pair of a row of table ``which[0]`` and a row of table ``which[1]``."""
        out = np.empty(len(rows))
        if not len(rows):
            return out
        shared = self._log_weights(None, None) if self.complete else None
        chunk = 256
        starts = range(0, len(rows), chunk)

        def work(start: int) -> None:
            part = slice(start, start + chunk)
            if shared is not None:
                a, b = self.values[which[0]], self.values[which[1]]
                _log_terms_of_pairs(shared, a, b, rows[part], columns[part], out[part])
                return
            for k in range(start, min(start + chunk, len(rows))):
                seen = self.observed[which[0]][rows[k]], self.observed[which[1]][columns[k]]
                a, b = self.values[which[0]][rows[k], seen[0]], self.values[which[1]][columns[k], seen[1]]
                out[k] = log_weighted_gaussian_sum(self._log_weights(*seen), a, b)

        with ThreadPoolExecutor(cpu_count()) as pool:
            for done, _ in enumerate(pool.map(work, starts), start=1):
                if progress:
                    progress(done, len(starts))
        return out

    def log_self_terms(self, which: int) -> FloatArray:
        """``log I`` of every series of one table with itself."""
        every = np.arange(len(self.values[which]))
        return self.log_terms(every, every, (which, which))

    def log_matrix(self, progress: Progress | None = None) -> FloatArray:
        """``log I`` of all pairs; for a single table each pair is summed once."""
        n, m = len(self.values[0]), len(self.values[1])
        i, j = np.triu_indices(n) if self.alone else tuple(a.ravel() for a in np.indices((n, m)))
        result = np.empty((n, m))
        result[i, j] = self.log_terms(i, j, (0, 1), progress)
        if self.alone:
            result[j, i] = result[i, j]
        return result

    def _log_weights(self, seen_p: AnyArray | None, seen_q: AnyArray | None) -> FloatArray:
        p = self.times if seen_p is None else self.times[seen_p]
        q = self.times if seen_q is None else self.times[seen_q]
        with np.errstate(divide="ignore"):
            return np.log(pair_weights(p, q, self.tau, self.weighting, self.times))


@compiled()
def _log_terms_of_pairs(
    log_weights: FloatArray, p: FloatArray, q: FloatArray, rows: IntArray, columns: IntArray, out: FloatArray
) -> None:
    for k in range(len(rows)):
        out[k] = log_weighted_gaussian_sum(log_weights, p[rows[k]], q[columns[k]])


# Gram terms lie between 0 and 1. The product is made exact enough for terms down to this one; smaller ones, whose
# logarithm would need more digits than the product has, are summed directly. A pair that distant has a divergence of
# some 7 nats or more, so there are few of them at any bandwidth worth using.
_SMALLEST_TERM = 1e-3

# Rows handled at once where a temporary of the whole matrix would double the memory.
_ROWS = 256


def pairwise_divergence(
    series: ArrayLike | Sequence[ArrayLike],
    other: ArrayLike | Sequence[ArrayLike] | None = None,
    *,
    tau: float,
    sigma: float | Sequence[float] = 1.0,
    weighting: Weighting = "two-sided",
    ridge: float | None = None,
    tolerance: float = PAIRWISE_TOLERANCE,
    progress: Progress | None = None,
) -> FloatArray:
    r"""C-CSD between all pairs of series, conditioned on the time index, in nats.

    Entry ``i, j`` is :func:`~stream_ccsd.divergence.conditional_divergence` of the samples ``(t, y_i(t))`` and
    ``(t, y_j(t))`` with the common time grid as reference points. With Fourier features ``phi`` of the Gaussian,
    a series is the vector :math:`\mu(l) = \sum_t A_{lt} \phi(y_t)` and all Gram terms are one matrix product.
    The features are exact to rounding; pairs whose Gram term is too small for ``tolerance`` to be promised, and
    bandwidths that would need an absurd number of features, are computed by the direct double sum instead.

    Parameters
    ----------
    series
        ``(n, T)``, ``(n, T, d)`` for vector outputs, or a sequence of series of unequal lengths. NaN: no weight.
    other
        Compare with these instead of among themselves; the result is ``(n, m)``.
    tau
        Bandwidth of the time kernel in steps (:func:`time_bandwidth` turns shares of the length into steps).
    sigma
        Bandwidth of the Gaussian on the values, one or one for each dimension.
    weighting
        ``two-sided`` (Eq. 3 of the paper) or ``one-sided`` (its Table 1, may dip below 0).
    ridge
        One ridge for the whole matrix; by default relative to the median self-term of ``series``.
    tolerance
        Largest absolute error of an entry, in nats.
    progress
        Called with ``(done, total)`` steps.

    Raises
    ------
    ValueError
        For bandwidths, a ridge or a tolerance out of range, or series that cannot be compared.

    Examples
    --------
    >>> t = np.linspace(0, 6, 60)
    >>> D = pairwise_divergence([np.sin(t), np.sin(t + 0.1), np.cos(t)], tau=3.0)
    >>> D.round(4)
    array([[0.    , 0.002 , 0.3722],
           [0.002 , 0.    , 0.3391],
           [0.3722, 0.3391, 0.    ]])
    """
    grid = PairwiseDivergence(series, other, weighting=weighting, ridge=ridge, tolerance=tolerance, keep=False)
    return grid.at(tau, sigma, progress)


class PairwiseDivergence:
    """All pairs of the same series at many bandwidths; arguments as in :func:`pairwise_divergence`.

    The weights of each ``tau`` are decomposed once, and the features of the last ``sigma`` are kept where memory
    allows: loop over ``sigma`` outside and ``tau`` inside.

    >>> t = np.linspace(0, 6, 60)
    >>> grid = PairwiseDivergence([np.sin(t), np.cos(t)])
    >>> [round(float(grid.at(tau, sigma)[0, 1]), 3) for sigma in (0.5, 1.0) for tau in (2.0, 8.0)]
    [1.04, 0.407, 0.404, 0.203]
    """

    def __init__(
        self,
        series: ArrayLike | Sequence[ArrayLike],
        other: ArrayLike | Sequence[ArrayLike] | None = None,
        *,
        weighting: Weighting = "two-sided",
        ridge: float | None = None,
        tolerance: float = PAIRWISE_TOLERANCE,
        keep: bool = True,
    ) -> None:
        if not (np.isfinite(tolerance) and tolerance > 0):
            raise ValueError(f"tolerance must be positive, got {tolerance!r}")
        if ridge is not None:
            check_ridge(ridge)
        self.tables = _tables(series, other)
        self.weighting, self.ridge, self.tolerance = weighting, ridge, tolerance
        self._keep = keep
        self._spectra: dict[float, WeightSpectrum] = {}
        self._waves: tuple[bytes, Waves] | None = None

    def at(self, tau: float, sigma: float | Sequence[float] = 1.0, progress: Progress | None = None) -> FloatArray:
        """The matrix of divergences at these bandwidths."""
        check_bandwidth("tau", tau)
        tables, tolerance = self.tables, self.tolerance
        sigmas = OutputKernel(sigma=sigma).sigmas(tables[0].dimensions)
        direct = DirectForm(tables, tau, sigmas, self.weighting)
        gram_error = max(MACHINE_EPSILON / 2, tolerance * _SMALLEST_TERM / 4)
        try:
            waves = self._waves_of(sigmas, gram_error)
        except TooManyFrequenciesError:
            log_self = [direct.log_self_terms(which) for which in range(len(tables))]
            e = median_ridge(log_self[0]) if self.ridge is None else self.ridge
            log_gram = np.logaddexp(direct.log_matrix(progress), _log(e))
        else:
            embedding = self._embedding(waves, tau, gram_error)
            smallest = max(_SMALLEST_TERM, 64 * MACHINE_EPSILON / tolerance)
            gram, self_terms = _gram_matrix(embedding, tables, progress)
            log_self = [_log_self_terms(terms, direct, k, smallest) for k, terms in enumerate(self_terms)]
            e = median_ridge(log_self[0]) if self.ridge is None else self.ridge
            log_gram = _log_gram(gram, direct, e, smallest)
        return _divergences(log_gram, log_self, e, self.weighting)

    def _waves_of(self, sigmas: FloatArray, tolerance: float) -> Waves:
        key = sigmas.tobytes()
        if self._waves is None or self._waves[0] != key:
            self._waves = None  # frees the last ones before the next are made
            self._waves = key, Waves(_features(self.tables, sigmas, tolerance), self.tables, self._keep)
        return self._waves[1]

    def _embedding(self, waves: Waves, tau: float, tolerance: float) -> Embedding:
        length, series = self.tables[0].length, sum(len(t) for t in self.tables)
        if not all(t.complete for t in self.tables):
            return own_weights_embedding(waves.features, length, tau, self.weighting, series)
        spectrum = self._spectra.get(tau) or WeightSpectrum.of(length, tau, self.weighting)
        if self._keep:
            self._spectra[tau] = spectrum
        return shared_weights_embedding(waves, spectrum, series, tolerance)


def _tables(
    series: ArrayLike | Sequence[ArrayLike], other: ArrayLike | Sequence[ArrayLike] | None
) -> list[SeriesTable]:
    tables = [SeriesTable.of(series)] if other is None else [SeriesTable.of(series), SeriesTable.of(other)]
    if len({t.dimensions for t in tables}) > 1:
        raise ValueError("both sets of series must have the same number of values a time")
    length = max(t.length for t in tables)
    return [t if t.length == length else t.padded(length) for t in tables]


def _features(tables: list[SeriesTable], sigmas: FloatArray, tolerance: float) -> FourierFeatures:
    points = [t.points() for t in tables]
    low = np.min([p.min(axis=0) for p in points], axis=0)
    high = np.max([p.max(axis=0) for p in points], axis=0)
    return FourierFeatures.for_box(low, high, sigmas, tolerance=min(tolerance, 0.1))


def _gram_matrix(
    embedding: Embedding, tables: list[SeriesTable], progress: Progress | None
) -> tuple[FloatArray, list[FloatArray]]:
    """All Gram terms (of one table with itself: the upper triangle) and the self-terms of each table."""
    rows, columns = tables[0], tables[-1]
    gram = np.zeros((len(rows), len(columns)))
    self_terms = [np.zeros(len(t)) for t in tables]
    for done, block in enumerate(embedding.make(tables), start=1):
        right = block.right or block.left
        for terms, one, two in zip(self_terms, block.left, right, strict=True):
            terms += block.sign * np.einsum("ij,ij->i", one, two)
        # BLAS counts columns first: to it a C-ordered array is its own transpose, the result included.
        a, b = [x.T for x in block.left], [x.T for x in right]
        half, c = 0.5 * block.sign, gram.T
        if len(tables) == 2:
            dgemm(half, b[1], a[0], 1.0, c, trans_a=1, overwrite_c=1)
            dgemm(half, a[1], b[0], 1.0, c, trans_a=1, overwrite_c=1)
        elif block.right is None:
            dsyrk(block.sign, a[0], 1.0, c, trans=1, lower=1, overwrite_c=1)
        else:
            dsyr2k(half, a[0], b[0], 1.0, c, trans=1, lower=1, overwrite_c=1)
        if progress:
            progress(min(done, embedding.blocks), embedding.blocks)
    return gram, self_terms


def _log_gram(gram: FloatArray, direct: DirectForm, ridge: float, smallest: float) -> FloatArray:
    """``log(I + ridge)``, in place; terms below ``smallest`` are redone by the direct form."""
    rows, columns = [], []
    for part, first in _strips(gram, direct.alone):
        part += ridge
        i, j = np.nonzero(part < smallest)
        np.log(np.maximum(part, np.finfo(float).tiny, out=part), out=part)
        rows.append(i + first)
        columns.append(j + (first if direct.alone else 0))
    i, j = np.concatenate(rows), np.concatenate(columns)
    if direct.alone:  # a strip's first square reaches below the diagonal, where nothing was computed
        i, j = i[i < j], j[i < j]
    gram[i, j] = np.logaddexp(direct.log_terms(i, j, (0, 1)), _log(ridge))
    return gram


def _log_self_terms(terms: FloatArray, direct: DirectForm, which: int, smallest: float) -> FloatArray:
    weak = terms < smallest
    logs: FloatArray = np.log(np.where(weak, 1.0, terms))
    rows = np.flatnonzero(weak)
    logs[rows] = direct.log_terms(rows, rows, (which, which))
    return logs


def _divergences(log_gram: FloatArray, log_self: list[FloatArray], ridge: float, weighting: Weighting) -> FloatArray:
    """The symmetric logarithm of the whole matrix, in place; its floor is that of ``GramTerms.divergence``."""
    alone = len(log_self) == 1
    left, right = (0.5 * np.logaddexp(log_self[which], _log(ridge)) for which in (0, -1))
    for part, first in _strips(log_gram, alone):
        np.subtract(right[first if alone else 0 :][None, :], part, out=part)
        part += left[first : first + len(part), None]
        if weighting == "two-sided":
            np.maximum(part, 0.0, out=part)
    if alone:
        np.fill_diagonal(log_gram, 0.0)
        _mirror(log_gram)
    return log_gram


def _strips(matrix: FloatArray, upper: bool) -> Iterator[tuple[FloatArray, int]]:
    """Strips of rows and the first row of each; of a symmetric matrix only from the diagonal on."""
    for first in range(0, len(matrix), _ROWS):
        yield matrix[first : first + _ROWS, first if upper else 0 :], first


def _mirror(matrix: FloatArray, block: int = 512) -> None:
    """Copy the upper triangle onto the lower, by squares that fit in the cache."""
    n = len(matrix)
    for i in range(0, n, block):
        square = matrix[i : i + block, i : i + block]
        square[:] = np.triu(square) + np.triu(square, 1).T
        for j in range(i + block, n, block):
            matrix[j : j + block, i : i + block] = matrix[i : i + block, j : j + block].T


def _log(ridge: float) -> float:
    return float(np.log(ridge)) if ridge > 0 else -np.inf
