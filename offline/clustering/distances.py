"""Distances with their grids: C-CSD on value, slope or both, and Euclid, DTW and MSM beside it.

Distance matrices that took minutes are kept for the next run.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
from scipy.spatial.distance import squareform

from offline.peers import peer
from stream_ccsd.clustering.bandwidths import MULTIPLES, Bandwidths, DivergenceMatrices, Output, bandwidth_grid, slope
from stream_ccsd.clustering.medoids import PLAIN, Geometry
from stream_ccsd.divergence.kernels import Weighting
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import replacing
from stream_ccsd.numerics.arrays import FloatArray

Distance = Literal["ccsd", "dtw", "msm", "ed"]
DISTANCES: tuple[Distance, ...] = ("ccsd", "dtw", "msm", "ed")

# Sakoe-Chiba windows of the paper, |i - j| <= w; None is no window.
WINDOWS = (None, 5, 10, 20, 30)
# What a split or merge costs; the range of MSM's authors.
MSM_COSTS = (0.01, 0.1, 1.0, 10.0, 100.0)


@dataclass(frozen=True)
class Setting:
    """A distance, what of the series it compares, and its parameters."""

    distance: Distance
    output: Output = "value"
    weights: Weighting | None = None
    bandwidths: Bandwidths | None = None
    geometry: Geometry = PLAIN
    window: int | None = None
    cost: float | None = None

    def described(self) -> dict[str, Any]:
        """For people and JSON: what applies to this distance."""
        facts: dict[str, Any] = {"distance": self.distance, "output": self.output}
        if self.bandwidths is not None:
            b = self.bandwidths
            facts |= {"weights": self.weights, "tau": b.tau, "sigma": b.slope_sigma if b.sigma is None else b.sigma}
            if b.sigma is not None and b.slope_sigma is not None:
                facts["slope_sigma"] = b.slope_sigma
        if self.geometry != PLAIN:
            facts |= {"root": self.geometry.root, "neighbours": self.geometry.neighbours}
        if self.distance == "dtw":
            facts["window"] = self.window
        if self.distance == "msm":
            facts["cost"] = self.cost
        return facts


def grid(
    distance: Distance,
    train: FloatArray,
    outputs: Sequence[Output],
    weights: Weighting,
    multiples: Sequence[float] = MULTIPLES,
) -> list[Setting]:
    """All settings to choose among, from the training series alone. A baseline compares value or slope, not both."""
    if distance == "ccsd":
        return [Setting("ccsd", b.output, weights, b) for b in bandwidth_grid(train, outputs, multiples=multiples)]
    alone: list[Output] = [output for output in outputs if output in ("value", "slope")] or ["value"]
    if distance == "dtw":
        return [Setting("dtw", output, window=w) for output in alone for w in WINDOWS]
    if distance == "msm":
        return [Setting("msm", output, cost=c) for output in alone for c in MSM_COSTS]
    return [Setting("ed", output) for output in alone]


def matrices(settings: Sequence[Setting], series: FloatArray) -> Iterator[tuple[Setting, FloatArray]]:
    """Each setting with its distance matrix of these series."""
    divergence: dict[Weighting, DivergenceMatrices] = {}
    for setting in settings:
        if setting.bandwidths is not None and setting.weights is not None:
            if setting.weights not in divergence:
                divergence[setting.weights] = DivergenceMatrices(series, weighting=setting.weights)
            yield setting, setting.geometry.of(divergence[setting.weights].at(setting.bandwidths))
        else:
            compared = slope(series) if setting.output == "slope" else series
            yield setting, _BASELINES[setting.distance](compared, setting)


def _euclidean(series: FloatArray, setting: Setting) -> FloatArray:
    """Over the times both series have, scaled up to the whole length."""
    del setting
    seen = ~np.isnan(series)
    values, count = np.where(seen, series, 0.0), seen.astype(float)
    squares = (values**2) @ count.T
    total = squares + squares.T - 2 * values @ values.T
    shared = count @ count.T
    if not shared.all():
        raise StreamCcsdError("the Euclidean distance needs series that have times in common")
    distances = np.sqrt(np.maximum(total, 0.0) * series.shape[1] / shared)
    np.fill_diagonal(distances, 0.0)
    return np.maximum(distances, distances.T)


def _dtw(series: FloatArray, setting: Setting) -> FloatArray:
    # dtaidistance counts the diagonal as part of the window. Missing values are skipped, as time gaps are in DTW.
    window = None if setting.window is None else setting.window + 1
    rows = _rows(series)
    if len({len(row) for row in rows}) == 1:
        rows = np.ascontiguousarray(rows)  # type: ignore[assignment]
    upper = peer("dtaidistance.dtw").distance_matrix_fast(rows, window=window, parallel=True, compact=False)
    upper = np.where(np.isfinite(upper), upper, 0.0)
    return np.maximum(upper, upper.T)


def _msm(series: FloatArray, setting: Setting) -> FloatArray:
    rows = _rows(series)
    equal = len({len(row) for row in rows}) == 1
    collection = np.array(rows)[:, None, :] if equal else [row[None, :] for row in rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numba's notes on aeon's loop counters
        return np.asarray(peer("aeon.distances").msm_pairwise_distance(collection, c=setting.cost, n_jobs=-1))


def _rows(series: FloatArray) -> list[FloatArray]:
    return [row[~np.isnan(row)] for row in series]


_BASELINES: dict[Distance, Callable[[FloatArray, Setting], FloatArray]] = {
    "ed": _euclidean,
    "dtw": _dtw,
    "msm": _msm,
}


# Raised when a distance changes its meaning, so that what was kept before is not taken for it.
_VERSION = 1

# The divergence is quicker to compute than to read back.
_KEPT = ("dtw", "msm")


class MatrixCache:
    """Matrices of the elastic baselines in a folder, each named by its series and setting; None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = None if folder is None else folder / "matrices"

    def matrices(self, settings: Sequence[Setting], series: FloatArray) -> Iterator[tuple[Setting, FloatArray, float]]:
        """Each setting with its matrix and the seconds that took when it was computed."""
        pending: list[Setting] = []
        places = {s: self._place(s, series) for s in settings}
        # Neighbouring settings of the divergence share work: they go through in one run.
        for setting in settings:
            place = places[setting]
            if place is None:
                pending.append(setting)
                continue
            yield from _timed(pending, series)
            pending = []
            if place.is_file():
                with np.load(place, allow_pickle=False) as kept:
                    yield setting, squareform(kept["distances"], checks=False), float(kept["seconds"])
                continue
            for _, matrix, seconds in _timed([setting], series):
                place.parent.mkdir(parents=True, exist_ok=True)
                with replacing(place) as temporary, temporary.open("wb") as file:
                    np.savez(file, distances=squareform(matrix, checks=False), seconds=seconds)
                yield setting, matrix, seconds
        yield from _timed(pending, series)

    def _place(self, setting: Setting, series: FloatArray) -> Path | None:
        if self.folder is None or setting.distance not in _KEPT:
            return None
        digest = hashlib.sha256(np.ascontiguousarray(series).tobytes())
        digest.update(repr((_VERSION, series.shape, sorted(setting.described().items()))).encode())
        return self.folder / f"{digest.hexdigest()[:24]}.npz"


def _timed(settings: Sequence[Setting], series: FloatArray) -> Iterator[tuple[Setting, FloatArray, float]]:
    started = perf_counter()
    for setting, matrix in matrices(settings, series):
        yield setting, matrix, perf_counter() - started
        started = perf_counter()
