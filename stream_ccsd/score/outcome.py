"""The newest transaction against what normal accounts do, and against what this account does.

The outcome of a transaction is ``o = (log(1 + amount), category, merchant)``; the law of the observed outcome is a
point, so its divergence from a law q is ``-log(q(o) / sqrt(I_qq))`` with ``q(o) = sum_j q_j k(o, o_j)``. It needs no
history and starts with an account's first transaction.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from stream_ccsd.library.laws import Laws, outcome_density
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.settings import Settings


@njit(cache=True, nogil=True)
def outcome_parts(laws: Laws, amount: float, category: int, merchant: int) -> tuple[float, float, float, float, float]:
    """The outcome score as additive parts, in nats, and the density behind it.

    How rare the merchant is, how rare the category given the merchant, how far the amount lies from what is paid there,
    and a constant (how concentrated normal behaviour is as a whole). The score is their sum.
    """
    at_merchant, both, density = outcome_density(laws, np.log1p(amount), category, merchant)
    density += laws.ridge
    at_merchant += laws.ridge
    both += laws.ridge
    constant = 0.5 * np.log(laws.self_term)
    return -np.log(at_merchant), -np.log(both / at_merchant), -np.log(density / both), constant, density


def habit_log_decay(settings: Settings) -> FloatArray:
    """Logarithm of the weight of the account's own transactions, by lag."""
    decay: FloatArray = -np.log(2.0) * np.arange(settings.local_history + 1) / settings.half_life
    return decay


@njit(cache=True, nogil=True)
def habit_density(
    laws: Laws, log_decay: FloatArray, amounts: FloatArray, categories: AnyArray, merchants: AnyArray
) -> tuple[float, float]:
    """Decayed sum of the kernel between the newest transaction and the account's earlier ones, and of the weights."""
    newest = len(amounts) - 1
    u = np.log1p(amounts[newest])
    scale = -0.5 / (laws.sigma_u * laws.sigma_u)
    likeness = weight = 0.0
    for lag in range(1, min(newest + 1, len(log_decay))):
        i = newest - lag
        w = np.exp(log_decay[lag])
        difference = u - np.log1p(amounts[i])
        value = w * np.exp(scale * difference * difference)
        if categories[i] != categories[newest]:
            value *= laws.mismatch
        if merchants[i] != merchants[newest]:
            value *= laws.mismatch
        likeness += value
        weight += w
    return likeness, weight


@njit(cache=True, nogil=True)
def habit_score(laws: Laws, density: float, likeness: float, weight: float, strength: float) -> float:
    """``-log(mix / sqrt(I_qq))``, ``mix`` the account's own law and the normal law, worth ``strength`` transactions.

    Without a history it is the outcome score. The norm stays that of the normal law, so that both are on one scale;
    dividing by the mixture's own norm was measured and ranks no better.
    """
    mix = (likeness + strength * density) / (weight + strength)
    return -np.log(mix / np.sqrt(laws.self_term))
