"""Densities of normal transactions follow the stream, slowly: (model, new transactions, share) → next model.

Every density becomes ``(1 - a)`` of what it was and ``a`` of what happened since. The strengths with which densities
are mixed are in transactions, and stay as the fit has chosen them. So densities keep their mass, but a transaction
never counts for more than one of the fit did: where fewer come than are forgotten, a density loses mass, and the wider
one behind it counts for more. Merchants, categories and other names that the fit has not seen enter, those that no
longer occur leave, and the centers of amounts follow.

These stay as they were fitted:

- bandwidths and strengths;
- what an account's amounts differ by from its own usual ones, gaps and counts, because they would need the account's
  past, which a row does not have;
- weekdays, because the rows of a day are all of one;
- the library of windows with its divergence, which joins no alert.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from stream_ccsd.evidence.densities import CELL, EVERYTHING, Densities, hours_of
from stream_ccsd.evidence.estimation import (
    KernelDensity,
    center_of,
    hour_density,
    joined,
    kernel_density,
    merchants_of,
    quarter,
)
from stream_ccsd.learning.features import Features
from stream_ccsd.model.calibration import followed
from stream_ccsd.model.model import Model
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, IntArray, read_only
from stream_ccsd.scores import COMPILED, EVIDENCE, TAKEOVER

HALF_LIFE = 30.0
"""Days after which the mass of a density counts for half."""

# Share of a transaction's weight below which it is forgotten, and takes no more memory.
_FORGOTTEN = 0.02
# Transactions that may be forgotten for each that comes.
_MOST_FORGOTTEN = 10.0
# The fewest transactions to take rates from, by their remaining weight: some 50 in a tail of 1 in 100.
_LEAST_FOR_RATES = 5000.0
# Smoothing of new hours: a model does not record the one of its fit.
_HOUR_SIGMA = 1.0


def share_of(length: float, half_life: float) -> float:
    """What so long a part of the stream counts for, where densities forget half of themselves in a half-life.

    >>> round(share_of(1.0, 30.0), 4), share_of(30.0, 30.0)
    (0.0228, 0.5)
    """
    return float(-np.expm1(-np.log(2.0) * length / half_life))


def adapted(model: Model, rows: Features, share: float, threshold: float | None = None) -> Model:
    """The model, with densities and rates moved by ``share`` towards these transactions.

    Parameters
    ----------
    model
        Any, adapted or not.
    rows
        Of transactions that are taken to be normal: neither alerted nor found to be fraud. The caller decides which
        these are, and how long to wait for a verdict.
    share
        Of the densities afterwards, from 0 to 1: see :func:`share_of`.
    threshold
        The alert threshold of these rows; the model's by default. Scores above it are missing among the rows, although
        they happen.
    """
    densities = model.laws
    # Where hardly anything comes, little is forgotten: a quiet month must not empty the densities.
    share = min(share, _MOST_FORGOTTEN * len(rows) / float(densities.amount_mass[EVERYTHING]))
    if share <= 0.0:
        return model
    mix = _Mix(share, len(rows))
    moved = read_only(
        densities._replace(
            **_amounts(densities, rows, mix), **_hours(densities, rows, mix), **_declared(densities, rows, mix)
        )
    )
    before = model.facts.get("adapted", {"times": 0, "transactions": 0})
    return replace(
        model,
        laws=moved,
        tails=model.tails | _tails(model, rows, share, model.threshold if threshold is None else threshold),
        fingerprint=_fingerprint(model.fingerprint, rows, share),
        facts=model.facts
        | {
            "adapted": {
                "times": before["times"] + 1,
                "transactions": before["transactions"] + len(rows),
                "until": float(rows.time.max()),
            }
        },
        names=_names(model, moved, rows),
    )


class _Mix(NamedTuple):
    """How much of a density goes, and how many transactions take its place."""

    share: float
    rows: int

    def weight(self, mass: float) -> float:
        """The weight of a transaction in a density of this mass."""
        return min(self.share * mass / self.rows, 1.0)


def _amounts(densities: Densities, rows: Features, mix: _Mix) -> dict[str, Any]:
    """Mixed where they are finest, by merchant: categories and everything are sums of that."""
    known = 1 + len(densities.categories)
    first = densities.amount_start[known]
    category, merchant = rows.category.astype(np.uint64), rows.merchant.astype(np.uint64)
    pair = np.concatenate(
        [np.repeat(densities.pairs, np.diff(densities.amount_start[known:])), (category << np.uint64(32)) | merchant]
    )
    cell = np.concatenate([densities.amount_cells[first:], np.rint(np.log1p(rows.amount) / CELL).astype(np.int64)])
    mass = float(densities.amount_mass[EVERYTHING])
    pair, cell, weight = _mixed(pair, cell, densities.amount_weight[first:], mass, mix)
    pairs, of_pair = np.unique(pair, return_inverse=True)
    categories, of_category = np.unique(pair >> np.uint64(32), return_inverse=True)
    families = [
        kernel_density(group, cell, weight, count)
        for group, count in ((np.zeros_like(of_pair), 1), (of_category, len(categories)), (of_pair, len(pairs)))
    ]
    return {
        **joined("amount", families, densities.amount_kernel),
        "categories": categories,
        "pairs": pairs,
        "merchants": merchants_of(categories, pairs),
        "center": _centers(families[0], families[1]),
    }


def _mixed(
    key: AnyArray, cell: IntArray, weight: FloatArray, mass: float, mix: _Mix
) -> tuple[AnyArray, IntArray, FloatArray]:
    """Weights by key and cell: old ones first in both, then those of the rows. Forgotten ones are left out."""
    new = mix.weight(mass)
    mass = (1.0 - mix.share) * mass + new * (len(key) - len(weight))
    weight = np.concatenate([(1.0 - mix.share) * weight, np.full(len(key) - len(weight), new)])
    keys, group = np.unique(key, return_inverse=True)
    merged = kernel_density(group, cell, weight, len(keys))
    stays = merged.weight >= _FORGOTTEN * new
    key = np.repeat(keys, np.diff(merged.start))[stays]
    weight = merged.weight[stays]
    return key, merged.cells[stays], weight * (mass / weight.sum())


def _centers(everything: KernelDensity, categories: KernelDensity) -> FloatArray:
    everywhere = _median(everything, 0)
    centers = [center_of(mass, _median(categories, i), everywhere) for i, mass in enumerate(categories.mass.tolist())]
    return np.array([*centers, everywhere])


def _median(densities: KernelDensity, group: int) -> float:
    own = slice(densities.start[group], densities.start[group + 1])
    below = np.cumsum(densities.weight[own])
    return CELL * float(densities.cells[own][np.searchsorted(below, 0.5 * below[-1])])


def _hours(densities: Densities, rows: Features, mix: _Mix) -> dict[str, Any]:
    if densities.day <= 0.0:
        return {}
    recent = hour_density(quarter(hours_of(densities, rows.time)), np.ones(mix.rows), _HOUR_SIGMA)
    return {"hour": (1.0 - mix.share) * densities.hour + mix.share * recent}


def _declared(densities: Densities, rows: Features, mix: _Mix) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    if rows.names.shape[1]:
        keys, weights, start = [], [], [0]
        for i, mass in enumerate(densities.name_mass.tolist()):
            own = slice(densities.name_start[i], densities.name_start[i + 1])
            key = np.concatenate([densities.name_keys[own], rows.names[:, i].astype(np.uint64)])
            key, _, weight = _mixed(key, np.zeros(len(key), np.int64), densities.name_weight[own], mass, mix)
            keys.append(key)
            weights.append(weight)
            start.append(start[-1] + len(key))
        changed |= {"name_keys": np.concatenate(keys), "name_weight": np.concatenate(weights)}
        changed |= {"name_start": np.array(start, np.int64), "name_mass": np.array([w.sum() for w in weights])}
    if rows.numbers.shape[1]:
        moved, missing = [], []
        for i, values in enumerate(rows.numbers.T):
            density, absent = _number(densities, i, values, mix)
            moved.append(density)
            missing.append(absent)
        changed |= {**joined("number", moved, densities.number_kernel), "number_missing": np.array(missing)}
    return changed


def _number(densities: Densities, i: int, values: FloatArray, mix: _Mix) -> tuple[KernelDensity, float]:
    """The density of a declared number, and the share of transactions that do not have it."""
    there = values[~np.isnan(values)]
    absent = float((1.0 - mix.share) * densities.number_missing[i] + mix.share * (1.0 - len(there) / len(values)))
    own = slice(densities.number_start[i], densities.number_start[i + 1])
    position = np.sign(there) * np.log1p(np.abs(there) / densities.number_scale[i])
    cell = np.concatenate([densities.number_cells[own], np.rint(position / CELL).astype(np.int64)])
    mass = float(densities.number_mass[i])
    if not len(there):
        return kernel_density(np.zeros_like(cell), cell, densities.number_weight[own], 1), absent
    _, cell, weight = _mixed(np.zeros(len(cell), np.int64), cell, densities.number_weight[own], max(mass, 1.0), mix)
    return kernel_density(np.zeros_like(cell), cell, weight, 1), absent


def _tails(model: Model, rows: Features, share: float, threshold: float) -> dict[str, Any]:
    """Rates of the scores that alerts are made of."""
    offsets = model.budget_offsets()
    share = min(share, len(rows) / _LEAST_FOR_RATES)
    scores = {EVIDENCE: rows.evidence, TAKEOVER: rows.takeover}
    return {
        COMPILED[place].name: followed(
            model.tails[COMPILED[place].name], values, share, float(threshold + offsets[place])
        )
        for place, values in scores.items()
    }


def _names(model: Model, densities: Densities, rows: Features) -> dict[int, str]:
    """Names behind all codes that the densities or the library of windows hold."""
    held = [
        densities.categories,
        densities.pairs >> np.uint64(32),
        densities.pairs & np.uint64(2**32 - 1),
        densities.name_keys,
    ]
    library = [model.index.category.astype(np.uint64), model.index.merchant.astype(np.uint64)]
    used = np.unique(np.concatenate([*held, *library])).tolist()
    texts = {**rows.texts, **model.names}
    return {code: texts[code] for code in [*used, model.codes("")] if code in texts}


def _fingerprint(before: str, rows: Features, share: float) -> str:
    """Of everything that the model was made from: whatever changes here, the model has another version."""
    digest = hashlib.sha256(f"{before} {share!r}".encode())
    for column in (rows.time, rows.amount, rows.category, rows.merchant, rows.names, rows.numbers):
        digest.update(np.ascontiguousarray(column).tobytes())
    for column in (rows.evidence, rows.takeover):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()
