"""Windows of normal accounts, standardised in the library as they are in the stream."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.numerics.compiling import compiled, inner
from stream_ccsd.settings import Settings

# Bits of a regime: how a transaction differs from the one before it.
MERCHANT_CHANGED, CATEGORY_CHANGED = 1, 2
REGIME_COUNT = 4
WIDEST_CHANGE = 1e4
"""Bandwidths that changes may be wide before features for them become absurd."""


@dataclass(frozen=True, eq=False)
class AccountHistory:
    """All transactions of one account in time order, as columns."""

    times: FloatArray
    amounts: FloatArray
    categories: AnyArray  # 32-bit codes
    merchants: AnyArray
    names: AnyArray = field(default_factory=lambda: np.empty((0, 0), np.uint32))  # (declared categories, transactions)
    numbers: FloatArray = field(default_factory=lambda: np.empty((0, 0)))  # (declared numbers, transactions)


@dataclass(frozen=True, eq=False)
class WindowTable:
    """Windows by row: standardised amounts, signed change, change flags and pair at the last transaction."""

    z: FloatArray  # (n, K)
    change: FloatArray  # (n,), z of the last transaction minus z of the one before
    regime: AnyArray  # (n,), CATEGORY_CHANGED and MERCHANT_CHANGED where they are
    categories: AnyArray
    merchants: AnyArray

    def __len__(self) -> int:
        return len(self.z)


@inner()
def enter_amount(count: int, mean: float, squares: float, amount: float) -> tuple[int, float, float]:
    """Count, mean and sum of squared deviations with one amount more, by Welford's recurrence.

    Stream and library both go through here: the same amounts give the same bits.
    """
    count += 1
    delta = amount - mean
    mean += delta / count
    squares += delta * (amount - mean)
    return count, mean, squares


@compiled()
def running_moments(amounts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and deviation of the amounts up to each transaction, itself included.

    >>> mean, deviation = running_moments(np.array([1.0, 3.0]))
    >>> mean, deviation
    (array([1., 2.]), array([0., 1.]))
    """
    means, deviations = np.empty(len(amounts)), np.empty(len(amounts))
    count, mean, squares = 0, 0.0, 0.0
    for i, amount in enumerate(amounts):
        count, mean, squares = enter_amount(count, mean, squares, amount)
        means[i], deviations[i] = mean, np.sqrt(squares / count)
    return means, deviations


def library_windows(accounts: Iterable[AccountHistory], settings: Settings) -> WindowTable:
    """Windows of length K at the library's stride from every account that is long enough."""
    k = settings.window
    parts: dict[str, list[Any]] = {name: [] for name in ("z", "change", "regime", "categories", "merchants")}
    for account in accounts:
        ends = np.arange(k - 1, len(account.amounts), settings.library_stride)
        if not len(ends):
            continue
        if settings.standardise == "history":
            mean, deviation = (np.full(len(ends), v) for v in (account.amounts.mean(), account.amounts.std()))
        else:
            mean, deviation = (m[ends] for m in running_moments(account.amounts))
        deviation = np.where(deviation > 0, deviation, 1.0)
        rows = np.lib.stride_tricks.sliding_window_view(account.amounts, k)[ends - k + 1]
        parts["z"].append((rows - mean[:, None]) / deviation[:, None])
        parts["change"].append((account.amounts[ends] - account.amounts[ends - 1]) / deviation)
        category_changed = account.categories[ends] != account.categories[ends - 1]
        merchant_changed = account.merchants[ends] != account.merchants[ends - 1]
        parts["regime"].append(CATEGORY_CHANGED * category_changed + MERCHANT_CHANGED * merchant_changed)
        parts["categories"].append(account.categories[ends])
        parts["merchants"].append(account.merchants[ends])
    if not parts["z"]:
        empty = np.empty(0)
        codes = np.empty(0, np.uint32)
        return WindowTable(np.empty((0, k)), empty, np.empty(0, np.int8), codes, codes)
    return WindowTable(
        np.concatenate(parts["z"]),
        np.concatenate(parts["change"]),
        np.concatenate(parts["regime"]).astype(np.int8),
        np.concatenate(parts["categories"]).astype(np.uint32),
        np.concatenate(parts["merchants"]).astype(np.uint32),
    )
