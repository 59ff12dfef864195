"""Means over the runs of an evaluation, as the tables that command and report show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from offline import published
from offline.fraud.stream import evaluated_scores

Runs = list[dict[str, Any]]

# Columns of the paper's table, and where a run has them.
_PAPER_COLUMNS = {
    "VAL AUC": ("val", "auc"),
    "VAL AP": ("val", "ap"),
    "TEST AUC": ("test", "auc"),
    "TEST AP": ("test", "ap"),
    "accuracy": ("test", "accuracy"),
    "precision": ("test", "precision"),
    "recall": ("test", "recall"),
    "F1": ("test", "f1"),
}
_RANKING_METRICS = {"auc": "AUC", "ap": "AP", "f1": "F1"}


def paper_table(runs: Runs) -> pd.DataFrame:
    """A row a variant of the paper's method, and one of what the paper prints for the whole of it."""
    ours = pd.DataFrame(
        {"variant": name, **_paper_figures(figures)}
        for run in runs
        for name, figures in {"full": run, **run.get("ablation", {})}.items()
    )
    theirs = pd.DataFrame([_paper_figures(published.FRAUD["full"])], index=["the paper's full"])
    return pd.concat([ours.groupby("variant", sort=False).mean(), theirs])


def label_blind_auc(runs: Runs) -> pd.Series:
    """TEST AUC of the paper's method with one stride for all accounts, by stride; empty where that was not run."""
    return pd.DataFrame(
        {name: figures["test"]["auc"] for name, figures in run.get("label_blind", {}).items()} for run in runs
    ).mean()


def ranking_table(runs: Runs) -> pd.DataFrame:
    """TEST figures of every score and baseline: "account AUC", "transaction AP" …; NaN where there is none.

    Rows are known by ``baseline`` (a bool), ``score`` and ``supervised``, the engine's own scores first.
    """
    table = pd.DataFrame(
        {
            "baseline": baseline,
            "score": name,
            "supervised": judgement.get("supervised", False),
            **{f"{level} {title}": _number(judgement["test"].get(m)) for m, title in _RANKING_METRICS.items()},
        }
        for run in runs
        for level in ("account", "transaction")
        for baseline in (False, True)
        for name, judgement in (run[level]["baselines"] if baseline else run[level]).items()
        if name != "baselines"
    )
    return table.groupby(["baseline", "score", "supervised"], sort=False).mean()


def pattern_table(runs: Runs, level: str, metric: str, of: str = "patterns") -> pd.DataFrame:
    """A row a score or baseline (marked so), a column a pattern (or kind) of fraud."""
    ours = evaluated_scores()
    table = pd.DataFrame(
        {"score": name if name in ours else f"baseline {name}", "pattern": pattern, metric: _number(figures[metric])}
        for run in runs
        for pattern, levels in run[of].items()
        for name, figures in levels[level].items()
    )
    return table.pivot_table(index="score", columns="pattern", values=metric, sort=False, dropna=False)


def budget_sentence(runs: Runs) -> str:
    """What the alert budget led to on TEST."""
    table = pd.DataFrame(
        {
            "rate": run["operation"]["alerts_per_1000_transactions"],
            "detected": run["operation"]["thresholds"]["budget"]["detected_share"],
            "immediate": run["operation"]["thresholds"]["budget"]["immediate_share"] or 0.0,
        }
        for run in runs
    ).mean()
    return (
        f"By alert budget: {table['rate']:.1f} alerts per 1,000 transactions, {table['detected']:.0%} of fraud "
        f"accounts detected, {table['immediate']:.0%} of those at their first fraud."
    )


def cells(values: Iterable[float]) -> list[str]:
    """Numbers as tables show them; nothing where there is none."""
    return ["" if pd.isna(value) else f"{value:.3f}" for value in values]


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _paper_figures(judgement: dict[str, Any]) -> dict[str, float]:
    return {title: judgement[part][metric] for title, (part, metric) in _PAPER_COLUMNS.items()}
