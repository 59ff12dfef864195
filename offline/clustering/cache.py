"""Distance matrices that took minutes, kept for the next run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
from scipy.spatial.distance import squareform

from offline.clustering.distances import Setting, matrices
from stream_ccsd.numeric import FloatArray
from stream_ccsd.writing import replacing

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
