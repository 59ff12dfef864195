"""The clustering evaluation as one page: the table, a map of every data set, the sensitivity to both bandwidths."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from offline.clustering.metrics import contingency
from offline.clustering.pictures import Picture
from offline.clustering.tables import comparison_table, runs_table
from stream_ccsd.numeric import AnyArray
from stream_ccsd.page import BLUE, RED, axes, picture, table, write_page


def write_report(result: dict[str, Any], pictures: Sequence[Picture], folder: Path) -> Path:
    """Write ``report.html`` into the folder; returns its path."""
    runs = result["runs"]
    parts = [
        f"<p>Protocol: {runs[0]['protocol']}. k-medoids with as many clusters as classes; settings chosen on TRAIN "
        "(label-free: without its labels), figures on TEST, mean and deviation over five seeds.</p>"
    ]
    if result.get("comparison"):
        parts += _comparison_section(result["comparison"])
    rows = runs_table(runs)
    parts += ["<h2>All rows</h2>", table(list(rows), rows.to_numpy().tolist())]
    if runs[0]["cap"]:
        parts.append(f"<p class=note>At most {runs[0]['cap']:,} series a part, classes in proportion.</p>")
    parts.append("<h2>Maps and sensitivity</h2>")
    parts.append(
        "<p>Classical scaling of the chosen divergence between test series (at most 600 shown), coloured by class and "
        "by cluster; TEST NMI when one bandwidth moves away from the chosen one (grey line).</p>"
    )
    for shown in pictures:
        parts += [f"<h3>{html.escape(shown.dataset)}</h3>", picture(_draw(shown), f"map of {shown.dataset}")]
    return write_page(folder / "report.html", "Clustering with the divergence", parts)


def _comparison_section(compared: dict[str, Any]) -> list[str]:
    methods = comparison_table(compared)
    note = ""
    if "critical_difference" in compared:
        note = (
            f" Friedman p {compared['friedman_p']:.1e}; mean ranks further apart than "
            f"{compared['critical_difference']:.2f} differ (Nemenyi, 5 %)."
        )
    return [
        "<h2>Distances compared</h2>",
        table(list(methods), methods.to_numpy().tolist()),
        f"<p class=note>{compared['datasets']} data sets. A name without an output chose it on TRAIN.{note}</p>",
    ]


def _draw(shown: Picture) -> Any:
    figure, panels = axes(1, 4, 14, 3.4)
    classes = np.unique(shown.classes, return_inverse=True)[1]
    groups = (classes, _named_alike(classes, shown.clusters))
    for ax, group, title in zip(panels[0], groups, ("by class", "by cluster"), strict=False):
        _scatter(ax, shown.places, group)
        ax.set(title=title, xticks=[], yticks=[])
    bandwidths = shown.setting.bandwidths
    assert bandwidths is not None
    for ax, curve, colour, label, chosen in (
        (panels[0, 2], shown.by_tau, RED, "τ (≤ 1: share of the length)", bandwidths.tau),
        (panels[0, 3], shown.by_sigma, BLUE, "σ / chosen σ", 1.0),
    ):
        ax.plot(range(len(curve)), [score for _, score in curve], "o-", color=colour)
        ax.set_xticks(range(len(curve)), [f"{value:g}" for value, _ in curve], fontsize=7)
        values = [value for value, _ in curve]
        if chosen in values:
            ax.axvline(values.index(chosen), color="#999999", lw=1)
        ax.set(xlabel=label, ylabel="TEST NMI", ylim=(-0.03, 1.03))
        ax.grid(alpha=0.3)
    figure.suptitle(f"{shown.setting.output}, τ {bandwidths.tau:g}", fontsize=9)
    return figure


def _named_alike(classes: AnyArray, clusters: AnyArray) -> AnyArray:
    """Clusters numbered as the classes they agree with best, so that colours can be compared."""
    table = contingency(clusters, classes)
    rows, columns = linear_sum_assignment(-table)
    names = np.arange(len(table)) + table.shape[1]  # clusters beyond the classes keep colours of their own
    names[rows] = columns
    return names[np.unique(clusters, return_inverse=True)[1]]


def _scatter(ax: Any, places: AnyArray, groups: AnyArray) -> None:
    for number in np.unique(groups).tolist():
        here = groups == number
        ax.scatter(*places[here].T, s=9, alpha=0.7, color=f"C{number % 10}", marker="os^D"[number // 10 % 4])
