"""Protocols: how a setting is chosen on TRAIN and scored on TEST, with labels or without.

Two protocols choose by labels of TRAIN: the paper's, and one with less luck in it. Both use k-medoids with as many
clusters as classes. Labels of TEST are only ever compared with the clusters found.

The third knows no labels at all: every method runs at its defaults. It clusters the series of TEST, and whatever a
method chooses it chooses from them, because somebody with series and no labels has just that. TRAIN says how many
clusters there are, and nothing else.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache as once
from os import cpu_count
from time import perf_counter
from typing import Any, Literal

import numpy as np
import pandas as pd

from offline.clustering.data import Dataset
from offline.clustering.distances import Distance, MatrixCache, Setting, grid
from offline.clustering.metrics import agreement, mutual_information
from offline.peers import peer
from stream_ccsd.clustering.bandwidths import MULTIPLES, PAPER_MULTIPLES, TAUS, Output
from stream_ccsd.clustering.medoids import NEIGHBOURS, Clustering, Geometry, Method, k_medoids, path_distances
from stream_ccsd.clustering.selection import DEFAULT_GEOMETRY, DEFAULT_OUTPUTS, select_bandwidths
from stream_ccsd.clustering.series import Measure, cluster_series
from stream_ccsd.divergence.kernels import Weighting
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, some_rows

ProtocolName = Literal["label-free", "full", "paper"]
Run = dict[str, Any]

SEEDS = (0, 1, 2, 3, 4)

# The full protocol chooses by the mean NMI over random parts of TRAIN: with 20 to 30 series, the NMI of the whole of it
# changes by tenths when one series changes side, and the highest of a hundred such numbers is mostly luck.
_SUBSAMPLES = 10
_SUBSAMPLE_SHARE = 0.8
_STARTS = 10
# Thousands of series have fewer poor solutions to end in, and each start takes a hundred times as long.
_MANY_SERIES, _FEW_STARTS = 2000, 3


@dataclass(frozen=True)
class Trial:
    """A setting tried on TRAIN, and its NMI by which labels choose; None where a choice goes without them."""

    setting: Setting
    nmi: float | None = None


@dataclass(frozen=True)
class Choice:
    """The setting a rule chose, and the rule: which outputs it could choose among, and by what."""

    trial: Trial
    method: Method
    outputs: tuple[Output, ...]
    selection: str
    starts: int = _STARTS

    def row(self) -> Run:
        """What a result says of it."""
        return {
            **self.trial.setting.described(),
            "outputs": list(self.outputs),
            "method": self.method,
            "selection": self.selection,
            "train_nmi": self.trial.nmi,
        }


def cluster(distances: FloatArray, k: int, method: Method, seed: int = 0, starts: int = 1) -> Clustering:
    """k-medoids as the protocols run it: the alternating method from the central rows, as the paper's figures show."""
    if method == "alternating":
        return k_medoids(distances, k, method=method, start="central")
    return k_medoids(distances, k, starts=starts, seed=seed)


def choose_as_the_paper(
    dataset: Dataset,
    distance: Distance,
    weights: Weighting,
    methods: Sequence[Method],
    cache: MatrixCache,
    given: Setting | None = None,
) -> list[Choice]:
    """The highest NMI on the whole of TRAIN, a choice a method; values only, the paper's grids."""
    train = dataset.train
    settings = [given] if given else grid(distance, train.series, ("value",), weights, PAPER_MULTIPLES)
    trials: dict[Method, list[Trial]] = {method: [] for method in methods}
    for setting, distances, _ in cache.matrices(settings, train.series):
        for method in methods:
            clusters = cluster(distances, dataset.classes, method).labels
            trials[method].append(Trial(setting, mutual_information(train.labels, clusters)))
    how = "given" if given else "train nmi"
    return [Choice(_best(tried), method, ("value",), how, starts=1) for method, tried in trials.items()]


def choose_with_care(
    dataset: Dataset,
    distance: Distance,
    weights: Weighting,
    outputs: Sequence[Output],
    cache: MatrixCache,
    given: Setting | None = None,
) -> list[Choice]:
    """The highest mean NMI over parts of TRAIN, by each output alone and by all; the divergence also label-free."""
    train, k = dataset.train, dataset.classes
    settings = [given] if given else grid(distance, train.series, outputs, weights, MULTIPLES)
    parts = _subsamples(len(train), k)
    trials = []
    with ThreadPoolExecutor(cpu_count()) as pool:
        for setting, distances, _ in cache.matrices(settings, train.series):
            scores = pool.map(lambda part, d=distances: _part_score(d, train.labels, part, k), parts)
            trials.append(Trial(setting, float(np.mean(list(scores)))))
    if given:
        return [Choice(trials[0], "fasterpam", (given.output,), "given")]
    tried = list(dict.fromkeys(t.setting.output for t in trials))
    groups = [(o,) for o in tried] + ([tuple(tried)] if len(tried) > 1 else [])
    chosen = []
    for group in groups:
        within = [t for t in trials if t.setting.output in group]
        chosen.append(Choice(_best(within), "fasterpam", group, "train nmi"))
    if distance == "ccsd":
        among = tuple(o for o in tried if o in DEFAULT_OUTPUTS) or tuple(tried)
        chosen.append(
            Choice(Trial(label_free_setting(train.series, k, weights, among)), "fasterpam", among, "label-free")
        )
    return chosen


