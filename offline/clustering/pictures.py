"""Pictures of the report: a map of a data set's test series, sensitivity to bandwidths, and critical differences.

A critical-difference picture puts methods along their mean ranks, with bars over those that do not differ.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from offline.clustering.data import Dataset
from offline.clustering.distances import Setting, matrices
from offline.clustering.metrics import mutual_information
from offline.clustering.protocols import Choice, cluster
from stream_ccsd.cli.report import BLUE, GREY, RED, axes
from stream_ccsd.clustering.bandwidths import MULTIPLES, TAUS, Bandwidths
from stream_ccsd.clustering.medoids import Geometry
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, some_rows

# More points than this only blacken a map.
_MOST_POINTS = 600


@dataclass(frozen=True, eq=False)
class Picture:
    """Places of some test series on a plane, their classes and clusters; TEST NMI along tau and along sigma."""

    dataset: str
    setting: Setting
    places: FloatArray
    classes: AnyArray
    clusters: AnyArray
    by_tau: list[tuple[float, float]]
    by_sigma: list[tuple[float, float]]  # multiples of the chosen sigma

    def as_plain(self) -> dict[str, Any]:
        """For JSON."""
        arrays = {name: getattr(self, name).tolist() for name in ("places", "classes", "clusters")}
        others = {name: getattr(self, name) for name in ("dataset", "by_tau", "by_sigma")}
        return {**others, **arrays, "setting": asdict(self.setting)}

    @classmethod
    def of_plain(cls, plain: dict[str, Any]) -> Picture:
        """From what :meth:`as_plain` gives, also by way of JSON."""
        bandwidths = Bandwidths(**plain["setting"]["bandwidths"])
        geometry = Geometry(**plain["setting"]["geometry"])
        setting = Setting(**{**plain["setting"], "bandwidths": bandwidths, "geometry": geometry})
        arrays = {name: np.array(plain[name]) for name in ("places", "classes", "clusters")}
        by_tau, by_sigma = ([(float(x), float(y)) for x, y in plain[name]] for name in ("by_tau", "by_sigma"))
        return cls(plain["dataset"], setting, by_tau=by_tau, by_sigma=by_sigma, **arrays)


def picture_of(dataset: Dataset, choice: Choice) -> Picture:
    """Of the chosen setting of the divergence, on a sample of TEST where that is large."""
    setting = choice.trial.setting
    rows = some_rows(len(dataset.test), _MOST_POINTS, seed=0)
    series, labels = dataset.test.series[rows], dataset.test.labels[rows]

    def clusters(distances: FloatArray) -> AnyArray:
        return cluster(distances, min(dataset.classes, len(rows)), choice.method, starts=choice.starts).labels

    chosen = next(matrices([setting], series))[1]
    by_tau = [_with(setting, tau=tau) for tau in TAUS]
    by_sigma = [_with(setting, factor=m) for m in MULTIPLES]
    scores = [mutual_information(labels, clusters(d)) for _, d in matrices([*by_tau, *by_sigma], series)]
    return Picture(
        dataset.name,
        setting,
        classical_scaling(chosen),
        labels,
        clusters(chosen),
        list(zip(TAUS, scores[: len(TAUS)], strict=True)),
        list(zip(MULTIPLES, scores[len(TAUS) :], strict=True)),
    )


def classical_scaling(distances: FloatArray) -> FloatArray:
    """Places ``(n, 2)`` whose distances are near those given: the two leading axes of the doubly centred squares.

    >>> points = np.array([0.0, 3.0, 4.0])
    >>> places = classical_scaling(abs(points[:, None] - points))
    >>> np.allclose(abs(places[:, 0] - places[0, 0]), points)
    True
    """
    squares = np.maximum(distances, 0.0) ** 2
    centred = squares - squares.mean(axis=0) - squares.mean(axis=1, keepdims=True) + squares.mean()
    values, vectors = np.linalg.eigh(-centred / 2)
    return vectors[:, ::-1][:, :2] * np.sqrt(np.maximum(values[::-1][:2], 0.0))


def _with(setting: Setting, tau: float | None = None, factor: float = 1.0) -> Setting:
    old = setting.bandwidths
    assert old is not None
    sigma, slope_sigma = (None if s is None else s * factor for s in (old.sigma, old.slope_sigma))
    return replace(setting, bandwidths=replace(old, tau=tau or old.tau, sigma=sigma, slope_sigma=slope_sigma))


# In units of the picture's height: where the axis is, and how far names and bars lie from it and from each other.
_AXIS, _FIRST_NAME, _NAME_STEP, _FIRST_BAR, _BAR_STEP = 0.0, -0.9, -0.5, -0.25, -0.18


def draw_critical_difference(compared: dict[str, Any]) -> Any:
    """A figure: the best rank on the left, the reference in colour, a bar a clique of the comparison."""
    ranks = sorted(compared["mean_rank"].items(), key=lambda item: item[1])
    bars = compared["cliques"]
    names_begin = _FIRST_NAME + _BAR_STEP * max(0, len(bars) - 2)
    half = (len(ranks) + 1) // 2
    bottom = names_begin + _NAME_STEP * half
    figure, panels = axes(1, 1, 9, 0.9 - 0.55 * bottom)
    ax = panels[0, 0]
    low, high = 1, len(ranks)
    ax.plot([low, high], [_AXIS, _AXIS], color="black", lw=1)
    for tick in range(low, high + 1):
        ax.plot([tick, tick], [_AXIS, _AXIS + 0.12], color="black", lw=1)
        ax.text(tick, _AXIS + 0.2, str(tick), ha="center", va="bottom", fontsize=9)
    for place, (name, rank) in enumerate(ranks):
        left = place < half
        height = names_begin + _NAME_STEP * (place if left else len(ranks) - 1 - place)
        edge = low - 0.25 if left else high + 0.25
        colour = RED if name == compared["reference"] else GREY
        ax.plot([rank, rank, edge], [_AXIS, height, height], color=colour, lw=1)
        mean = f"{name}  {rank:.2f}" if left else f"{rank:.2f}  {name}"
        ax.text(
            edge, height, f"{mean} " if left else f" {mean}", ha="right" if left else "left", va="center", fontsize=9
        )
    for number, clique in enumerate(bars):
        ends = [compared["mean_rank"][name] for name in (clique[0], clique[-1])]
        height = _FIRST_BAR + _BAR_STEP * number
        ax.plot([ends[0] - 0.04, ends[1] + 0.04], [height, height], color=BLUE, lw=4, solid_capstyle="round")
    ax.set(xlim=(low - 1.3, high + 1.3), ylim=(bottom, 0.6))
    ax.axis("off")
    return figure
