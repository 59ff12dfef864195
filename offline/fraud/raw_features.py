"""Raw features as fraud teams make them, and as the Handbook has them: all causal, labels as late as they come."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import pandas as pd

from offline.fraud.days import Days, codes_of
from stream_ccsd.calendar import Calendar
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, IntArray
from stream_ccsd.numerics.compiling import compiled
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import category_value, number_value

WINDOWS = (1, 7, 30)
"""Days over which accounts and merchants are summed up."""
# A category with more values than this is described by its sums alone.
_MOST = 200


def raw_features(days: Days, settings: Settings) -> pd.DataFrame:
    """What no label is needed for, a row a transaction: amount, time, sums of its account and merchant so far.

    Categories are codes, in the order in which they come, where there are few.
    """
    transactions = days.data.transactions
    amount = np.array([t.amount for t in transactions])
    columns: dict[str, AnyArray] = {"amount": amount, "log_amount": np.log1p(amount)}
    calendar = Calendar.choose(settings.time_unit, settings.time_origin, days.time.tolist())
    if calendar.unit != "number":
        columns["hour"] = days.time / days.length % 1.0 * 24.0
        columns["weekday"] = days.day % 7
    columns["gap"] = _gaps(days.account, days.time / days.length)
    for name, key in (("account", days.account), ("merchant", days.merchant)):
        for window in WINDOWS:
            count, total = trailing_sums(key, days.time, amount, window * days.length)
            columns[f"{name}_count_{window}"] = count
            if name == "account":
                columns[f"{name}_mean_{window}"] = total / count
    columns |= _few("category", codes_of(t.category for t in transactions)) | _few("merchant", days.merchant)
    for declared in settings.declared:
        if declared.kind == "number":
            columns[declared.name] = np.array([number_value(t, declared.name) for t in transactions])
        else:
            columns |= _few(declared.name, codes_of(category_value(t, declared.name) for t in transactions))
    return pd.DataFrame({name: np.asarray(column, np.float32) for name, column in columns.items()})


def _few(name: str, codes: AnyArray) -> dict[str, AnyArray]:
    return {name: codes} if 0 < codes.max() < _MOST else {}


def _gaps(key: IntArray, time: FloatArray) -> FloatArray:
    """Time since the account's transaction before; -1 for its first."""
    return pd.Series(time).groupby(key).diff().fillna(-1.0).to_numpy()


def trailing_sums(key: IntArray, time: FloatArray, value: FloatArray, window: float) -> tuple[FloatArray, FloatArray]:
    """How many transactions of its key there were in the window up to each, itself included, and their sum."""
    order = np.argsort(key, kind="stable")
    count, total = np.empty(len(key)), np.empty(len(key))
    count[order], total[order] = _trailing(key[order], time[order], value[order], window)
    return count, total


@compiled()
def _trailing(key: IntArray, time: FloatArray, value: FloatArray, window: float) -> tuple[FloatArray, FloatArray]:
    count, total = np.empty(len(key)), np.empty(len(key))
    begin, running = 0, 0.0
    for i in range(len(key)):
        if i and key[i] != key[i - 1]:
            begin, running = i, 0.0
        running += value[i]
        while time[begin] <= time[i] - window:
            running -= value[begin]
            begin += 1
        count[i], total[i] = i + 1 - begin, running
    return count, total


@dataclass(eq=False)
class DelayedRates:
    """Of each merchant, what became known within the last days: how much, and the share of fraud in it.

    A label that takes a week to come tells in the window of a day about what was a week before, as in the Handbook;
    one that an investigator gave tells at once.
    """

    merchants: int

    def __post_init__(self) -> None:
        self._all = {window: np.zeros(self.merchants) for window in WINDOWS}
        self._fraud = {window: np.zeros(self.merchants) for window in WINDOWS}
        self._left = {window: deque[tuple[int, IntArray, AnyArray]]() for window in WINDOWS}

    def advance(self, day: int, merchant: IntArray, fraud: AnyArray) -> None:
        """A new day, at whose beginning these became known."""
        for window in WINDOWS:
            self._add(window, merchant, fraud, 1.0)
            waiting = self._left[window]
            waiting.append((day, merchant, fraud))
            while waiting[0][0] <= day - window:
                _, old, old_fraud = waiting.popleft()
                self._add(window, old, old_fraud, -1.0)

    def _add(self, window: int, merchant: IntArray, fraud: AnyArray, sign: float) -> None:
        np.add.at(self._all[window], merchant, sign)
        np.add.at(self._fraud[window], merchant[fraud], sign)

    def features(self, merchant: IntArray) -> FloatArray:
        """By transaction: count and share of fraud in each window; no share where nothing is known."""
        columns = []
        for window in WINDOWS:
            count = self._all[window][merchant]
            columns += [count, self._fraud[window][merchant] / np.maximum(count, 1.0)]
        return np.column_stack(columns)
