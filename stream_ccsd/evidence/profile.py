"""What an account's past says about its newest transaction: its usual amounts, places, hours, gaps and values.

The ``view`` is that as numbers (see ``account``). It is taken before the transaction is added to the profile, so that
nothing is compared with itself. Scores, reasons and fits read the same view.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stream_ccsd.account import (
    ALIKE,
    AT_HOUR,
    AT_PLACE,
    GAP,
    GAPS,
    HOUR,
    HOUR_WEIGHT,
    HOURS,
    IN_DAY,
    IN_HOUR,
    LATELY,
    NAMED,
    OWN_WEIGHT,
    RATE,
    USUAL,
    USUAL_WEIGHT,
    VIEW,
    WEEKDAY,
)
from stream_ccsd.divergence.search.windows import enter_amount
from stream_ccsd.evidence.densities import COUNTS, RATES, Densities, gap_position, hour_and_weekday, residual
from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.numerics.compiling import compiled, inner
from stream_ccsd.settings import Settings

# Gaps that a usual one is worth at least, before an account belongs to a class.
_SETTLED = 3.0
# How much, in log amounts, payments at one place may differ and still be alike.
_SPREAD = 0.25
# The most that one amount may lie beyond the usual, in log amounts, where several are added up.
_FARTHEST = 3.0


def decay_by_lag(settings: Settings) -> FloatArray:
    """Weight of an account's earlier transactions, by lag; 1 at lag 0."""
    decay: FloatArray = 0.5 ** (np.arange(NAMED + 1) / settings.half_life)
    return decay


@inner()
def look_back(
    laws: Densities,
    decay: FloatArray,
    account: Any,
    history: AnyArray,
    named: AnyArray,
    event: Any,
    names: AnyArray,
    view: FloatArray,
) -> None:
    """Fill the view of an event before it is added. ``named`` and ``names`` are codes of declared categories."""
    view[USUAL_WEIGHT] = account.usual_weight
    view[USUAL] = account.usual_sum / account.usual_weight if account.usual_weight > 0.0 else 0.0
    held = account.held
    kept = min(held, NAMED)
    here = np.log1p(event.amount)
    same = weight = alike = 0.0
    for lag in range(1, kept + 1):
        entry = history[held - lag]
        weight += decay[lag]
        if entry.merchant == event.merchant and entry.category == event.category:
            same += decay[lag]
            distance = (here - np.log1p(entry.amount)) / _SPREAD
            alike += decay[lag] * np.exp(-0.5 * distance * distance)
    view[AT_PLACE], view[OWN_WEIGHT] = same, weight
    view[ALIKE] = alike / (_SPREAD * np.sqrt(2.0 * np.pi))
    for i in range(len(names)):
        same = 0.0
        for lag in range(1, kept + 1):
            if named[i, kept - lag] == names[i]:
                same += decay[lag]
        view[VIEW + i] = same
    _look_at_clock(laws, account, event.time, view)
    _look_at_pace(laws, account, event.time, view)


@compiled()
def _look_at_clock(laws: Densities, account: Any, time: float, view: FloatArray) -> None:
    view[HOUR] = view[WEEKDAY] = np.nan
    view[AT_HOUR] = view[HOUR_WEIGHT] = 0.0
    if laws.day <= 0.0:
        return
    view[HOUR], view[WEEKDAY] = hour_and_weekday(laws, time)
    hour = int(view[HOUR])
    # A bin and half of each neighbour: two hours' worth of weight.
    near = account.hours[hour] + 0.5 * (account.hours[(hour + 1) % HOURS] + account.hours[(hour - 1) % HOURS])
    view[AT_HOUR] = 0.5 * near
    for i in range(HOURS):
        view[HOUR_WEIGHT] += account.hours[i]


