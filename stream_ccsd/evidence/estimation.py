"""Densities estimated from normal transactions, once their smoothing is chosen (``smoothing``)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from stream_ccsd.account import HOUR, IN_DAY, IN_HOUR, RATE, USUAL, USUAL_WEIGHT, WEEKDAY
from stream_ccsd.evidence.densities import CELL, COUNTS, LEAST_SCALE, OCTAVES, QUARTERS, RATES, Densities
from stream_ccsd.fields import Field
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, IntArray, read_only
from stream_ccsd.numerics.sums import weighted_sums
from stream_ccsd.settings import Settings

# How many bandwidths a Gaussian reaches.
_REACH = 6.0
# Transactions that a center of all amounts counts for against that of a category.
_CENTER_STRENGTH = 10.0
# A field that makes left-out transactions no likelier than this, in nats each, is not informative.
_INFORMATIVE = 1e-3
# Of the usual gap: shorter gaps hardly differ.
_GAP_SHARE = 0.01


class ClockDensities(NamedTuple):
    """How times map to hours and weekdays; ``day`` is 0 where time has no unit."""

    day: float = 0.0
    day_shift: float = 0.0
    week_shift: float = 0.0


@dataclass(frozen=True, eq=False)
class Observations:
    """Normal transactions as columns, with the fold of their account and the view that its past gave of them."""

    fold: IntArray
    cell: IntArray  # of the log amount
    log_amount: FloatArray
    gap: FloatArray  # since the account's transaction before, NaN for its first
    category: IntArray  # place in ``categories``
    pair: IntArray  # place in ``pairs``
    categories: AnyArray  # uint64 keys, rising
    pairs: AnyArray
    names: AnyArray  # (declared categories, transactions), codes
    numbers: FloatArray  # (declared numbers, transactions), NaN where missing
    fields: tuple[Field, ...]
    view: FloatArray = field(default_factory=lambda: np.empty((0, 0)))  # see evidence.profile

    def with_views(self, view: FloatArray) -> Observations:
        """The same, with the view of each account's past."""
        return replace(self, view=view)


@dataclass(frozen=True)
class Choices:
    """The chosen bandwidths and strengths, and how many nats a transaction each term gains on left-out accounts."""

    sigma_u: float
    category_strength: float
    merchant_strength: float
    place_strength: float
    own_place_strength: float = 1e12
    usual_sigma: float = 0.1
    usual_strength: float = 1.0
    usual_share: float = 0.0
    hour_sigma: float = 1.0
    own_hour_strength: float = 1e12
    pace_strength: float = 1e6
    name_strength: tuple[float, ...] = ()
    name_own: tuple[float, ...] = ()
    number_sigma: tuple[float, ...] = ()
    gains: dict[str, float] = field(default_factory=dict)


class Axes(NamedTuple):
    """The centers of amounts by category, and the scales of the axes of gaps and numbers, from all transactions."""

    center: FloatArray
    amount_scale: float
    gap_scale: float
    octaves: float  # of gaps that occur
    number_scale: FloatArray
    number_reach: FloatArray

    @classmethod
    def of(cls, seen: Observations) -> Axes:
        """Medians, because odd transactions hardly move them."""
        everywhere = float(np.median(seen.log_amount))
        order = np.argsort(seen.category, kind="stable")
        parts = np.split(
            seen.log_amount[order], np.cumsum(np.bincount(seen.category, minlength=len(seen.categories)))[:-1]
        )
        center = [center_of(len(part), float(np.median(part)), everywhere) for part in parts]
        gaps = seen.gap[seen.gap > 0]
        gap_scale = max(_GAP_SHARE * float(np.median(gaps)), LEAST_SCALE) if len(gaps) else 1.0
        scales, reaches = [], []
        for values in seen.numbers:
            there = values[~np.isnan(values)]
            sizes = np.abs(there[there != 0])
            scales.append(max(float(np.median(sizes)), LEAST_SCALE) if len(sizes) else 1.0)
            position = np.sign(there) * np.log1p(np.abs(there) / scales[-1])
            reaches.append(float(np.ptp(position)) + 1.0 if len(there) else 1.0)
        return cls(
            center=np.array([*center, everywhere]),
            amount_scale=float(np.log(max(np.expm1(seen.log_amount.max()), 1.0))),
            gap_scale=gap_scale,
            octaves=min(np.floor(np.log1p(np.nanmax(seen.gap, initial=0.0) / gap_scale) / np.log(2.0)) + 1.0, OCTAVES),
            number_scale=np.array(scales),
            number_reach=np.array(reaches),
        )


