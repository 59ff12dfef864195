"""The evaluation's tables as command and report show them: all texts."""

from __future__ import annotations

from typing import Any

import pandas as pd

from offline.clustering.protocols import Run


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