@inner()
def _look_at_pace(laws: Densities, account: Any, time: float, view: FloatArray) -> None:
    view[IN_HOUR] = view[IN_DAY] = view[RATE] = 0.0
    if account.gap_weight >= _SETTLED:
        powers = np.floor(account.gap_sum / account.gap_weight / np.log(2.0))
        view[RATE] = 1.0 + min(max(powers, 0.0), RATES - 2.0)
    if account.count == 0:
        view[GAP] = np.nan
        return
    elapsed = view[GAP] = max(time - account.newest_time, 0.0)
    if laws.day <= 0.0:
        return
    for back in range(min(account.count, GAPS, COUNTS - 1)):
        if elapsed > laws.day:
            break
        view[IN_DAY] += 1.0
        if elapsed <= laws.day / 24.0:
            view[IN_HOUR] += 1.0
        elapsed += account.gaps[(account.count - 1 - back) % GAPS]


@inner()
def look_at_lately(laws: Densities, account: Any, time: float, lately: FloatArray) -> None:
    """How far above its usual the account paid in the last days, and how often, as of now."""
    since = 1.0
    if laws.day > 0.0:
        since = max(time - account.newest_time, 0.0) / laws.day if account.count > 0 else 0.0
    for i in range(len(LATELY)):
        faded = 0.5 ** (since / LATELY[i])
        lately[2 * i], lately[2 * i + 1] = faded * account.lately[2 * i], faded * account.lately[2 * i + 1]


@inner()
def _take_in_lately(laws: Densities, account: Any, time: float, beyond: float) -> None:
    """Add a transaction; a late one counts as if it came now."""
    since = 1.0
    if laws.day > 0.0:
        since = max(time - account.newest_time, 0.0) / laws.day if account.count > 1 else 0.0
    for i in range(len(LATELY)):
        faded = 0.5 ** (since / LATELY[i])
        account.lately[2 * i] = faded * account.lately[2 * i] + min(max(beyond, -_FARTHEST), _FARTHEST)
        account.lately[2 * i + 1] = faded * account.lately[2 * i + 1] + 1.0


@inner()
def take_in(laws: Densities, decay: FloatArray, account: Any, time: float, residual: float, view: FloatArray) -> None:
    """Add the transaction that the view was made for; its number is ``account.count - 1`` by now."""
    _take_in_lately(laws, account, time, residual - view[USUAL])
    account.usual_sum = decay[1] * account.usual_sum + residual
    account.usual_weight = decay[1] * account.usual_weight + 1.0
    gap = view[GAP]
    account.gaps[(account.count - 1) % GAPS] = np.inf if np.isnan(gap) else gap
    if not np.isnan(gap):
        account.gap_sum = decay[1] * account.gap_sum + gap_position(laws, gap)
        account.gap_weight = decay[1] * account.gap_weight + 1.0
    if not np.isnan(view[HOUR]):
        for i in range(HOURS):
            account.hours[i] *= decay[1]
        account.hours[int(view[HOUR])] += 1.0


@inner()
def remember(account: Any, history: AnyArray, named: AnyArray, event: Any, names: AnyArray) -> None:
    """Append a transaction to the history, dropping the oldest where it is full."""
    room = named.shape[1]
    for f in range(len(names)):
        if account.held >= room:
            for j in range(room - 1):
                named[f, j] = named[f, j + 1]
        named[f, min(account.held, room - 1)] = names[f]
    if account.held == len(history):
        for j in range(account.held - 1):
            history[j].amount = history[j + 1].amount
            history[j].category = history[j + 1].category
            history[j].merchant = history[j + 1].merchant
        account.held -= 1
    entry = history[account.held]
    entry.amount, entry.category, entry.merchant = event.amount, event.category, event.merchant
    account.held += 1
    account.newest_time = max(account.newest_time, event.time)


@compiled()
def views_of(
    laws: Densities,
    decay: FloatArray,
    account: Any,
    history: AnyArray,
    named: AnyArray,
    events: AnyArray,
    names: AnyArray,
    views: FloatArray,
) -> None:
    """Views of a whole history, one after the other, for a fit; account and history are those of a new one."""
    for i in range(len(events)):
        event = events[i]
        look_back(laws, decay, account, history, named, event, names[i], views[i])
        account.count, account.mean, account.squares = enter_amount(
            account.count, account.mean, account.squares, event.amount
        )
        take_in(laws, decay, account, event.time, residual(laws, event.amount, event.category), views[i])
        remember(account, history, named, event, names[i])
