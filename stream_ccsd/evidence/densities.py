"""The distributions of normal transactions, field by field, which the evidence compares with.

Numbers (log amounts, log gaps, declared numbers) live in cells of an axis. A density is the weight in each cell,
smoothed by a Gaussian whose values at whole distances are a table. Names (category, merchant, declared categories) are
shares, hours and weekdays are densities, and counts are shares by how often the account usually pays. A density of few
observations is mixed with the wider one behind it (merchant, category, everything), by strengths that are chosen at the
fit (``smoothing``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.numerics.compiling import compiled, inner
from stream_ccsd.numerics.vector import find, first_from

CELL = 0.01
"""Width of a cell on the axes of numbers: 1 % of an amount."""
QUARTERS = 96
"""Cells of the hours of a day."""
OCTAVES = 64
"""Classes of gaps, each twice as long as the one before."""
COUNTS = 25
"""Classes of counts of recent transactions: 0 to 23, and more."""
RATES = 18
"""Classes of how often an account pays: unknown, then powers of 2 of its usual gap."""
LEAST_SCALE = 1e-280
"""Smallest scale of gaps and declared numbers: values up to 2**54, divided by less, overflow."""
EVERYTHING = 0
# Milliseconds of a day.
_DAY = 86_400_000.0


class Densities(NamedTuple):
    """The distributions of normal transactions. Read only."""

    # Amounts: density 0 is everything; then categories, then (category, merchant) pairs, in the order of their keys.
    amount_start: AnyArray
    amount_cells: AnyArray
    amount_weight: FloatArray
    amount_mass: FloatArray
    amount_kernel: FloatArray
    categories: AnyArray  # uint64
    pairs: AnyArray  # uint64, category << 32 | merchant
    merchants: FloatArray  # by category: how many, and one for those never seen
    center: FloatArray  # by category and, last, for all others: the usual log amount
    # How far amounts lie from the account's usual distance to the center.
    usual_cells: AnyArray
    usual_weight: FloatArray  # shares: they add up to 1
    usual_kernel: FloatArray
    # Time: density by quarter of an hour, shares of weekdays, gaps by rate class, counts by span and rate class.
    hour: FloatArray
    weekday: FloatArray
    gaps: FloatArray  # (RATES, OCTAVES), shares
    counts: FloatArray  # (2, RATES, COUNTS), share of transactions with at least so many
    # Declared fields, in the order of their names: shares of categories, densities of numbers (one each).
    name_start: AnyArray
    name_keys: AnyArray
    name_weight: FloatArray
    name_mass: FloatArray
    name_strength: FloatArray
    name_own: FloatArray  # strength of everyone's shares against the account's own
    number_start: AnyArray
    number_cells: AnyArray
    number_weight: FloatArray
    number_mass: FloatArray
    number_kernel: FloatArray  # (numbers, cells): each has a bandwidth of its own
    number_scale: FloatArray
    number_reach: FloatArray  # how long its axis is
    number_missing: FloatArray  # share of transactions that do not have it
    tells: FloatArray  # by term (see evidence.terms): 1, or 0 where the field is not informative
    # Strengths, each in transactions.
    category_strength: float  # of everything's amounts against the category's
    merchant_strength: float  # of the category's amounts against the merchant's there
    place_strength: float  # of equal shares against a merchant's own, within its category
    own_place_strength: float  # of everyone's places against the account's
    usual_strength: float  # of no difference against the account's usual difference
    usual_share: float  # how far amounts follow the account's usual rather than its place
    own_hour_strength: float  # of everyone's hours against the account's
    # Scales.
    floor: float  # density of a number that was never seen
    amount_scale: float  # log of the largest amount: sets where the evidence of an amount is 0
    departure: float  # share of frauds that differ in a field other than amount and place
    settled: float  # visits to a place that may be somebody else's; beyond them it is the account's habit
    amount_departure: float  # share that differs in amount from what the account usually pays
    gap_scale: float
    octaves: float  # of gaps that occur
    day: float  # length of a day in units of time; 0 where time has no unit
    day_shift: float  # of time 0 after midnight, in days
    week_shift: float  # of time 0 after a Monday, in days


@compiled()
def amount_cell(amount: float) -> int:
    """Where an amount lies on the axis of log amounts."""
    return int(np.rint(np.log1p(amount) / CELL))


@inner()
def pair_key(category: int, merchant: int) -> Any:
    """Category and merchant as one key."""
    return (np.uint64(category) << np.uint64(32)) | np.uint64(merchant)


@compiled()
def residual(densities: Densities, amount: float, category: int) -> float:
    """How far a log amount lies from the center of its category."""
    place = find(densities.categories, 0, len(densities.categories), np.uint64(category))
    return np.log1p(amount) - densities.center[place]  # the last center is for categories never seen


@compiled()
def kernel_sum(cells: AnyArray, weight: FloatArray, first: int, last: int, kernel: FloatArray, cell: int) -> float:
    """Sum of the Gaussians of a density at a cell."""
    reach = len(kernel) - 1
    total = 0.0
    for i in range(first_from(cells, first, last, cell - reach), last):
        distance = abs(cells[i] - cell)
        if distance > reach:
            break
        total += weight[i] * kernel[distance]
    return total


@compiled()
def amount_density(densities: Densities, cell: int, category: int, pair: int) -> float:
    """Of an amount, given places of its category and pair among the known ones (-1: unknown)."""
    start, cells, weight, kernel = (
        densities.amount_start,
        densities.amount_cells,
        densities.amount_weight,
        densities.amount_kernel,
    )
    every = (
        kernel_sum(cells, weight, start[0], start[1], kernel, cell) / densities.amount_mass[EVERYTHING]
        + densities.floor
    )
    inside = mass = 0.0
    if category >= 0:
        group = 1 + category
        mass = densities.amount_mass[group]
        inside = kernel_sum(cells, weight, start[group], start[group + 1], kernel, cell)
    in_category = (inside + densities.category_strength * every) / (mass + densities.category_strength)
    inside = mass = 0.0
    if pair >= 0:
        group = 1 + len(densities.categories) + pair
        mass = densities.amount_mass[group]
        inside = kernel_sum(cells, weight, start[group], start[group + 1], kernel, cell)
    return (inside + densities.merchant_strength * in_category) / (mass + densities.merchant_strength)


@compiled()
def place_shares(densities: Densities, category: int, pair: int) -> tuple[float, float]:
    """Share of a category among normal transactions, and of the merchant within it."""
    known = len(densities.categories)
    total = densities.amount_mass[EVERYTHING] + 0.5 * (known + 1)
    if category < 0:
        return 0.5 / total, 1.0
    mass = densities.amount_mass[1 + category]
    at_merchant = densities.amount_mass[1 + known + pair] if pair >= 0 else 0.0
    equal = densities.place_strength / densities.merchants[category]
    return (mass + 0.5) / total, (at_merchant + equal) / (mass + densities.place_strength)


@compiled()
def usual_density(densities: Densities, innovation: float) -> float:
    """Density of the distance between an amount and the account's usual one there."""
    cell = int(np.rint(innovation / CELL))
    last = len(densities.usual_cells)
    return (
        kernel_sum(densities.usual_cells, densities.usual_weight, 0, last, densities.usual_kernel, cell)
        + densities.floor
    )


