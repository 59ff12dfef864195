"""How smooth each density has to be, chosen by the likelihood of accounts that were left out.

Accounts are dealt into folds. The density without a fold is the density of everything less that of the fold. So each
choice is evaluated on accounts that the density has not seen, and no density is estimated again for it.
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

# Candidates: bandwidths on axes of logarithms, in hours, and strengths in transactions.
_SIGMAS = (0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3)
_HOUR_SIGMAS = (0.25, 0.5, 1.0, 2.0)
_STRENGTHS = tuple(10.0 ** np.arange(-1, 7))
_OWN_STRENGTHS = tuple(2.0 ** np.arange(-1, 15))
_USUAL_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_USUAL_SIGMAS = (0.05, 0.1, 0.2)
_USUAL_STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0)
# Transactions that choices are evaluated on; more of them would choose the same.
_EVALUATED = 40_000


@compiled()
def _sums(
    start: IntArray, cells: IntArray, weight: FloatArray, kernel: FloatArray, group: IntArray, cell: IntArray
) -> FloatArray:
    out = np.empty(len(group))
    for i in range(len(group)):
        out[i] = kernel_sum(cells, weight, start[group[i]], start[group[i] + 1], kernel, cell[i])
    return out


class _Without(NamedTuple):
    """Densities of everything and of each fold on one axis: their difference leaves out a transaction's own fold."""

    whole: KernelDensity
    part: KernelDensity
    folds: int

    @classmethod
    def of(cls, group: IntArray, cell: IntArray, weight: FloatArray, fold: IntArray, groups: int) -> _Without:
        folds = int(fold.max()) + 1
        # The bandwidth comes with each call of ``at``.
        whole, part = (
            kernel_density(group, cell, weight, groups),
            kernel_density(group * folds + fold, cell, weight, groups * folds),
        )
        return cls(whole, part, folds)

    def at(self, group: IntArray, cell: IntArray, fold: IntArray, sigma: float) -> tuple[FloatArray, FloatArray]:
        """Sum of Gaussians and mass of the densities without the folds."""
        own, kernel = group * self.folds + fold, gaussian(sigma)
        sums = _sums(*self.whole[:3], kernel, group, cell) - _sums(*self.part[:3], kernel, own, cell)
        return np.maximum(sums, 0.0), np.maximum(self.whole.mass[group] - self.part.mass[own], 0.0)


def _mass_without(group: IntArray, weight: FloatArray, fold: IntArray, groups: int) -> FloatArray:
    """(folds, groups): the weight of each density without each fold."""
    folds = int(fold.max()) + 1
    part = np.bincount(fold * groups + group, weight, folds * groups).reshape(folds, groups)
    return np.maximum(part.sum(axis=0) - part, 0.0)


_BackOff = Callable[..., FloatArray]
"""From a strength and a wider density: the density that backs off to it."""


def _backed_off(inside: FloatArray, mass: FloatArray, strength: float, behind: FloatArray) -> FloatArray:
    """A density that backs off to the wider one behind it."""
    return (inside + strength * behind) / (mass + strength)


class _Evaluation:
    """The transactions that choices are evaluated on, by their weighted mean log likelihood."""

    def __init__(self, seen: Observations, weight: FloatArray, seed: int) -> None:
        n = len(seen.cell)
        rows = np.arange(n)
        if n > _EVALUATED:
            rows = np.sort(np.random.default_rng(seed).choice(n, _EVALUATED, replace=False))
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
    """Every bandwidth and strength that the settings leave open; ``weight`` is that of each transaction."""
    evaluation = _Evaluation(seen, weight, settings.seed)
    amounts = _Amounts(seen, weight, evaluation, settings.evidence_floor)
    chosen = _choose_amounts(amounts, settings, evaluation)
    normal = amounts.density(chosen)
    gains: dict[str, float] = {}
    chosen = _choose_usual(seen, weight, settings, evaluation, axes, normal, chosen, gains)
    chosen = _choose_place(seen, weight, settings, evaluation, chosen, gains)
    chosen = _choose_clock(seen, weight, settings, evaluation, chosen, gains)
    chosen = _choose_pace(seen, weight, evaluation, axes, chosen, gains)
    chosen = _choose_names(seen, weight, evaluation, chosen, gains)
    chosen = _choose_numbers(seen, weight, settings, evaluation, axes, chosen, gains)
    return replace(chosen, gains=gains)


