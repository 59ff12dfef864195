"""Where the line between quiet and alert lies: by budget without labels, or by F1 with them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from stream_ccsd.errors import StreamCcsdError


def threshold_by_budget(rate: float) -> float:
    """The alert score that a share ``rate`` of normal transactions reaches; alert scores are rarities, ``-log(rate)``.

    >>> round(threshold_by_budget(1e-3), 3)
    6.908
    """
    if not 0 < rate < 1:
        raise StreamCcsdError(f"an alert rate lies between 0 and 1, got {rate!r}")
    return float(-np.log(rate))


def checked_threshold(threshold: float) -> float:
    """A threshold that an engine can work with and a run can be resumed with.

    Raises
    ------
    StreamCcsdError
        If it is not a finite number.
    """
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not np.isfinite(threshold):
        raise StreamCcsdError(f"the alert threshold is a finite number (nats of rarity), got {threshold!r}")
    return float(threshold)


def threshold_by_f1(scores: ArrayLike, labels: ArrayLike) -> float:
    """The score at which "score or more" has the highest F1 against the labels (offline, on VAL).

    >>> threshold_by_f1([0.1, 0.4, 0.8, 0.9], [0, 0, 1, 1])
    0.8
    """
    score, label = np.asarray(scores, dtype=float), np.asarray(labels).astype(bool)
    if len(score) != len(label) or not label.any() or np.isnan(score).any():
        raise StreamCcsdError("F1 needs as many labels as scores, no missing score, and at least one positive label")
    order = np.argsort(-score, kind="stable")
    hits = np.cumsum(label[order])
    f1 = 2 * hits / (np.arange(1, len(score) + 1) + label.sum())
    # Equal scores are taken together: only the last of a run is a possible line.
    last_of_run = np.append(np.diff(score[order]) != 0, True)
    best = int(np.argmax(np.where(last_of_run, f1, -1.0)))
    return float(score[order][best])
