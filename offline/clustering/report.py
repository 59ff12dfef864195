"""The clustering evaluation as tables and as one page: ranks, a map of every data set, sensitivity to bandwidths."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment

from offline.clustering.metrics import contingency
from offline.clustering.pictures import Picture, draw_critical_difference
from offline.clustering.protocols import Run
from stream_ccsd.cli.report import BLUE, RED, axes, picture, table, write_page
from stream_ccsd.numerics.arrays import AnyArray


def runs_table(runs: list[Run]) -> pd.DataFrame:
    """A row a run."""
    return pd.DataFrame(
        {
            "data set": run["dataset"],
            "distance": method_name(run),
            "method": run["method"],
            "choice": run["selection"],
            "setting": _setting_text(run),
            "NMI": f"{run['nmi_mean']:.4f}",
            "±": f"{run['nmi_std']:.4f}",
            "ARI": f"{run['ari_mean']:.3f}",
            "accuracy": f"{run['accuracy_mean']:.3f}",
            "series": f"{run['test_series']:,}",
            "seconds": f"{run['seconds']:.2f}",
        }
        for run in runs
    )


def comparison_table(compared: dict[str, Any]) -> pd.DataFrame:
    """A row a method, the highest mean NMI first: wins, ties and losses of the reference against it, p, Holm's p."""
    against = {a["method"]: a for a in compared["against"]}
    rows = []
    seconds = compared["mean_seconds"]
    for name, nmi in sorted(compared["mean_nmi"].items(), key=lambda item: -item[1]):
        a = against.get(name)
        rows.append(
            {
                "distance": name,
                "NMI": f"{nmi:.3f}",
                "ARI": f"{compared['mean_ari'][name]:.3f}",
                "acc.": f"{compared['mean_accuracy'][name]:.3f}",
                "seconds": f"{seconds[name]:.2f}",
                "rank": f"{compared['mean_rank'][name]:.2f}",
                "w/t/l": f"{a['wins']}/{a['ties']}/{a['losses']}" if a else "",
                "p": f"{a['wilcoxon_p']:.3f}" if a else "",
                "Holm": f"{a['holm_p']:.3f}" if a else "",
            }
        )
    return pd.DataFrame(rows)


def scores_table(runs: list[Run]) -> pd.DataFrame:
    """NMI, a row a data set and a column a method, in the order in which they came; nothing where one failed."""
    table = pd.DataFrame({"data set": r["dataset"], "method": method_name(r), "nmi": r["nmi_mean"]} for r in runs)
    scores = table.pivot_table(index="data set", columns="method", values="nmi", sort=False)
    return scores.map(lambda nmi: "" if pd.isna(nmi) else f"{nmi:.3f}").reset_index()


def gaps(runs: list[Run], reference: str, most: int = 4) -> tuple[str, str]:
    """Where the reference is furthest ahead of the best other method, and where furthest behind it, in words."""
    table = pd.DataFrame({"data set": r["dataset"], "method": method_name(r), "nmi": r["nmi_mean"]} for r in runs)
    scores = table.pivot_table(index="data set", columns="method", values="nmi")
    others = [name for name in scores if not name.startswith("ccsd")] or [n for n in scores if n != reference]
    gap = (scores[reference] - scores[others].max(axis=1)).dropna().sort_values()

    def said(part: pd.Series) -> str:
        return ", ".join(f"{name} ({value:+.2f})" for name, value in part.items()) or "none"

    return said(gap[gap > 0].tail(most)[::-1]), said(gap[gap < 0].head(most))


def failures_table(failed: list[dict[str, str]]) -> pd.DataFrame:
    """What could not be done, and why."""
    return pd.DataFrame(
        {"data set": row["dataset"], "distance": row.get("distance", "all"), "reason": row["reason"]} for row in failed
    )


def method_name(run: Run) -> str:
    """A row's name in comparisons: the distance, what it could choose among, and how."""
    if run["protocol"] == "label-free":
        other = f" {run['weights']}" if run.get("weights", "one-sided") != "one-sided" else ""
        return _LABEL_FREE[run["distance"]] + other
    name = str(run["distance"])
    if run["distance"] == "ccsd" and run["weights"] != "one-sided":
        name += f" {run['weights']}"
    if len(run["outputs"]) == 1:
        name += f" {run['outputs'][0]}"
    return name + (" label-free" if run["selection"] == "label-free" else "")


def _setting_text(run: Run) -> str:
    """The parameters of a run in a few characters."""
    if "tau" in run:
        sigmas = "/".join(f"{run[s]:.3g}" for s in ("sigma", "slope_sigma") if s in run)
        return f"{run['output']}, τ {run['tau']:g}, σ {sigmas}"
    if "window" in run:
        return f"{run['output']}, w {'all' if run['window'] is None else run['window']}"
    return f"{run['output']}, c {run['cost']:g}" if "cost" in run else str(run["output"])