def _tried(given: float | None, values: Sequence[float]) -> Sequence[float]:
    return values if given is None else (given,)


class _Amounts:
    """Densities of amounts of everything, the category and the pair, without each transaction's fold."""

    def __init__(self, seen: Observations, weight: FloatArray, evaluation: _Evaluation, floor: float) -> None:
        everything = np.zeros_like(seen.cell)
        families = ((everything, 1), (seen.category, len(seen.categories)), (seen.pair, len(seen.pairs)))
        self._densities = [_Without.of(group, seen.cell, weight, seen.fold, groups) for group, groups in families]
        self._asked = [(group[evaluation.rows], seen.cell[evaluation.rows], evaluation.fold) for group, _ in families]
        self._floor = floor

    def at(self, sigma: float) -> tuple[FloatArray, _BackOff, _BackOff]:
        """Under one bandwidth: everything's density, and the back-offs of a category's and a pair's."""
        (every, total), category, pair = (
            density.at(*asked, sigma) for density, asked in zip(self._densities, self._asked, strict=True)
        )
        behind = every / np.maximum(total, 1e-9) + self._floor
        return behind, partial(_backed_off, *category), partial(_backed_off, *pair)

    def density(self, chosen: Choices) -> FloatArray:
        """Of the transactions of the evaluation."""
        behind, in_category, at_pair = self.at(chosen.sigma_u)
        return at_pair(chosen.merchant_strength, in_category(chosen.category_strength, behind))


def _choose_amounts(amounts: _Amounts, settings: Settings, evaluation: _Evaluation) -> Choices:
    best, chosen = -np.inf, (0.1, 1.0, 1.0)
    for sigma in _tried(settings.sigma_u, _SIGMAS):
        behind, in_category, at_pair = amounts.at(sigma)
        for category_strength in _tried(settings.category_strength, _STRENGTHS):
            category = in_category(category_strength, behind)
            tried = _tried(settings.merchant_strength, _STRENGTHS)
            strength, nats = evaluation.best(tried, partial(at_pair, behind=category))
            if nats > best:
                best, chosen = nats, (float(sigma), float(category_strength), strength)
    return Choices(*chosen, place_strength=1.0)


def _choose_usual(
    seen: Observations,
    weight: FloatArray,
    settings: Settings,
    evaluation: _Evaluation,
    axes: Axes,
    normal: FloatArray,
    chosen: Choices,
    gains: dict[str, float],
) -> Choices:
    before = evaluation.mean(np.log(normal))
    best = before if settings.usual_share is None else -np.inf
    if settings.usual_strength is not None:
        chosen = replace(chosen, usual_strength=settings.usual_strength)
    own = seen.view[evaluation.rows, USUAL_WEIGHT]
    everything = np.zeros_like(seen.cell)
    for strength in _tried(settings.usual_strength, _USUAL_STRENGTHS):
        cell = np.rint(innovations(seen, axes, strength) / CELL).astype(np.int64)
        without = _Without.of(everything, cell, weight, seen.fold, 1)
        for sigma in _USUAL_SIGMAS:
            sums, mass = without.at(everything[evaluation.rows], cell[evaluation.rows], evaluation.fold, sigma)
            usual = sums / np.maximum(mass, 1e-9) + settings.evidence_floor
            trusted = own / (own + strength)
            share, nats = evaluation.best(
                _tried(settings.usual_share, _USUAL_SHARES),
                lambda s, usual=usual, trusted=trusted: (1 - s * trusted) * normal + s * trusted * usual,  # type: ignore[misc]
            )
            if nats > best:
                best = nats
                chosen = replace(chosen, usual_sigma=sigma, usual_strength=float(strength), usual_share=share)
    gains["amount_own"] = best - before
    return chosen