@inner()
def hour_and_weekday(densities: Densities, time: float) -> tuple[float, float]:
    """Of a time, where times have a unit: hours from 0 to 24, days from 0 for Monday."""
    # In whole milliseconds: a time on the hour is not a bit of rounding before it.
    since = np.rint((time / densities.day + densities.day_shift) * _DAY)
    midnight = np.floor(since / _DAY)
    weeks = (midnight + densities.week_shift) / 7.0
    hour = min(max((since - midnight * _DAY) * 24.0 / _DAY, 0.0), 24.0 - 1e-9)
    return hour, np.rint(7.0 * (weeks - np.floor(weeks))) % 7


@compiled()
def hours_of(densities: Densities, times: FloatArray) -> FloatArray:
    """Hours of the day of many times."""
    out = np.empty(len(times))
    for i in range(len(times)):
        out[i], _ = hour_and_weekday(densities, times[i])
    return out


@inner()
def gap_position(densities: Densities, gap: float) -> float:
    """Where a gap lies on the axis of log gaps."""
    return np.log1p(max(gap, 0.0) / densities.gap_scale)


@compiled()
def gap_octave(densities: Densities, gap: float) -> int:
    """Gaps are classed by powers of 2: on finer axes, times in whole days or seconds would be nothing but spikes."""
    return min(int(gap_position(densities, gap) / np.log(2.0)), OCTAVES - 1)


@compiled()
def name_share(densities: Densities, field: int, key: Any) -> float:
    """Share of a declared category's value among normal transactions."""
    first, last = densities.name_start[field], densities.name_start[field + 1]
    place = find(densities.name_keys, first, last, key)
    own = densities.name_weight[place] if place >= 0 else 0.0
    strength = densities.name_strength[field]
    return (own + strength / (last - first + 1)) / (densities.name_mass[field] + strength)


@compiled()
def number_position(densities: Densities, field: int, value: float) -> float:
    """Where a declared number lies on its axis: logarithmic away from 0, on both sides."""
    return np.sign(value) * np.log1p(abs(value) / densities.number_scale[field])


@compiled()
def number_density(densities: Densities, field: int, position: float) -> float:
    """Of a declared number that is there."""
    cell = int(np.rint(position / CELL))
    first, last = densities.number_start[field], densities.number_start[field + 1]
    total = kernel_sum(
        densities.number_cells, densities.number_weight, first, last, densities.number_kernel[field], cell
    )
    return total / max(densities.number_mass[field], 1.0) + densities.floor
