"""What others print, written down once: figures and settings that ours stand beside."""

from __future__ import annotations

from typing import NamedTuple

# Fraud on BankSim: bandwidths, and figures by variant of the method, at account level.
FRAUD_SIGMA_X, FRAUD_SIGMA_Y = 9.649, 1.016
FRAUD: dict[str, dict[str, dict[str, float]]] = {
    "full": {
        "val": {"auc": 0.756, "ap": 0.677},
        "test": {"auc": 0.766, "ap": 0.792, "accuracy": 0.785, "precision": 0.771, "recall": 0.953, "f1": 0.853},
    },
    "no_rarity": {"test": {"auc": 0.631, "ap": 0.702}},
}


class ClusteringRow(NamedTuple):
    """A row of Table 1: chosen bandwidths, TEST NMI of the divergence and of DTW, series a part where it was capped."""

    tau: float
    sigma: float
    nmi: float
    dtw_nmi: float
    cap: int | None = None


TABLE_1 = {
    "DiatomSizeReduction": ClusteringRow(0.05, 1.12, 0.9033, 0.7610),
    "FaceAll": ClusteringRow(0.05, 0.9595, 0.6748, 0.5388, cap=500),
    "Coffee": ClusteringRow(2.0, 0.6975, 0.6919, 0.6919),
    "ECG5000": ClusteringRow(0.05, 0.9705, 0.5169, 0.5225, cap=500),
}

# The Fraud Detection Handbook (Le Borgne et al.), one test week: AUC, average precision, CP@100. Chapter 3 has plain
# models, chapter 7 tuned ones, each with its settings chosen prequentially.
HANDBOOK: dict[str, dict[str, float]] = {
    name: dict(zip(("auc", "ap", "cp100"), figures, strict=True))
    for name, figures in {
        "logistic regression": (0.871, 0.606, 0.291),
        "random forest": (0.867, 0.658, 0.287),
        "XGBoost": (0.862, 0.639, 0.273),
        "XGBoost, tuned": (0.869, 0.687, 0.303),
        "random forest, tuned": (0.870, 0.678, 0.299),
        "LSTM, tuned": (0.876, 0.665, 0.297),
    }.items()
}