def _choose_place(
    seen: Observations,
    weight: FloatArray,
    settings: Settings,
    evaluation: _Evaluation,
    chosen: Choices,
    gains: dict[str, float],
) -> Choices:
    rows, fold = evaluation.rows, evaluation.fold
    category, pair = seen.category[rows], seen.pair[rows]
    by_category = _mass_without(seen.category, weight, seen.fold, len(seen.categories))
    by_pair = _mass_without(seen.pair, weight, seen.fold, len(seen.pairs))
    known = len(seen.categories)
    of_pair = np.searchsorted(seen.categories, seen.pairs >> np.uint64(32))
    merchants = np.stack([np.bincount(of_pair[masses > 0], minlength=known) for masses in by_pair]) + 1.0
    mass = by_category[fold, category]
    in_category = (mass + 0.5) / (by_category.sum(axis=1)[fold] + 0.5 * (known + 1))

    def at_merchant(strength: float) -> FloatArray:
        return _backed_off(by_pair[fold, pair], mass, strength, 1.0 / merchants[fold, category])

    place_strength, nats = evaluation.best(_tried(settings.place_strength, _STRENGTHS), at_merchant)
    gains["category"] = evaluation.mean(np.log(in_category)) + float(np.log(known + 1))
    gains["merchant"] = nats + float(np.log((len(seen.pairs) + 1) / (known + 1)))
    everyone = in_category * at_merchant(place_strength)
    own, gains["place_own"] = _choose_own(
        evaluation, seen.view[rows, AT_PLACE], seen.view[rows, OWN_WEIGHT], everyone, settings.own_place_strength
    )
    return replace(chosen, place_strength=place_strength, own_place_strength=own)


def _choose_own(
    evaluation: _Evaluation, same: FloatArray, weight: FloatArray, everyone: FloatArray, given: float | None
) -> tuple[float, float]:
    """The strength of everyone's density against the account's own, and how many nats the account's own gains."""
    strength, nats = evaluation.best(_tried(given, _OWN_STRENGTHS), lambda s: _backed_off(same, weight, s, everyone))
    return strength, nats - evaluation.mean(np.log(everyone))


def _choose_clock(
    seen: Observations,
    weight: FloatArray,
    settings: Settings,
    evaluation: _Evaluation,
    chosen: Choices,
    gains: dict[str, float],
) -> Choices:
    if not len(seen.view) or np.isnan(seen.view[0, HOUR]):
        return chosen
    cells = quarter(seen.view[:, HOUR])
    rows, folds = evaluation.rows, range(int(seen.fold.max()) + 1)

    def density(sigma: float) -> FloatArray:
        left = [seen.fold != f for f in folds]
        return np.stack([hour_density(cells[k], weight[k], sigma) for k in left])[evaluation.fold, cells[rows]]

    sigma, nats = evaluation.best(_HOUR_SIGMAS, density)
    gains["hour"] = nats + float(np.log(24.0))
    own, gains["hour_own"] = _choose_own(
        evaluation, seen.view[rows, AT_HOUR], seen.view[rows, HOUR_WEIGHT], density(sigma), settings.own_hour_strength
    )
    day = seen.view[:, WEEKDAY].astype(np.int64)
    mass = _mass_without(day, weight, seen.fold, 7) + 1.0
    shares = mass / mass.sum(axis=1, keepdims=True)
    gains["weekday"] = evaluation.mean(np.log(shares)[evaluation.fold, day[rows]]) + float(np.log(7.0))
    return replace(chosen, hour_sigma=sigma, own_hour_strength=own)


