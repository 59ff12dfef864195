"""How a setting is chosen on TRAIN and judged on TEST: the paper's way, and one with less luck in it.

Both use k-medoids with as many clusters as classes. Labels of TRAIN choose a setting, unless the choice is
label-free; labels of TEST are only ever compared with the clusters found. ``label_free`` has the third protocol, which
knows no labels at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from typing import Any, Literal

import numpy as np
import pandas as pd

from offline.clustering.cache import MatrixCache
from offline.clustering.data import Dataset
from offline.clustering.distances import Distance, Setting, grid
from offline.clustering.metrics import agreement, mutual_information
from stream_ccsd.clustering.bandwidths import MULTIPLES, PAPER_MULTIPLES, TAUS
from stream_ccsd.clustering.geometry import Geometry
from stream_ccsd.clustering.medoids import Clustering, Method, k_medoids
from stream_ccsd.clustering.outputs import Output
from stream_ccsd.clustering.selection import DEFAULT_GEOMETRY, DEFAULT_OUTPUTS, select_bandwidths
from stream_ccsd.divergence.weights import Weighting
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.sampling import some_rows

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
