"""Gram terms of listed pairs of series by the direct double sum: the exact resort of the fast form."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from os import cpu_count

import numpy as np

from stream_ccsd.compiling import compiled
from stream_ccsd.divergence.kernels import log_weighted_gaussian_sum, scaled
from stream_ccsd.divergence.series import SeriesTable
from stream_ccsd.divergence.weights import Weighting, pair_weights
from stream_ccsd.numeric import AnyArray, FloatArray, IntArray
from stream_ccsd.progress import Progress


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
