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
    """A row a method, the highest mean NMI first; nothing in place of the reference against itself."""
    against = {a["method"]: a for a in compared["against"]}
    rows = []
    for name, nmi in sorted(compared["mean_nmi"].items(), key=lambda item: -item[1]):
        a = against.get(name)
        rows.append(
            {
                "distance": name,
                "mean NMI": f"{nmi:.3f}",
                "mean rank": f"{compared['mean_rank'][name]:.2f}",
                "ccsd wins/ties/loses": f"{a['wins']}/{a['ties']}/{a['losses']}" if a else "",
                "Wilcoxon p": f"{a['wilcoxon_p']:.3f}" if a else "",
            }
        )
    return pd.DataFrame(rows)


def method_name(run: Run) -> str:
    """A row's name in comparisons: the distance, what it could choose among, and how."""
    name = str(run["distance"])
    if run["distance"] == "ccsd" and run["weights"] != "one-sided":
        name += f" {run['weights']}"
    if len(run["outputs"]) == 1:
        name += f" {run['outputs'][0]}"
    return name + (" label-free" if run["selection"] == "label-free" else "")


def _setting_text(run: Run) -> str:
    """The parameters of a run in a few characters."""
    if run["distance"] == "ccsd":
        sigmas = "/".join(f"{run[s]:.3g}" for s in ("sigma", "slope_sigma") if s in run)
        return f"{run['output']}, τ {run['tau']:g}, σ {sigmas}"
    if run["distance"] == "dtw":
        return f"{run['output']}, w {'all' if run['window'] is None else run['window']}"
    return f"{run['output']}, c {run['cost']:g}" if run["distance"] == "msm" else str(run["output"])
