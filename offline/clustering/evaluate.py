"""The whole clustering evaluation: data sets, distances and protocols in, a table in plain data out.

:class:`Journal` keeps what is finished, so that a second run goes on where the first stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

import offline.clustering
import stream_ccsd.clustering
import stream_ccsd.divergence
from offline.clustering.data import Dataset
from offline.clustering.distances import DISTANCES, Distance, MatrixCache, Setting
from offline.clustering.metrics import compare
from offline.clustering.pictures import Picture, picture_of
from offline.clustering.protocols import (
    Choice,
    ProtocolName,
    Rival,
    Run,
    choose_as_the_paper,
    choose_with_care,
    judge,
    judge_label_free,
)
from offline.clustering.report import method_name
from offline.published import TABLE_1
from stream_ccsd.clustering.bandwidths import Bandwidths, Output
from stream_ccsd.clustering.medoids import Method
from stream_ccsd.divergence.kernels import Weighting
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import write_whole

# Of the entries' form.
_VERSION = 1

# Others' code that figures come from.
_LIBRARIES = ("aeon", "dtaidistance", "numba", "numpy", "scikit-learn", "scipy")


class Journal:
    """One small JSON file a finished piece of work, named by everything that it depends on; None keeps nothing.

    That is the data, what was asked, and the code: its text, and the versions of the libraries it calls. So whoever
    changes any of them never sees a figure from before.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = None if folder is None else folder / "clustering"
        self.found = 0  # pieces that an earlier run had finished

    def entry(
        self, about: dict[str, Any], work: Callable[[], dict[str, Any]], wanted: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """What is kept about this, if it has all that is wanted; else it is worked out, and kept."""
        if self.folder is None:
            return work()
        place = self.folder / f"{_digest([_VERSION, _code(), about])}.json"
        kept = _read(place)
        if kept is not None and wanted(kept):
            self.found += 1
            return kept
        made = work()
        with suppress(OSError, StreamCcsdError):  # what cannot be kept is still a result
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(place, json.dumps(made))
        return made


def _read(place: Path) -> dict[str, Any] | None:
    """None for what is not there, or was damaged: it is worked out again."""
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


@cache
def _code() -> list[str]:
    """What the figures are made by."""
    text = hashlib.sha256()
    for package in (stream_ccsd.divergence, stream_ccsd.clustering, offline.clustering):
        for source in sorted(Path(str(package.__file__)).parent.glob("*.py")):
            text.update(source.name.encode() + b"\0" + source.read_bytes())
    return [text.hexdigest(), *(f"{name} {_version(name)}" for name in _LIBRARIES)]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


METHODS: tuple[Method, ...] = ("alternating", "fasterpam")

Source = Callable[[], Dataset]
"""Gives a data set when it is its turn; its attribute ``name``, if it has one, names what cannot be loaded."""


class NotedProgress(Protocol):
    """Called with ``(done, total)`` and what is being done, every now and then."""

    def __call__(self, done: int, total: int, note: str | None = None) -> None:
        """Show it."""


@dataclass(frozen=True)
class Experiment:
    """What is to be evaluated."""

    protocol: ProtocolName
    distances: tuple[Distance | Rival, ...]
    weights: tuple[Weighting, ...] = ("one-sided",)
    outputs: tuple[Output, ...] = ("value", "slope", "both")
    cap: int | None = None
    published: bool = False
    bandwidths: tuple[float, float] | None = None

    def jobs(self) -> list[tuple[Distance | Rival, Weighting]]:
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


class _Evaluation:
    """A run over data sets, as far as it has come."""

    def __init__(
        self,
        experiment: Experiment,
        cache: Path | None,
        progress: Callable[[int, str], None],
        pictures: list[Picture] | None,
    ) -> None:
        self.experiment, self.pictures, self.progress = experiment, pictures, progress
        self.matrices, self.journal = MatrixCache(cache), Journal(cache)
        self.runs: list[Run] = []
        self.failed: list[dict[str, str]] = []
        self.finished: list[str] = []  # data sets on which nothing failed

    def dataset(self, source: Source, number: int) -> None:
        """All that is asked about one data set; what cannot be done is written down, and the rest goes on."""
        before = len(self.failed)
        name = str(getattr(source, "name", f"data set {number + 1}"))
        try:
            dataset = source()
            name = dataset.name
            dataset = dataset.paper_capped() if self.experiment.protocol == "paper" else dataset
            dataset = dataset.capped(self.experiment.cap)
        except Exception as error:
            self.failed.append({"dataset": name, "reason": _reason(error)})
            return
        jobs = self.experiment.jobs()
        for job, (distance, weights) in enumerate(jobs):
            self.progress(number * len(jobs) + job, f"{name}: {distance}")
            try:
                self.job(dataset, distance, weights)
            except Exception as error:
                self.failed.append({"dataset": name, "distance": distance, "reason": _reason(error)})
        if len(self.failed) == before:
            self.finished.append(name)

    def job(self, dataset: Dataset, distance: Distance | Rival, weights: Weighting) -> None:
        """One distance on one data set, or what an earlier run found there."""
        drawn = self.pictures is not None and distance == "ccsd" and weights == self.experiment.weights[0]

        def work() -> dict[str, Any]:
            rows, shown = self._judged(dataset, distance, weights)
            picture = picture_of(dataset, shown).as_plain() if drawn and shown is not None else None
            return {"runs": rows, "picture": picture}

        asked = asdict(self.experiment)
        about = {
            "dataset": dataset.name,
            "data": dataset.fingerprint,
            "experiment": {name: asked[name] for name in ("protocol", "outputs", "published", "bandwidths")},
            "distance": distance,
            "weights": weights,
        }
        entry = self.journal.entry(about, work, lambda kept: "runs" in kept and not (drawn and not kept.get("picture")))
        head = {"dataset": dataset.name, "protocol": self.experiment.protocol}
        self.runs += [{**head, **row, **_sizes(dataset, self.experiment)} for row in entry["runs"]]
        if self.pictures is not None and entry.get("picture"):
            self.pictures.append(Picture.of_plain(entry["picture"]))

    def _judged(
        self, dataset: Dataset, distance: Distance | Rival, weights: Weighting
    ) -> tuple[list[Run], Choice | None]:
        if self.experiment.protocol == "label-free":
            row, choice = judge_label_free(dataset, distance, weights, self.matrices)
            return [row], choice
        if distance not in DISTANCES:
            raise StreamCcsdError(f"{distance} has no settings to choose: it is for the label-free protocol")
        choices = choose(dataset, self.experiment, distance, weights, self.matrices)
        return judge(dataset, choices, self.matrices), _shown(choices)


def evaluate_clustering(
    datasets: Sequence[Source],
    experiment: Experiment,
    cache: Path | None = None,
    progress: NotedProgress | None = None,
    pictures: list[Picture] | None = None,
) -> dict[str, Any]:
    """Runs in plain data; with several data sets, but for the paper's protocol, the comparison of distances too.

    A data set that cannot be read, capped or clustered is listed under ``failed`` with the reason, and the others go
    on. Ctrl-C ends the work, not the result: what is finished by then is in it, and ``complete`` is false. What is
    finished is also kept in the cache's folder, where the next run finds it (``kept`` counts that). What is to be
    drawn is added to ``pictures``, where given.
    """

    def tell(done: int, note: str) -> None:
        if progress:
            progress(done, len(datasets) * len(experiment.jobs()), note)

    evaluation = _Evaluation(experiment, cache, tell, pictures)
    try:
        for number, source in enumerate(datasets):
            evaluation.dataset(source, number)
        complete = True
    except KeyboardInterrupt:
        complete = False
    result: dict[str, Any] = {
        "runs": evaluation.runs,
        "failed": evaluation.failed,
        "complete": complete,
        "kept": evaluation.journal.found,
    }
    if experiment.protocol != "paper":
        # Means are over the same data sets for all: one that a distance failed on, or was stopped at, is not in them.
        result["comparison"] = comparison([run for run in evaluation.runs if run["dataset"] in evaluation.finished])
    return result


def _reason(error: Exception) -> str:
    """In words; of what nobody foresaw, its kind too."""
    said = str(error) or type(error).__name__
    return said if isinstance(error, StreamCcsdError | ValueError) else f"{type(error).__name__}: {said}"


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
    if not runs:
        return None
    table = pd.DataFrame(runs).assign(method=[method_name(run) for run in runs])
    scores = table.pivot_table(index="dataset", columns="method", values="nmi_mean", sort=False).dropna(axis=1)
    reference = next((n for n in ("ccsd", *scores) if n in scores and n.startswith("ccsd")), None)
    if reference is None or min(scores.shape) < 2:
        return None
    means = table.groupby("method", sort=False)[["ari_mean", "accuracy_mean", "seconds"]].mean()
    others = {f"mean_{name.removesuffix('_mean')}": means[name][list(scores)].to_dict() for name in means}
    return compare(scores, reference) | others


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