def center_of(mass: float, median: float, everywhere: float) -> float:
    """Center of the log amounts of a category, which backs off to that of all."""
    return (mass * median + _CENTER_STRENGTH * everywhere) / (mass + _CENTER_STRENGTH)


class KernelDensity(NamedTuple):
    """Densities on one axis, as compiled code takes them."""

    start: IntArray
    cells: IntArray
    weight: FloatArray
    mass: FloatArray


def gaussian(sigma: float) -> FloatArray:
    """Density of a Gaussian at whole cells, as far as it matters."""
    distance = CELL * np.arange(int(np.ceil(_REACH * sigma / CELL)) + 1)
    density: FloatArray = np.exp(-0.5 * (distance / sigma) ** 2) / (sigma * np.sqrt(2.0 * np.pi))
    density.flags.writeable = False
    return density


def kernel_density(group: IntArray, cell: IntArray, weight: FloatArray, groups: int) -> KernelDensity:
    """Weights by density (``group``) and cell, of cells in use only."""
    order = np.lexsort((cell, group))
    group, cell, weight = group[order], cell[order], weight[order]
    first = (
        np.flatnonzero(np.append(True, (np.diff(group) != 0) | (np.diff(cell) != 0)))
        if len(group)
        else np.empty(0, int)
    )
    start = np.append(0, np.cumsum(np.bincount(group[first], minlength=groups)))
    total = np.add.reduceat(weight, first) if len(group) else np.empty(0)
    mass = np.bincount(group, weight, groups).astype(float)
    return read_only(KernelDensity(start.astype(np.int64), cell[first].astype(np.int64), total, mass))


def hour_density(cells: IntArray, weight: FloatArray, sigma: float) -> FloatArray:
    """Density by quarter of an hour, smoothed around the clock; one transaction's worth is spread over the day."""
    hours = np.arange(QUARTERS) * 24.0 / QUARTERS
    distance = np.minimum(hours, 24.0 - hours)
    kernel = np.exp(-0.5 * (distance / sigma) ** 2)
    around = kernel[np.subtract.outer(np.arange(QUARTERS), np.arange(QUARTERS))]
    smooth = weighted_sums(around, np.bincount(cells, weight, QUARTERS))
    density: FloatArray = (smooth / kernel.sum() * QUARTERS / 24.0 + 1.0 / 24.0) / (weight.sum() + 1.0)
    return density


def quarter(hour: FloatArray) -> IntArray:
    """The quarter of an hour that an hour of the day is in."""
    return np.minimum((hour * QUARTERS / 24.0).astype(np.int64), QUARTERS - 1)


def count_shares(seen: Observations, weight: FloatArray, column: int, strength: float) -> FloatArray:
    """(RATES, COUNTS): how many earlier transactions there were, by how often the account pays."""
    fading = 0.5 ** (1.0 + np.arange(COUNTS))
    return _shares_by_rate(seen, weight, seen.view[:, column].astype(np.int64), fading / fading.sum(), strength)


def gap_shares(seen: Observations, weight: FloatArray, axes: Axes, strength: float) -> FloatArray:
    """(RATES, OCTAVES): how long ago the transaction before was, by how often the account pays."""
    octave, there = gap_octaves(seen, axes), ~np.isnan(seen.gap)
    equal = np.where(np.arange(OCTAVES) < axes.octaves, 1.0 / axes.octaves, 1e-6)
    return _shares_by_rate(seen, weight * there, octave, equal, strength)


def gap_octaves(seen: Observations, axes: Axes) -> IntArray:
    """Classes of gaps; 0 where there is none."""
    position = np.log1p(np.nan_to_num(seen.gap) / axes.gap_scale)
    return np.minimum((position / np.log(2.0)).astype(np.int64), OCTAVES - 1)