def label_free_setting(
    series: FloatArray,
    k: int,
    weights: Weighting,
    outputs: Sequence[Output] = DEFAULT_OUTPUTS,
    geometry: Geometry = DEFAULT_GEOMETRY,
) -> Setting:
    """The divergence as the estimator has it by default: bandwidths from the series alone."""
    found = select_bandwidths(series, k, outputs=outputs, weighting=weights, geometry=geometry).bandwidths
    return Setting("ccsd", found.output, weights, found, geometry)


def judge(dataset: Dataset, choices: Sequence[Choice], cache: MatrixCache) -> list[Run]:
    """Every choice on TEST, five seeds each; a setting chosen twice is computed once."""
    test, k = dataset.test, min(dataset.classes, len(dataset.test))
    rows = {id(choice): choice.row() for choice in choices}
    for setting, distances, seconds in cache.matrices(list({c.trial.setting: 0 for c in choices}), test.series):
        scores: dict[Method, Run] = {}
        for choice in (c for c in choices if c.trial.setting == setting):
            if choice.method not in scores:
                starts = min(choice.starts, _FEW_STARTS) if len(test) > _MANY_SERIES else choice.starts
                clusterings = [cluster(distances, k, choice.method, seed, starts) for seed in SEEDS]
                scores[choice.method] = spread(test.labels, [c.labels for c in clusterings])
            rows[id(choice)] |= {**scores[choice.method], "seconds": seconds}
    return list(rows.values())


def _part_score(distances: FloatArray, labels: AnyArray, part: AnyArray, k: int) -> float:
    clusters = k_medoids(distances[np.ix_(part, part)], min(k, len(part)), starts=3).labels
    return mutual_information(labels[part], clusters)


def _subsamples(n: int, k: int) -> list[AnyArray]:
    rng = np.random.default_rng(0)
    size = min(n, max(k + 1, int(_SUBSAMPLE_SHARE * n)))
    return [some_rows(n, size, rng) for _ in range(_SUBSAMPLES)]


def _best(trials: Sequence[Trial]) -> Trial:
    """The highest NMI; of equals the first tau of the grid, then the first sigma, as the paper's choices show."""
    return max(sorted(trials, key=_tau_place), key=lambda trial: trial.nmi or 0.0)


def _tau_place(trial: Trial) -> int:
    bandwidths = trial.setting.bandwidths
    return TAUS.index(bandwidths.tau) if bandwidths is not None and bandwidths.tau in TAUS else 0


def spread(classes: AnyArray, clusters: Sequence[AnyArray]) -> Run:
    """Mean and deviation, over the seeds, of each figure of agreement."""
    found: Run = {}
    for name, values in pd.DataFrame(agreement(classes, labels) for labels in clusters).items():
        found |= {f"{name}_mean": float(values.mean()), f"{name}_std": float(values.std(ddof=0))}
    return found


Rival = Literal["kasba", "kshape", "ccsd-straight", "msm-paths", "dtw-paths"]
DEFAULTS: tuple[Distance | Rival, ...] = ("ccsd", "kasba", "kshape", "msm", "dtw", "ed")
# And what tells apart how much the divergence does, and how much the paths along neighbours.
METHODS: tuple[Distance | Rival, ...] = (*DEFAULTS, "ccsd-straight", "msm-paths", "dtw-paths")

_GEOMETRIES = {"ccsd": Geometry(), "ccsd-straight": Geometry(neighbours=None)}

# Fewer than with labels: KASBA and k-Shape take minutes a data set.
LABEL_FREE_SEEDS = (0, 1, 2)

# aeon's defaults of TimeSeriesKMedoids: 10 random starts, MSM with a cost of 1, DTW without a window.
_LABEL_FREE_STARTS = 10
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
        clusters, each = _by_seed(
            lambda seed: cluster_series(series, k, measure, starts=_LABEL_FREE_STARTS, seed=seed)[0].labels
        )
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
        clusters, each = _by_seed(lambda seed: k_medoids(compared, k, starts=_LABEL_FREE_STARTS, seed=seed).labels)
        facts = _DEFAULTS[plain].described() | {"distance": method, "method": "fasterpam"}
        taken = computed + each
    facts |= {"outputs": ["value"], "selection": "label-free", "train_nmi": None}
    return facts | spread(dataset.test.labels, clusters) | {"seconds": taken}, None


def _by_seed(run: Callable[[int], AnyArray]) -> tuple[list[AnyArray], float]:
    """The partition of every seed, and the mean seconds of one."""
    found = [_timed(lambda seed=seed: run(seed)) for seed in LABEL_FREE_SEEDS]  # type: ignore[misc]
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
