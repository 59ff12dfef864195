"""The whole evaluation: data sets, distances and protocols in, a table in plain data out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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
from stream_ccsd.clustering.bandwidths import Bandwidths
from stream_ccsd.clustering.medoids import Method
from stream_ccsd.clustering.outputs import Output
from stream_ccsd.divergence.weights import Weighting
from stream_ccsd.progress import Progress

# Table 1 of the paper: tau and sigma it selected.
PUBLISHED = {
    "DiatomSizeReduction": (0.05, 1.12),
    "FaceAll": (0.05, 0.9595),
    "Coffee": (2.0, 0.6975),
    "ECG5000": (0.05, 0.9705),
}
METHODS: tuple[Method, ...] = ("alternating", "fasterpam")


@dataclass(frozen=True)
class Wanted:
    """What is to be evaluated."""

    protocol: ProtocolName
    distances: tuple[Distance, ...]
    weights: tuple[Weighting, ...] = ("one-sided",)
    outputs: tuple[Output, ...] = ("value", "slope", "both")
    cap: int | None = None
    published: bool = False
    bandwidths: tuple[float, float] | None = None

    def given(self, dataset: Dataset, distance: Distance, weights: Weighting) -> Setting | None:
        """The setting asked for by name, if one was; None to choose on TRAIN."""
        pair = PUBLISHED.get(dataset.name) if self.published else self.bandwidths
        if distance != "ccsd" or pair is None:
            return None
        return Setting("ccsd", "value", weights, Bandwidths("value", *pair))


def evaluate_clustering(
    datasets: Sequence[Callable[[], Dataset]],
    wanted: Wanted,
    cache: Path | None = None,
    progress: Progress | None = None,
    pictures: list[Picture] | None = None,
) -> dict[str, Any]:
    """Runs in plain data; with several data sets under the full protocol, the comparison of distances too.

    What is to be drawn is added to ``pictures``, where given.
    """
    runs: list[Run] = []
    kept = MatrixCache(cache)
    jobs = [(d, w) for d in wanted.distances for w in (wanted.weights if d == "ccsd" else wanted.weights[:1])]
    for number, load in enumerate(datasets):
        dataset = load()
        dataset = dataset.paper_capped() if wanted.protocol == "paper" else dataset
        dataset = dataset.capped(wanted.cap)
        for job, (distance, weights) in enumerate(jobs):
            choices = choose(dataset, wanted, distance, weights, kept)
            for row in judge(dataset, choices, kept):
                runs.append({"dataset": dataset.name, "protocol": wanted.protocol, **row, **_sizes(dataset, wanted)})
            if pictures is not None and distance == "ccsd" and weights == wanted.weights[0]:
                pictures.append(picture_of(dataset, _shown(choices)))
            if progress:
                progress(number * len(jobs) + job + 1, len(datasets) * len(jobs))
    result: dict[str, Any] = {"runs": runs}
    if wanted.protocol == "full":
        result["comparison"] = comparison(runs)
    return result


def choose(
    dataset: Dataset, wanted: Wanted, distance: Distance, weights: Weighting, cache: MatrixCache
) -> list[Choice]:
    """The protocol's choices on TRAIN."""
    given = wanted.given(dataset, distance, weights)
    if wanted.protocol == "paper":
        return choose_as_the_paper(dataset, distance, weights, METHODS, cache, given)
    return choose_with_care(dataset, distance, weights, wanted.outputs, cache, given)


def method_name(run: Run) -> str:
    """A row's name in comparisons: the distance, what it could choose among, and how."""
    name = str(run["distance"])
    if run["distance"] == "ccsd" and run["weights"] != "one-sided":
        name += f" {run['weights']}"
    if len(run["outputs"]) == 1:
        name += f" {run['outputs'][0]}"
    return name + (" label-free" if run["selection"] == "label-free" else "")


def comparison(runs: list[Run]) -> dict[str, Any] | None:
    """All rows by NMI over the data sets, against the divergence with its output chosen on TRAIN."""
    names = list(dict.fromkeys(method_name(r) for r in runs))
    datasets = list(dict.fromkeys(r["dataset"] for r in runs))
    scores = {n: np.array([r["nmi_mean"] for r in runs if method_name(r) == n]) for n in names}
    scores = {n: found for n, found in scores.items() if len(found) == len(datasets)}
    reference = next((n for n in ("ccsd", *scores) if n in scores and n.startswith("ccsd")), None)
    if reference is None or len(scores) < 2 or len(datasets) < 2:
        return None
    return compare(scores, reference)


def _shown(choices: list[Choice]) -> Choice:
    """The choice to draw: by labels, among most outputs, and the first method."""
    return max((c for c in choices if c.selection != "label-free"), key=lambda c: len(c.outputs))


def _sizes(dataset: Dataset, wanted: Wanted) -> Run:
    return {
        "classes": dataset.classes,
        "train_series": len(dataset.train),
        "test_series": len(dataset.test),
        "length": int(dataset.test.series.shape[1]),
        "cap": min(filter(None, (wanted.cap, dataset.cap)), default=None),
    }