def _shares_by_rate(
    seen: Observations, weight: FloatArray, value: IntArray, before: FloatArray, strength: float
) -> FloatArray:
    """Shares of small numbers by how often the account pays. They back off to everyone's, and those to the prior."""
    rate, values = seen.view[:, RATE].astype(np.int64), len(before)
    table = np.bincount(rate * values + value, weight, RATES * values).reshape(RATES, values)
    behind = (table.sum(axis=0) + before) / (table.sum() + before.sum())
    shares: FloatArray = (table + strength * behind) / (table.sum(axis=1, keepdims=True) + strength)
    return shares


def number_cells(seen: Observations, i: int, scale: float) -> tuple[IntArray, IntArray]:
    """Which transactions have a declared number, and where it lies on its axis."""
    have = np.flatnonzero(~np.isnan(seen.numbers[i]))
    value = seen.numbers[i][have]
    return have, np.rint(np.sign(value) * np.log1p(np.abs(value) / scale) / CELL).astype(np.int64)


def innovations(seen: Observations, axes: Axes, strength: float) -> FloatArray:
    """Distance of log amounts from the account's usual ones there."""
    own = seen.view[:, USUAL_WEIGHT]
    return seen.log_amount - axes.center[seen.category] - seen.view[:, USUAL] * own / (own + strength)


def build_densities(
    seen: Observations,
    weight: FloatArray,
    chosen: Choices,
    axes: Axes,
    settings: Settings,
    clock: ClockDensities,
    terms: tuple[str, ...],
) -> Densities:
    """Densities of these transactions, each counting for its weight. Without views, time and habits are left out."""
    used = np.flatnonzero(weight > 0)
    amounts = [
        kernel_density(group[used], seen.cell[used], weight[used], groups)
        for group, groups in (
            (np.zeros_like(seen.category), 1),
            (seen.category, len(seen.categories)),
            (seen.pair, len(seen.pairs)),
        )
    ]
    return read_only(
        Densities(
            **joined("amount", amounts, gaussian(chosen.sigma_u)),
            categories=seen.categories,
            pairs=seen.pairs,
            merchants=merchants_of(seen.categories, seen.pairs[amounts[2].mass > 0]),
            center=axes.center,
            amount_scale=axes.amount_scale,
            **_usual(seen, weight, chosen, axes),
            **_time(seen, weight, chosen, axes),
            **_declared(seen, weight, chosen, axes),
            tells=np.array([float(_always(name) or chosen.gains.get(name, 0.0) > _INFORMATIVE) for name in terms]),
            category_strength=chosen.category_strength,
            merchant_strength=chosen.merchant_strength,
            place_strength=chosen.place_strength,
            own_place_strength=chosen.own_place_strength,
            usual_strength=chosen.usual_strength,
            usual_share=chosen.usual_share,
            own_hour_strength=chosen.own_hour_strength,
            floor=settings.evidence_floor,
            departure=settings.departure,
            settled=settings.settled,
            amount_departure=settings.amount_departure,
            gap_scale=axes.gap_scale,
            octaves=axes.octaves,
            **clock._asdict(),
        )
    )


def merchants_of(categories: AnyArray, pairs: AnyArray) -> FloatArray:
    """How many merchants each category has, and one for those never seen."""
    of_pair = np.searchsorted(categories, pairs >> np.uint64(32))
    return 1.0 + np.bincount(of_pair, minlength=len(categories)).astype(float)


def _always(term: str) -> bool:
    """Terms that are always informative, because fraud is about money and where it is spent."""
    return term in ("amount", "category", "merchant", "habit")


def joined(name: str, densities: list[KernelDensity], kernel: FloatArray) -> dict[str, Any]:
    """Several families of densities on one axis, one after the other."""
    shift = np.cumsum([0, *(len(density.cells) for density in densities)])
    start = np.concatenate(
        [density.start[:-1] + by for density, by in zip(densities, shift, strict=False)] + [shift[-1:]]
    )
    return {
        f"{name}_start": start,
        f"{name}_cells": np.concatenate([density.cells for density in densities]),
        f"{name}_weight": np.concatenate([density.weight for density in densities]),
        f"{name}_mass": np.concatenate([density.mass for density in densities]),
        f"{name}_kernel": kernel,
    }


