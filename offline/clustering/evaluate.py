"""The whole evaluation: data sets, distances and protocols in, a table in plain data out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from offline.clustering.cache import MatrixCache
from offline.clustering.data import Dataset
from offline.clustering.distances import Distance, Setting
from offline.clustering.metrics import compare
from offline.clustering.pictures import Picture, picture_of
from offline.clustering.protocols import (
    Choice,
    ProtocolName,
    Run,
    choose_as_the_paper,
    choose_with_care,
    judge,
)
from offline.clustering.tables import method_name
from offline.published import TABLE_1
from stream_ccsd.clustering.bandwidths import Bandwidths
from stream_ccsd.clustering.medoids import Method
from stream_ccsd.clustering.outputs import Output
from stream_ccsd.divergence.weights import Weighting
from stream_ccsd.progress import Progress

METHODS: tuple[Method, ...] = ("alternating", "fasterpam")


@dataclass(frozen=True)
class Experiment:
    """What is to be evaluated."""

    protocol: ProtocolName
    distances: tuple[Distance, ...]
    weights: tuple[Weighting, ...] = ("one-sided",)
    outputs: tuple[Output, ...] = ("value", "slope", "both")
    cap: int | None = None
    published: bool = False
    bandwidths: tuple[float, float] | None = None

    def jobs(self) -> list[tuple[Distance, Weighting]]:
        """The distances; the divergence by each way of weighting, which others do not know."""
        return [(d, w) for d in self.distances for w in (self.weights if d == "ccsd" else self.weights[:1])]

    def given(self, dataset: Dataset, distance: Distance, weights: Weighting) -> Setting | None:
        """The setting asked for by name, if one was; None to choose on TRAIN."""
        pair = self.bandwidths
        if self.published:
            row = TABLE_1.get(dataset.name)
            pair = (row.tau, row.sigma) if row else None
        if distance != "ccsd" or pair is None:
            return None
        return Setting("ccsd", "value", weights, Bandwidths("value", *pair))


def evaluate_clustering(
    datasets: Sequence[Callable[[], Dataset]],
    experiment: Experiment,
    cache: Path | None = None,
    progress: Progress | None = None,
    pictures: list[Picture] | None = None,
) -> dict[str, Any]:
    """Runs in plain data; with several data sets under the full protocol, the comparison of distances too.

    What is to be drawn is added to ``pictures``, where given.
    """
    runs: list[Run] = []
    kept = MatrixCache(cache)
    jobs = experiment.jobs()
    for number, load in enumerate(datasets):
        dataset = load()
        dataset = dataset.paper_capped() if experiment.protocol == "paper" else dataset
        dataset = dataset.capped(experiment.cap)
        for job, (distance, weights) in enumerate(jobs):
            choices = choose(dataset, experiment, distance, weights, kept)
            for row in judge(dataset, choices, kept):
                runs.append(
                    {"dataset": dataset.name, "protocol": experiment.protocol, **row, **_sizes(dataset, experiment)}
                )
            if pictures is not None and distance == "ccsd" and weights == experiment.weights[0]:
                pictures.append(picture_of(dataset, _shown(choices)))
            if progress:
                progress(number * len(jobs) + job + 1, len(datasets) * len(jobs))
    result: dict[str, Any] = {"runs": runs}
    if experiment.protocol == "full":
        result["comparison"] = comparison(runs)
    return result


def choose(
    dataset: Dataset, experiment: Experiment, distance: Distance, weights: Weighting, cache: MatrixCache
) -> list[Choice]:
    """The protocol's choices on TRAIN."""
    given = experiment.given(dataset, distance, weights)
    if experiment.protocol == "paper":
        return choose_as_the_paper(dataset, distance, weights, METHODS, cache, given)
    return choose_with_care(dataset, distance, weights, experiment.outputs, cache, given)


def comparison(runs: list[Run]) -> dict[str, Any] | None:
    """All rows by NMI over the data sets, against the divergence with its output chosen on TRAIN."""
    table = pd.DataFrame(runs).assign(method=[method_name(run) for run in runs])
    scores = table.pivot_table(index="dataset", columns="method", values="nmi_mean", sort=False).dropna(axis=1)
    reference = next((n for n in ("ccsd", *scores) if n in scores and n.startswith("ccsd")), None)
    if reference is None or min(scores.shape) < 2:
        return None
    return compare(scores, reference)


def _shown(choices: list[Choice]) -> Choice:
    """The choice to draw: by labels, among most outputs, and the first method."""
    return max((c for c in choices if c.selection != "label-free"), key=lambda c: len(c.outputs))


def _sizes(dataset: Dataset, experiment: Experiment) -> Run:
    return {
        "classes": dataset.classes,
        "train_series": len(dataset.train),
        "test_series": len(dataset.test),
        "length": int(dataset.test.series.shape[1]),
        "cap": min(filter(None, (experiment.cap, dataset.cap)), default=None),
    }