def _choose_pace(
    seen: Observations,
    weight: FloatArray,
    evaluation: _Evaluation,
    axes: Axes,
    chosen: Choices,
    gains: dict[str, float],
) -> Choices:
    """How much accounts that pay about as often have in common, in gaps and counts alike."""
    rows = evaluation.rows
    rate, has_gap = seen.view[rows, RATE].astype(np.int64), ~np.isnan(seen.gap[rows])
    evaluated = {"gap": (gap_octaves(seen, axes)[rows], axes.octaves, has_gap.astype(float))}
    if not np.isnan(seen.view[0, HOUR]):
        for name, column in (("count_hour", IN_HOUR), ("count_day", IN_DAY)):
            evaluated[name] = (seen.view[rows, column].astype(np.int64), float(COUNTS), np.ones(len(rows)))

    def table(name: str, left: FloatArray, strength: float) -> FloatArray:
        if name == "gap":
            return gap_shares(seen, left, axes, strength)
        return count_shares(seen, left, IN_HOUR if name == "count_hour" else IN_DAY, strength)

    best = -np.inf
    for strength in _STRENGTHS:
        found = {}
        for name, (value, equal, there) in evaluated.items():
            left = [table(name, weight * (seen.fold != f), strength) for f in range(int(seen.fold.max()) + 1)]
            found[name] = evaluation.mean(
                there * (np.log(np.stack(left)[evaluation.fold, rate, value]) + np.log(equal))
            )
        if sum(found.values()) > best:
            best, chosen = sum(found.values()), replace(chosen, pace_strength=float(strength))
            gains.update(found)
    return chosen


def _choose_names(
    seen: Observations, weight: FloatArray, evaluation: _Evaluation, chosen: Choices, gains: dict[str, float]
) -> Choices:
    strengths, owns = [], []
    categories = [f.name for f in seen.fields if f.kind == "category"]
    for i, name in enumerate(categories):
        known, value = np.unique(seen.names[i], return_inverse=True)
        mass = _mass_without(value, weight, seen.fold, len(known))
        left = (mass > 0).sum(axis=1) + 1.0
        inside, total = mass[evaluation.fold, value[evaluation.rows]], mass.sum(axis=1)[evaluation.fold]
        equal = 1.0 / left[evaluation.fold]
        strength, nats = evaluation.best(_STRENGTHS, lambda s, a=inside, b=total, c=equal: _backed_off(a, b, s, c))  # type: ignore[misc]
        # One value, or none: later values show that the column changed, not who paid.
        gains[name] = nats - evaluation.mean(np.log(equal)) if len(known) > 1 else 0.0
        everyone = _backed_off(inside, total, strength, equal)
        same, own_weight = seen.view[evaluation.rows, VIEW + i], seen.view[evaluation.rows, OWN_WEIGHT]
        own, gains[f"{name}_own"] = _choose_own(evaluation, same, own_weight, everyone, None)
        strengths.append(strength)
        owns.append(own)
    return replace(chosen, name_strength=tuple(strengths), name_own=tuple(owns))


def _choose_numbers(
    seen: Observations,
    weight: FloatArray,
    settings: Settings,
    evaluation: _Evaluation,
    axes: Axes,
    chosen: Choices,
    gains: dict[str, float],
) -> Choices:
    sigmas = []
    numbers = [f.name for f in seen.fields if f.kind == "number"]
    for i, name in enumerate(numbers):
        have, cell = number_cells(seen, i, axes.number_scale[i])
        evaluated = np.isin(have, evaluation.rows)
        sigma, gains[name] = 0.1, 0.0
        if evaluated.any() and np.ptp(seen.numbers[i][have]) > 0.0:
            everything, fold = np.zeros_like(cell), seen.fold[have]
            weights = weight[have][evaluated] / weight[have][evaluated].sum()
            nats = []
            without = _Without.of(everything, cell, weight[have], fold, 1)
            for width in _SIGMAS:
                sums, mass = without.at(everything[evaluated], cell[evaluated], fold[evaluated], width)
                nats.append(float(np.sum(weights * np.log(sums / np.maximum(mass, 1e-9) + settings.evidence_floor))))
            sigma, gains[name] = _SIGMAS[int(np.argmax(nats))], max(nats) + float(np.log(axes.number_reach[i]))
        sigmas.append(sigma)
    return replace(chosen, number_sigma=tuple(sigmas))
