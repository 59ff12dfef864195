"""How smooth each law has to be: chosen by the likelihood of accounts that were left out.

Accounts are dealt into folds. What a law says of a transaction without its own fold is the law of everything less that
of the fold, so every choice is judged on accounts that the law has not seen, and no law is built anew for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from stream_ccsd.account import (
    AT_HOUR,
    AT_PLACE,
    HOUR,
    HOUR_WEIGHT,
    IN_DAY,
    IN_HOUR,
    OWN_WEIGHT,
    RATE,
    USUAL_WEIGHT,
    VIEW,
    WEEKDAY,
)
from stream_ccsd.evidence.densities import CELL, COUNTS, kernel_sum
from stream_ccsd.evidence.estimation import (
    Axes,
    Choices,
    KernelDensity,
    Observations,
    count_shares,
    gap_octaves,
    gap_shares,
    gaussian,
    hour_density,
    innovations,
    kernel_density,
    number_cells,
    quarter,
)
from stream_ccsd.numerics.arrays import FloatArray, IntArray
from stream_ccsd.numerics.compiling import compiled
from stream_ccsd.settings import Settings

# What is tried: bandwidths on axes of logarithms, in hours, and strengths in transactions.
_SIGMAS = (0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3)
_HOUR_SIGMAS = (0.25, 0.5, 1.0, 2.0)
_STRENGTHS = tuple(10.0 ** np.arange(-1, 7))
_OWN_STRENGTHS = tuple(2.0 ** np.arange(-1, 15))
_USUAL_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_USUAL_SIGMAS = (0.05, 0.1, 0.2)
_USUAL_STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0)
# Transactions that choices are judged on; more of them decide nothing else.
_JUDGES = 40_000


@compiled()
def _sums(
    start: IntArray, cells: IntArray, weight: FloatArray, kernel: FloatArray, law: IntArray, cell: IntArray
) -> FloatArray:
    out = np.empty(len(law))
    for i in range(len(law)):
        out[i] = kernel_sum(cells, weight, start[law[i]], start[law[i] + 1], kernel, cell[i])
    return out


class _Without(NamedTuple):
    """Laws of everything and of each fold on one axis: together, what is known without a transaction's own fold."""

    whole: KernelDensity
    part: KernelDensity
    folds: int

    @classmethod
    def of(cls, law: IntArray, cell: IntArray, weight: FloatArray, fold: IntArray, laws: int) -> _Without:
        folds = int(fold.max()) + 1
        # The bandwidth comes with each question.
        whole, part = (
            kernel_density(law, cell, weight, laws),
            kernel_density(law * folds + fold, cell, weight, laws * folds),
        )
        return cls(whole, part, folds)

    def at(self, law: IntArray, cell: IntArray, fold: IntArray, sigma: float) -> tuple[FloatArray, FloatArray]:
        """Sum of Gaussians and mass of the laws without the folds."""
        own, kernel = law * self.folds + fold, gaussian(sigma)
        sums = _sums(*self.whole[:3], kernel, law, cell) - _sums(*self.part[:3], kernel, own, cell)
        return np.maximum(sums, 0.0), np.maximum(self.whole.mass[law] - self.part.mass[own], 0.0)


def _mass_without(law: IntArray, weight: FloatArray, fold: IntArray, laws: int) -> FloatArray:
    """(folds, laws): the weight of each law without each fold."""
    folds = int(fold.max()) + 1
    part = np.bincount(fold * laws + law, weight, folds * laws).reshape(folds, laws)
    return np.maximum(part.sum(axis=0) - part, 0.0)


_Leaning = Callable[..., FloatArray]
"""Of a strength and the law behind: a law that leans on it."""


def _leant(inside: FloatArray, mass: FloatArray, strength: float, behind: FloatArray) -> FloatArray:
    """A law that leans on the one behind it."""
    return (inside + strength * behind) / (mass + strength)