# What the field calls them.
_LABEL_FREE = {"ccsd": "ccsd", "kasba": "KASBA", "kshape": "k-Shape", "msm": "PAM-MSM", "dtw": "PAM-DTW"}
_LABEL_FREE |= {
    "ed": "PAM-Euclid",
    "ccsd-straight": "ccsd straight",
    "msm-paths": "MSM paths",
    "dtw-paths": "DTW paths",
}


def write_report(result: dict[str, Any], pictures: Sequence[Picture], folder: Path) -> Path:
    """Write ``report.html`` into the folder; returns its path."""
    runs, failed = result["runs"], result["failed"]
    parts = [f"<p>{_PROTOCOLS[runs[0]['protocol']]} </p>"] if runs else []
    if not result["complete"]:
        parts.append("<p><b>Stopped before the end:</b> what follows is what was finished by then.</p>")
    if result.get("comparison"):
        parts += _comparison_section(result["comparison"], runs)
    if failed:
        parts += ["<h2>What could not be done</h2>", _table(failures_table(failed))]
    if runs:
        rows = runs_table(runs)
        if runs[0]["protocol"] == "label-free":  # what all rows have in common, or their names say
            rows = rows.drop(columns=["method", "choice"])
        parts += ["<h2>All rows</h2>", _table(rows)]
        if runs[0]["cap"]:
            parts.append(f"<p class=note>At most {runs[0]['cap']:,} series a part, classes in proportion.</p>")
    if pictures:
        parts.append("<h2>Maps and sensitivity</h2>")
        parts.append(
            "<p>Classical scaling of the chosen divergence between test series (at most 600 shown), coloured by class "
            "and by cluster; TEST NMI when one bandwidth moves away from the chosen one (grey line).</p>"
        )
    for shown in pictures:
        parts += [f"<h3>{html.escape(shown.dataset)}</h3>", picture(_draw(shown), f"map of {shown.dataset}")]
    return write_page(folder / "report.html", "Clustering with the divergence", parts)


_PROTOCOLS = {
    "label-free": "Protocol: label-free. Every method at its defaults clusters TEST's series into as many clusters "
    "as there are classes; what it chooses, it chooses from them. Labels are only compared with the clusters found. "
    "Mean and deviation over three seeds.",
    "full": "Protocol: full. k-medoids with as many clusters as classes; settings chosen on TRAIN (label-free: without "
    "its labels), figures on TEST, mean and deviation over five seeds.",
    "paper": "Protocol: the paper's. k-medoids with as many clusters as classes; settings chosen on TRAIN, figures on "
    "TEST, mean and deviation over five seeds.",
}


_FOR = (
    "It compares what is there at one time, within a bandwidth of some steps: it is for series in which timing tells "
    "classes apart, and for those whose slopes do."
)
_STRAIGHT = (
    "Where the same shape comes sooner or later, a distance that warps or shifts time (DTW, MSM, k-Shape) sees what "
    "this one cannot."
)
_PATHS = (
    "Shifts in time it bridges by way of neighbours, where there are so many series that each lies close to others of "
    "its kind. Where shapes come sooner or later and series are few, a distance that warps or shifts time (DTW, MSM, "
    "k-Shape) sees what this one cannot."
)


def _table(frame: Any) -> str:
    return table(list(frame), frame.to_numpy().tolist())


def _comparison_section(compared: dict[str, Any], runs: list[dict[str, Any]]) -> list[str]:
    note = ""
    if "critical_difference" in compared:
        note = (
            f" Friedman p {compared['friedman_p']:.1e}; by Nemenyi's test mean ranks further apart than "
            f"{compared['critical_difference']:.2f} differ (5 %)."
        )
    if runs[0]["protocol"] == "full":
        note += " A name without an output chose it on TRAIN."
    ahead, behind = gaps(runs, compared["reference"])
    ranks = draw_critical_difference(compared)
    return [
        "<h2>Methods compared</h2>",
        _table(comparison_table(compared)),
        f"<p class=note>Means over {compared['datasets']} data sets; seconds a data set; w/t/l are wins, ties, losses "
        f"of {html.escape(compared['reference'])}; p is Wilcoxon's, Holm the same corrected for all pairs.{note}</p>",
        picture(ranks, "mean ranks of the methods, with bars over those that do not differ"),
        "<p class=note>Mean ranks by NMI, the best on the left. A bar joins methods of which no two differ (Wilcoxon "
        "with Holm's correction, 5 %).</p>",
        "<h2>NMI by data set</h2>",
        _table(scores_table(runs)),
        "<h2>Which series the divergence is for</h2>",
        f"<p>Against the best other method it gains most on {html.escape(ahead)}, and loses most on "
        f"{html.escape(behind)}. {_FOR} {_PATHS if runs[0]['protocol'] == 'label-free' else _STRAIGHT}</p>",
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
