"""Every method at its defaults, on the same series, with no label but in the last comparison.

The series of TEST are clustered, and whatever a method chooses it chooses from them: that is what somebody with series
and no labels has. TRAIN says how many clusters there are, and nothing else.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache as once
from time import perf_counter
from typing import Any, Literal

import numpy as np

from offline.bench.peers import peer
from offline.clustering.cache import MatrixCache
from offline.clustering.data import Dataset
from offline.clustering.distances import Distance, Setting
from offline.clustering.protocols import Choice, Run, Trial, label_free_setting, spread
from stream_ccsd.clustering.geometry import NEIGHBOURS, Geometry, path_distances
from stream_ccsd.clustering.medoids import k_medoids
from stream_ccsd.clustering.series import Measure, cluster_series
from stream_ccsd.divergence.weights import Weighting
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.numeric import AnyArray, FloatArray

Rival = Literal["kasba", "kshape", "ccsd-straight", "msm-paths", "dtw-paths"]
DEFAULTS: tuple[Distance | Rival, ...] = ("ccsd", "kasba", "kshape", "msm", "dtw", "ed")
# And what tells apart how much the divergence does, and how much the paths along neighbours.
METHODS: tuple[Distance | Rival, ...] = (*DEFAULTS, "ccsd-straight", "msm-paths", "dtw-paths")

_GEOMETRIES = {"ccsd": Geometry(), "ccsd-straight": Geometry(neighbours=None)}

# Fewer than with labels: KASBA and k-Shape take minutes a data set.
SEEDS = (0, 1, 2)

# aeon's defaults of TimeSeriesKMedoids: 10 random starts, MSM with a cost of 1, DTW without a window.
_STARTS = 10
_DEFAULTS: dict[str, Setting] = {
    "msm": Setting("msm", cost=1.0),
    "dtw": Setting("dtw"),
    "ed": Setting("ed"),
}
_AEONS = {"kasba": "KASBA", "kshape": "KShape"}


def judge_label_free(
    dataset: Dataset, method: Distance | Rival, weights: Weighting, cache: MatrixCache
) -> tuple[Run, Choice | None]:
    """A row of figures over the seeds; of the divergence, what it chose."""
    series, k = dataset.test.series, min(dataset.classes, len(dataset.test))
    if method in _GEOMETRIES:
        _warm_divergence()
        geometry = _GEOMETRIES[method]
        setting, chosen = _timed(lambda: label_free_setting(series, k, weights, geometry=geometry))
        assert setting.bandwidths is not None
        measure = Measure(setting.bandwidths, weights, geometry)
        clusters, each = _by_seed(lambda seed: cluster_series(series, k, measure, starts=_STARTS, seed=seed)[0].labels)
        choice = Choice(Trial(setting), "fasterpam", (setting.output,), "label-free")
        facts = choice.row() | {"distance": method, "choosing_seconds": chosen}
        return facts | spread(dataset.test.labels, clusters) | {"seconds": chosen + each}, choice
    if method in _AEONS:
        clusters, each = _by_seed(lambda seed: _aeons(method, series, k, seed))
        facts = {"distance": method, "output": "value", "method": method}
        taken = each
    else:
        plain, _, along = method.partition("-")
        _, distances, computed = next(iter(cache.matrices([_DEFAULTS[plain]], series)))
        # aeon's DTW is the sum of squares along the path; dtaidistance's is its root.
        compared = distances**2 if method == "dtw" else distances
        if along:
            compared = path_distances(compared, NEIGHBOURS)
        clusters, each = _by_seed(lambda seed: k_medoids(compared, k, starts=_STARTS, seed=seed).labels)
        facts = _DEFAULTS[plain].described() | {"distance": method, "method": "fasterpam"}
        taken = computed + each
    facts |= {"outputs": ["value"], "selection": "label-free", "train_nmi": None}
    return facts | spread(dataset.test.labels, clusters) | {"seconds": taken}, None


def _by_seed(run: Callable[[int], AnyArray]) -> tuple[list[AnyArray], float]:
    """The partition of every seed, and the mean seconds of one."""
    found = [_timed(lambda seed=seed: run(seed)) for seed in SEEDS]  # type: ignore[misc]
    return [labels for labels, _ in found], float(np.mean([seconds for _, seconds in found]))


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    started = perf_counter()
    return run(), perf_counter() - started


def _aeons(method: str, series: FloatArray, k: int, seed: int) -> AnyArray:
    """KASBA or k-Shape as aeon has them, at its defaults."""
    if np.isnan(series).any():
        raise StreamCcsdError(f"{method} needs series of one length without missing values")
    _warm_aeon(method)
    return _aeon_fit(method, series, k, seed)


def _aeon_fit(method: str, series: FloatArray, k: int, seed: int) -> AnyArray:
    kind = getattr(peer("aeon.clustering"), _AEONS[method])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numba's notes on aeon's loop counters; divisions in clusters that ran empty
        return np.asarray(kind(n_clusters=k, random_state=seed).fit(series[:, None, :]).labels_)


@once
def _warm_aeon(method: str) -> None:
    """Compile outside the clock."""
    _aeon_fit(method, np.random.default_rng(0).normal(size=(9, 12)).cumsum(axis=1), 2, 0)


@once
def _warm_divergence() -> None:
    label_free_setting(np.random.default_rng(0).normal(size=(9, 12)).cumsum(axis=1), 2, "one-sided")