class _Judge:
    """The transactions that choices are judged on, and how: the mean log likelihood, by weight."""

    def __init__(self, seen: Observations, weight: FloatArray, seed: int) -> None:
        n = len(seen.cell)
        rows = np.arange(n)
        if n > _JUDGES:
            rows = np.sort(np.random.default_rng(seed).choice(n, _JUDGES, replace=False))
        self.rows, self.weight = rows, weight[rows] / weight[rows].sum()
        self.fold = seen.fold[rows]

    def mean(self, values: FloatArray) -> float:
        return float(np.sum(self.weight * values))

    def best(self, tried: Sequence[float], likelihood: Callable[[float], FloatArray]) -> tuple[float, float]:
        """The value under which they are most likely, and how likely in nats each."""
        nats = [self.mean(np.log(likelihood(value))) for value in tried]
        best = int(np.argmax(nats))
        return float(tried[best]), nats[best]


def choose(seen: Observations, weight: FloatArray, settings: Settings, axes: Axes) -> Choices:
    """Every bandwidth and strength that the settings leave open; ``weight`` is what each transaction counts for."""
    judge = _Judge(seen, weight, settings.seed)
    amounts = _Amounts(seen, weight, judge, settings.evidence_floor)
    chosen = _choose_amounts(amounts, settings, judge)
    normal = amounts.density(chosen)
    gains: dict[str, float] = {}
    chosen = _choose_usual(seen, weight, settings, judge, axes, normal, chosen, gains)
    chosen = _choose_place(seen, weight, settings, judge, chosen, gains)
    chosen = _choose_clock(seen, weight, settings, judge, chosen, gains)
    chosen = _choose_pace(seen, weight, judge, axes, chosen, gains)
    chosen = _choose_names(seen, weight, judge, chosen, gains)
    chosen = _choose_numbers(seen, weight, settings, judge, axes, chosen, gains)
    return replace(chosen, gains=gains)


def _tried(given: float | None, values: Sequence[float]) -> Sequence[float]:
    return values if given is None else (given,)


class _Amounts:
    """Laws of amounts of everything, the category and the pair, without each transaction's fold."""

    def __init__(self, seen: Observations, weight: FloatArray, judge: _Judge, floor: float) -> None:
        everything = np.zeros_like(seen.cell)
        families = ((everything, 1), (seen.category, len(seen.categories)), (seen.pair, len(seen.pairs)))
        self._laws = [_Without.of(law, seen.cell, weight, seen.fold, laws) for law, laws in families]
        self._asked = [(law[judge.rows], seen.cell[judge.rows], judge.fold) for law, _ in families]
        self._floor = floor

    def at(self, sigma: float) -> tuple[FloatArray, _Leaning, _Leaning]:
        """Under one bandwidth: of everything, and how a category's and a pair's lean on what is behind them."""
        (every, total), category, pair = (
            law.at(*asked, sigma) for law, asked in zip(self._laws, self._asked, strict=True)
        )
        behind = every / np.maximum(total, 1e-9) + self._floor
        return behind, partial(_leant, *category), partial(_leant, *pair)

    def density(self, chosen: Choices) -> FloatArray:
        """Of the transactions that are asked about."""
        behind, in_category, at_pair = self.at(chosen.sigma_u)
        return at_pair(chosen.merchant_strength, in_category(chosen.category_strength, behind))


def _choose_amounts(amounts: _Amounts, settings: Settings, judge: _Judge) -> Choices:
    best, chosen = -np.inf, (0.1, 1.0, 1.0)
    for sigma in _tried(settings.sigma_u, _SIGMAS):
        behind, in_category, at_pair = amounts.at(sigma)
        for category_strength in _tried(settings.category_strength, _STRENGTHS):
            category = in_category(category_strength, behind)
            tried = _tried(settings.merchant_strength, _STRENGTHS)
            strength, nats = judge.best(tried, partial(at_pair, behind=category))
            if nats > best:
                best, chosen = nats, (float(sigma), float(category_strength), strength)
    return Choices(*chosen, place_strength=1.0)