def _usual(seen: Observations, weight: FloatArray, chosen: Choices, axes: Axes) -> dict[str, Any]:
    if not len(seen.view):
        seen, weight = replace(seen, view=np.zeros((1, USUAL_WEIGHT + 1))), weight[:1]
        cell = np.zeros(1, np.int64)
    else:
        cell = np.rint(innovations(seen, axes, chosen.usual_strength) / CELL).astype(np.int64)
    density = kernel_density(np.zeros_like(cell), cell, weight, 1)
    return {
        "usual_cells": density.cells,
        "usual_weight": density.weight / max(density.mass[0], 1e-9),
        "usual_kernel": gaussian(chosen.usual_sigma),
    }


def _time(seen: Observations, weight: FloatArray, chosen: Choices, axes: Axes) -> dict[str, Any]:
    hour, weekday = np.full(QUARTERS, 1.0 / 24.0), np.full(7, 1.0 / 7.0)
    counts = np.ones((2, RATES, COUNTS))
    gaps = np.ones((RATES, OCTAVES))
    if not len(seen.view):
        return {"hour": hour, "weekday": weekday, "counts": counts, "gaps": gaps}
    gaps = gap_shares(seen, weight, axes, chosen.pace_strength)
    if not np.isnan(seen.view[0, HOUR]):
        hour = hour_density(quarter(seen.view[:, HOUR]), weight, chosen.hour_sigma)
        mass = np.bincount(seen.view[:, WEEKDAY].astype(np.int64), weight, 7) + 1.0
        weekday = mass / mass.sum()
        shares = np.stack([count_shares(seen, weight, column, chosen.pace_strength) for column in (IN_HOUR, IN_DAY)])
        counts = np.cumsum(shares[:, :, ::-1], axis=2)[:, :, ::-1]
    return {"hour": hour, "weekday": weekday, "counts": np.ascontiguousarray(counts), "gaps": gaps}


def _declared(seen: Observations, weight: FloatArray, chosen: Choices, axes: Axes) -> dict[str, Any]:
    keys, weights, start, mass = [], [], [0], []
    for codes in seen.names:
        known, value = np.unique(codes, return_inverse=True)
        keys.append(known.astype(np.uint64))
        weights.append(np.bincount(value, weight, len(known)))
        start.append(start[-1] + len(known))
        mass.append(weights[-1].sum())
    numbers, kernels, missing = [], [], []
    for i in range(len(seen.numbers)):
        have, cell = number_cells(seen, i, axes.number_scale[i])
        sigma = chosen.number_sigma[i] if chosen.number_sigma else 0.1
        numbers.append(kernel_density(np.zeros_like(cell), cell, weight[have], 1))
        kernels.append(gaussian(sigma))
        missing.append(1.0 - weight[have].sum() / weight.sum())
    longest = max((len(kernel) for kernel in kernels), default=1)
    padded = np.stack([np.pad(kernel, (0, longest - len(kernel))) for kernel in kernels] or [np.zeros(1)])
    number = joined("number", numbers or [_nothing()], padded)
    if not numbers:
        number["number_start"], number["number_mass"] = np.zeros(1, np.int64), np.empty(0)
    count = len(keys)
    return {
        "name_start": np.array(start, np.int64),
        "name_keys": np.concatenate([np.empty(0, np.uint64), *keys]),
        "name_weight": np.concatenate([np.empty(0), *weights]),
        "name_mass": np.array(mass, dtype=float),
        "name_strength": np.array(chosen.name_strength or (1.0,) * count, dtype=float),
        "name_own": np.array(chosen.name_own or (1e12,) * count, dtype=float),
        **number,
        "number_scale": axes.number_scale,
        "number_reach": axes.number_reach,
        "number_missing": np.array(missing, dtype=float),
    }


def _nothing() -> KernelDensity:
    return kernel_density(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), 1)
