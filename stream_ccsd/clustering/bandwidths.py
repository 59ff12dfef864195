"""What of a series is compared, and the grid of bandwidths to choose from.

The output is a series' value, its slope, or both. :class:`DivergenceMatrices` computes the divergence of all pairs at
each point of the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from stream_ccsd.divergence.embedding import effective_rank
from stream_ccsd.divergence.kernels import Weighting, iqr_bandwidth, time_bandwidth
from stream_ccsd.divergence.pairwise import PairwiseDivergence
from stream_ccsd.divergence.series import padded_rows
from stream_ccsd.files import Progress
from stream_ccsd.numerics.arrays import FloatArray

Output = Literal["value", "slope", "both", "vector"]


def series_array(series: ArrayLike | Sequence[ArrayLike]) -> FloatArray:
    """Series of equal or unequal lengths as one array ``(n, T)``, NaN where a series has no value."""
    if isinstance(series, np.ndarray):
        table = np.asarray(series, dtype=np.float64)
    else:
        rows = [np.asarray(row, dtype=np.float64).ravel() for row in series]  # type: ignore[union-attr]
        table = padded_rows(rows) if rows else np.empty((0, 0))
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(f"expected series of one value a time, as an array (series, time), got shape {table.shape}")
    return table


def check_series(table: FloatArray) -> FloatArray:
    """The same, if each series can be compared; NaN is a value that is missing, and some may be.

    Raises
    ------
    ValueError
        If one has an infinite value or none at all; it is named by its place, from 0.
    """
    infinite = np.isinf(table).any(axis=1)
    if infinite.any():
        raise ValueError(f"series {int(np.argmax(infinite))} holds an infinite value: leave it out, or mark it missing")
    empty = np.isnan(table).all(axis=1)
    if empty.any():
        raise ValueError(f"series {int(np.argmax(empty))} has no value, only missing ones: leave it out")
    return table


def standardised(series: FloatArray) -> FloatArray:
    """Each series with mean 0 and deviation 1, missing values left out; a constant one becomes 0.

    >>> standardised(np.array([[1.0, 3.0, np.nan], [2.0, 2.0, 2.0]]))
    array([[-1.,  1., nan],
           [ 0.,  0.,  0.]])
    """
    seen = ~np.isnan(series)
    level = np.abs(np.where(seen, series, 0.0)).max(axis=1, keepdims=True)
    # By a power of two, which changes no digit: squares of tiny or huge values would be 0 or infinite.
    series = np.ldexp(series, -np.frexp(level)[1])
    level = np.abs(np.where(seen, series, 0.0)).max(axis=1, keepdims=True)
    count = np.maximum(seen.sum(axis=1, keepdims=True), 1)
    centred = series - np.where(seen, series, 0.0).sum(axis=1, keepdims=True) / count
    deviation = np.sqrt(np.square(np.where(seen, centred, 0.0)).sum(axis=1, keepdims=True) / count)
    # A constant series has a deviation of rounding only: dividing by it would blow rounding up to shapes.
    flat = deviation <= 1e-12 * np.maximum(level, np.finfo(float).tiny)
    return np.where(flat, centred * 0.0, centred / np.where(flat, 1.0, deviation))


def slope(series: FloatArray) -> FloatArray:
    """The change per time around each value, from its neighbours in time, standardised as values are.

    Across a gap the neighbours are more distant in time; a series of one value has slope 0.

    >>> slope(np.array([[0.0, 1.0, 2.0, np.nan, 2.0, 1.0]])).round(3)
    array([[ 0.931,  0.931,  0.543,    nan, -1.009, -1.397]])
    """
    if not np.isnan(series).any() and series.shape[1] > 1:
        return standardised(np.gradient(series, axis=1))
    slopes = np.full_like(series, np.nan)
    times = np.arange(series.shape[1], dtype=float)
    for row, seen, out in zip(series, ~np.isnan(series), slopes, strict=True):
        out[seen] = np.gradient(row[seen], times[seen]) if seen.sum() > 1 else 0.0
    return standardised(slopes)


# The paper's grids: a share of the length up to 1 and steps above it; multiples of the robust scale sigma_0.
TAUS = (0.05, 0.10, 0.15, 0.20, 2.0, 5.0, 10.0, 20.0)
PAPER_MULTIPLES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
# One finer: on slopes, training parts of the UCR archive prefer the paper's finest so often that it is no end.
MULTIPLES = (0.25, *PAPER_MULTIPLES)

# Series on which the effective rank of the output kernel is looked at; the paper names none in particular.
_RANK_SAMPLE = 8


@dataclass(frozen=True)
class Bandwidths:
    """What is compared, and the bandwidths: ``tau`` in steps or as a share of the length, ``sigma`` a compared part."""

    output: Output
    tau: float
    sigma: float | None  # of the values; None where only slopes are compared
    slope_sigma: float | None = None

    def parts(self) -> tuple[Bandwidths, ...]:
        """Value and slope separately, where both are compared and added."""
        if self.output != "both":
            return (self,)
        return replace(self, output="value", slope_sigma=None), replace(self, output="slope", sigma=None)


def bandwidth_grid(
    series: FloatArray, outputs: Sequence[Output], taus: Sequence[float] = TAUS, multiples: Sequence[float] = MULTIPLES
) -> list[Bandwidths]:
    """Points of the grid whose kernels are neither all ones nor all identity: ``2 < effective rank < 0.95 T``.

    Sorted so that :class:`DivergenceMatrices` can reuse most. Where the filter would leave nothing of an output (very
    short series), that output keeps its whole grid.
    """
    length = series.shape[1]
    parts = {"value": series} | ({"slope": slope(series)} if set(outputs) - {"value"} else {})
    scale = {name: _scale(part) for name, part in parts.items()}
    sound_tau = {tau: _sound(_gram(np.arange(length, dtype=float), time_bandwidth(tau, length))) for tau in taus}
    sound_sigma = {
        (name, m): _sound(*(_gram(row[~np.isnan(row)], m * scale[name]) for row in _spread(part)))
        for name, part in parts.items()
        for m in multiples
    }
    points, sound = [], []
    for m, tau, output in product(multiples, taus, outputs):
        names = ("value", "slope") if output in ("both", "vector") else (output,)
        sigma, slope_sigma = (m * scale[name] if name in names else None for name in ("value", "slope"))
        points.append(Bandwidths(output, tau, sigma, slope_sigma))
        sound.append(sound_tau[tau] and all(sound_sigma[name, m] for name in names))
    lost = set(outputs) - {p.output for p, good in zip(points, sound, strict=True) if good}
    return [p for p, good in zip(points, sound, strict=True) if good or p.output in lost]


class DivergenceMatrices:
    """The divergence between all pairs of the same series at many bandwidths, value and slope computed once each."""

    def __init__(
        self, series: FloatArray, other: FloatArray | None = None, *, weighting: Weighting = "two-sided"
    ) -> None:
        self._series = [s for s in (series, other) if s is not None]
        self._weighting: Weighting = weighting
        self._length = series.shape[1]  # what a share of the length refers to, whatever the others' lengths
        self._grids: dict[Output, PairwiseDivergence] = {}
        self._last: dict[Output, tuple[Bandwidths, FloatArray]] = {}

    def at(self, bandwidths: Bandwidths, progress: Progress | None = None) -> FloatArray:
        """The matrix at these bandwidths; ``both`` is the sum of the divergences of value and slope."""
        parts = [self._part(part, progress) for part in bandwidths.parts()]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    def _part(self, bandwidths: Bandwidths, progress: Progress | None) -> FloatArray:
        output = bandwidths.output
        if output not in self._last or self._last[output][0] != bandwidths:
            self._last.pop(output, None)  # frees it before the next is made
            if output not in self._grids:
                series = [_compared(s, output) for s in self._series]
                self._grids[output] = PairwiseDivergence(*series, weighting=self._weighting)
            sigmas = [s for s in (bandwidths.sigma, bandwidths.slope_sigma) if s is not None]
            matrix = self._grids[output].at(time_bandwidth(bandwidths.tau, self._length), sigmas, progress)
            self._last[output] = bandwidths, matrix
        return self._last[output][1]


def _scale(part: FloatArray) -> float:
    """The robust scale sigma_0; where more than half of all values are equal, the deviation, or 1 if all are."""
    try:
        return iqr_bandwidth(part)
    except ValueError:
        return float(np.nanstd(part)) or 1.0


def _compared(series: FloatArray, output: Output) -> FloatArray:
    if output == "value":
        return series
    return slope(series) if output == "slope" else np.stack([series, slope(series)], axis=2)


def _gram(points: FloatArray, bandwidth: float) -> FloatArray:
    return np.exp(-0.5 * ((points[:, None] - points) / bandwidth) ** 2)


def _sound(*grams: FloatArray) -> bool:
    """Whether the effective rank, the median of several, is far from both degenerate ends."""
    ranks = np.array([effective_rank(gram) for gram in grams])
    shares = ranks / [len(gram) for gram in grams]
    return bool(np.median(ranks) > 2 and np.median(shares) < 0.95)


def _spread(series: FloatArray) -> FloatArray:
    return series[np.unique(np.linspace(0, len(series) - 1, _RANK_SAMPLE).astype(int))]
