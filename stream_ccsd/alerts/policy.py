"""The alert threshold, and when an account's running maximum becomes an alert.

The threshold follows from an alert budget where there are no labels, or maximises F1 where there are. The policy then
adds cooldown, margin, the cap on alerts in an interval, and the share of alerts that is drawn at random.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from stream_ccsd.account import TOP
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.numerics.arrays import FloatArray
from stream_ccsd.numerics.compiling import compiled, inner
from stream_ccsd.settings import Settings

# The outcome of a score that reached the threshold; each answer keeps it.
QUIET, ALERTED, HELD_BACK = 0, 1, 2


class Policy(NamedTuple):
    """The numbers of the decision."""

    threshold: float
    margin: float
    cooldown: float
    cap: int
    interval: float
    explored: float  # share of all transactions that are alerts whatever they score


def build_policy(settings: Settings, threshold: float, explore: float | None = None) -> Policy:
    """The policy of these settings at that threshold; ``explore`` takes the place of the settings' own."""
    share = settings.explore if explore is None else checked_share(explore)
    return Policy(
        float(threshold),
        float(settings.alert_margin),
        float(settings.alert_cooldown),
        int(settings.alert_cap),
        float(settings.alert_interval),
        share * math.exp(-max(float(threshold), 0.0)),
    )


def checked_share(explore: float) -> float:
    """A share of the alert budget for exploration.

    Raises
    ------
    StreamCcsdError
        If it is no number from 0 to 1.
    """
    if isinstance(explore, bool) or not isinstance(explore, int | float) or not 0.0 <= explore <= 1.0:
        raise StreamCcsdError(f"the share that is explored is a number from 0 to 1, got {explore!r}")
    return float(explore)


@inner()
def decide(policy: Policy, account: Any, score: float, time: float, cap: FloatArray) -> int:
    """Whether this score, which the account's maximum already includes, is an alert; updates account and cap if so.

    A first alert needs the threshold; a further one a score above the last alert's by the margin, after the cool-down.
    A transaction is only ever alerted for its own score. What rose during a cool-down shows in the account's maximum.
    ``cap`` holds the current interval and the alerts in it; an alert over the cap is held back, and the account may
    alert with its next transaction that qualifies.
    """
    if not score >= policy.threshold:
        return QUIET
    if account.alerts > 0 and (
        score < account.alerted_score + policy.margin or time < account.alerted_time + policy.cooldown
    ):
        return QUIET
    if policy.cap > 0:
        interval = np.floor(time / policy.interval)
        if interval > cap[0] or interval < cap[0] - 1.0:  # a clock that jumped ahead must not silence what follows
            cap[0], cap[1] = interval, 0.0
        if cap[1] >= policy.cap:
            return HELD_BACK
        cap[1] += 1.0
    account.alerts += 1
    account.alerted_score = score
    account.alerted_time = time
    return ALERTED


@inner()
def explores(policy: Policy, identity: Any) -> bool:
    """Whether a transaction is drawn for exploration, by its hashed id: the same in every process."""
    return policy.explored > 0.0 and float(identity) * 2.0**-64 < policy.explored


@compiled()
def enter_score(account: Any, score: float) -> float:
    """Add a score to the account's highest; returns the maximum before."""
    before = account.top[0]
    for i in range(TOP):
        if score > account.top[i]:
            for j in range(TOP - 1, i, -1):
                account.top[j] = account.top[j - 1]
            account.top[i] = score
            break
    return before


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
    # Equal scores are taken together: only the last of a run is a possible threshold.
    last_of_run = np.append(np.diff(score[order]) != 0, True)
    best = int(np.argmax(np.where(last_of_run, f1, -1.0)))
    return float(score[order][best])