def _choose_usual(
    seen: Observations,
    weight: FloatArray,
    settings: Settings,
    judge: _Judge,
    axes: Axes,
    normal: FloatArray,
    chosen: Choices,
    gains: dict[str, float],
) -> Choices:
    before = judge.mean(np.log(normal))
    best = before if settings.usual_share is None else -np.inf
    if settings.usual_strength is not None:
        chosen = replace(chosen, usual_strength=settings.usual_strength)
    own = seen.view[judge.rows, USUAL_WEIGHT]
    everything = np.zeros_like(seen.cell)
    for strength in _tried(settings.usual_strength, _USUAL_STRENGTHS):
        cell = np.rint(innovations(seen, axes, strength) / CELL).astype(np.int64)
        without = _Without.of(everything, cell, weight, seen.fold, 1)
        for sigma in _USUAL_SIGMAS:
            sums, mass = without.at(everything[judge.rows], cell[judge.rows], judge.fold, sigma)
            usual = sums / np.maximum(mass, 1e-9) + settings.evidence_floor
            trusted = own / (own + strength)
            share, nats = judge.best(
                _tried(settings.usual_share, _USUAL_SHARES),
                lambda s, usual=usual, trusted=trusted: (1 - s * trusted) * normal + s * trusted * usual,  # type: ignore[misc]
            )
            if nats > best:
                best = nats
                chosen = replace(chosen, usual_sigma=sigma, usual_strength=float(strength), usual_share=share)
    gains["amount_own"] = best - before
    return chosen


def _choose_place(
    seen: Observations, weight: FloatArray, settings: Settings, judge: _Judge, chosen: Choices, gains: dict[str, float]
) -> Choices:
    rows, fold = judge.rows, judge.fold
    category, pair = seen.category[rows], seen.pair[rows]
    by_category = _mass_without(seen.category, weight, seen.fold, len(seen.categories))
    by_pair = _mass_without(seen.pair, weight, seen.fold, len(seen.pairs))
    known = len(seen.categories)
    of_pair = np.searchsorted(seen.categories, seen.pairs >> np.uint64(32))
    merchants = np.stack([np.bincount(of_pair[masses > 0], minlength=known) for masses in by_pair]) + 1.0
    mass = by_category[fold, category]
    in_category = (mass + 0.5) / (by_category.sum(axis=1)[fold] + 0.5 * (known + 1))

    def at_merchant(strength: float) -> FloatArray:
        return _leant(by_pair[fold, pair], mass, strength, 1.0 / merchants[fold, category])

    place_strength, nats = judge.best(_tried(settings.place_strength, _STRENGTHS), at_merchant)
    gains["category"] = judge.mean(np.log(in_category)) + float(np.log(known + 1))
    gains["merchant"] = nats + float(np.log((len(seen.pairs) + 1) / (known + 1)))
    everyone = in_category * at_merchant(place_strength)
    own, gains["place_own"] = _choose_own(
        judge, seen.view[rows, AT_PLACE], seen.view[rows, OWN_WEIGHT], everyone, settings.own_place_strength
    )
    return replace(chosen, place_strength=place_strength, own_place_strength=own)


def _choose_own(
    judge: _Judge, same: FloatArray, weight: FloatArray, everyone: FloatArray, given: float | None
) -> tuple[float, float]:
    """What everyone's law counts for against the account's own, and how many nats the account's own gains."""
    strength, nats = judge.best(_tried(given, _OWN_STRENGTHS), lambda s: _leant(same, weight, s, everyone))
    return strength, nats - judge.mean(np.log(everyone))


def _choose_clock(
    seen: Observations, weight: FloatArray, settings: Settings, judge: _Judge, chosen: Choices, gains: dict[str, float]
) -> Choices:
    if not len(seen.view) or np.isnan(seen.view[0, HOUR]):
        return chosen
    cells = quarter(seen.view[:, HOUR])
    rows, folds = judge.rows, range(int(seen.fold.max()) + 1)

    def density(sigma: float) -> FloatArray:
        left = [seen.fold != f for f in folds]
        return np.stack([hour_density(cells[k], weight[k], sigma) for k in left])[judge.fold, cells[rows]]

    sigma, nats = judge.best(_HOUR_SIGMAS, density)
    gains["hour"] = nats + float(np.log(24.0))
    own, gains["hour_own"] = _choose_own(
        judge, seen.view[rows, AT_HOUR], seen.view[rows, HOUR_WEIGHT], density(sigma), settings.own_hour_strength
    )
    day = seen.view[:, WEEKDAY].astype(np.int64)
    mass = _mass_without(day, weight, seen.fold, 7) + 1.0
    shares = mass / mass.sum(axis=1, keepdims=True)
    gains["weekday"] = judge.mean(np.log(shares)[judge.fold, day[rows]]) + float(np.log(7.0))
    return replace(chosen, hour_sigma=sigma, own_hour_strength=own)


def _choose_pace(
    seen: Observations, weight: FloatArray, judge: _Judge, axes: Axes, chosen: Choices, gains: dict[str, float]
) -> Choices:
    """How much accounts that pay about as often have in common, in gaps and counts alike."""
    rows = judge.rows
    rate, has_gap = seen.view[rows, RATE].astype(np.int64), ~np.isnan(seen.gap[rows])
    judged = {"gap": (gap_octaves(seen, axes)[rows], axes.octaves, has_gap.astype(float))}
    if not np.isnan(seen.view[0, HOUR]):
        for name, column in (("count_hour", IN_HOUR), ("count_day", IN_DAY)):
            judged[name] = (seen.view[rows, column].astype(np.int64), float(COUNTS), np.ones(len(rows)))

    def table(name: str, left: FloatArray, strength: float) -> FloatArray:
        if name == "gap":
            return gap_shares(seen, left, axes, strength)
        return count_shares(seen, left, IN_HOUR if name == "count_hour" else IN_DAY, strength)

    best = -np.inf
    for strength in _STRENGTHS:
        found = {}
        for name, (value, equal, there) in judged.items():
            left = [table(name, weight * (seen.fold != f), strength) for f in range(int(seen.fold.max()) + 1)]
            found[name] = judge.mean(there * (np.log(np.stack(left)[judge.fold, rate, value]) + np.log(equal)))
        if sum(found.values()) > best:
            best, chosen = sum(found.values()), replace(chosen, pace_strength=float(strength))
            gains.update(found)
    return chosen


def _choose_names(
    seen: Observations, weight: FloatArray, judge: _Judge, chosen: Choices, gains: dict[str, float]
) -> Choices:
    strengths, owns = [], []
    categories = [f.name for f in seen.fields if f.kind == "category"]
    for i, name in enumerate(categories):
        known, value = np.unique(seen.names[i], return_inverse=True)
        mass = _mass_without(value, weight, seen.fold, len(known))
        left = (mass > 0).sum(axis=1) + 1.0
        inside, total = mass[judge.fold, value[judge.rows]], mass.sum(axis=1)[judge.fold]
        equal = 1.0 / left[judge.fold]
        strength, nats = judge.best(_STRENGTHS, lambda s, a=inside, b=total, c=equal: _leant(a, b, s, c))  # type: ignore[misc]
        # One value, or none: what comes later says how the column changed, not who paid.
        gains[name] = nats - judge.mean(np.log(equal)) if len(known) > 1 else 0.0
        everyone = _leant(inside, total, strength, equal)
        same, own_weight = seen.view[judge.rows, VIEW + i], seen.view[judge.rows, OWN_WEIGHT]
        own, gains[f"{name}_own"] = _choose_own(judge, same, own_weight, everyone, None)
        strengths.append(strength)
        owns.append(own)
    return replace(chosen, name_strength=tuple(strengths), name_own=tuple(owns))


def _choose_numbers(
    seen: Observations,
    weight: FloatArray,
    settings: Settings,
    judge: _Judge,
    axes: Axes,
    chosen: Choices,
    gains: dict[str, float],
) -> Choices:
    sigmas = []
    numbers = [f.name for f in seen.fields if f.kind == "number"]
    for i, name in enumerate(numbers):
        have, cell = number_cells(seen, i, axes.number_scale[i])
        judged = np.isin(have, judge.rows)
        sigma, gains[name] = 0.1, 0.0
        if judged.any() and np.ptp(seen.numbers[i][have]) > 0.0:
            everything, fold = np.zeros_like(cell), seen.fold[have]
            weights = weight[have][judged] / weight[have][judged].sum()
            nats = []
            without = _Without.of(everything, cell, weight[have], fold, 1)
            for width in _SIGMAS:
                sums, mass = without.at(everything[judged], cell[judged], fold[judged], width)
                nats.append(float(np.sum(weights * np.log(sums / np.maximum(mass, 1e-9) + settings.evidence_floor))))
            sigma, gains[name] = _SIGMAS[int(np.argmax(nats))], max(nats) + float(np.log(axes.number_reach[i]))
        sigmas.append(sigma)
    return replace(chosen, number_sigma=tuple(sigmas))
