"""The laws of normal transactions follow the stream, slowly: (model, what happened since, how much of it) → next model.

Every law becomes ``(1 - a)`` of what it was and ``a`` of what happened since. The strengths by which laws lean on each
other are in transactions, and stay those that the fit has chosen; so laws keep their mass, but a transaction never
counts for more than one of the fit did: where fewer come than are forgotten, laws know less, and lean more on the wider
ones. Merchants, categories and other names that the fit has not seen enter, those that are not seen any more leave, and
the centers of amounts follow.

As they were fitted stay: bandwidths and strengths; what an account's amounts differ by from its own usual ones, gaps
and counts (they would need the account's past, which a row does not have); weekdays (the rows of a day are all of
one); and the library of windows with its divergence, which joins no alert.
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
"""Days after which what a law knows counts for half."""

# Of a transaction's weight: what counts for less than this is forgotten, and takes no more room.
_FORGOTTEN = 0.02
# Transactions that may be forgotten for each that comes.
_MOST_FORGOTTEN = 10.0
# Transactions that rates are taken from, at the least, by what still counts of them: some 50 in a tail of 1 in 100.
_LEAST_FOR_RATES = 5000.0
# Smoothing of the hours that come in: a model does not say which one its own were given.
_HOUR_SIGMA = 1.0


def share_of(length: float, half_life: float) -> float:
    """What so long a part of the stream counts for at once, for laws that forget half of themselves in a half-life.

    >>> round(share_of(1.0, 30.0), 4), share_of(30.0, 30.0)
    (0.0228, 0.5)
    """
    return float(-np.expm1(-np.log(2.0) * length / half_life))


def adapted(model: Model, rows: Features, share: float, threshold: float | None = None) -> Model:
    """The model, its laws and rates moved by ``share`` towards what these transactions look like.

    Parameters
    ----------
    model
        Any, adapted or not.
    rows
        Of transactions that are taken to be normal: neither alerted nor judged to be fraud. Whose these are, and how
        long to wait for a verdict, is the caller's to say.
    share
        Of what the laws are to be afterwards, from 0 to 1: see :func:`share_of`.
    threshold
        That the rows were alerted by; the model's by default. What lies above it is not among them, which is no sign
        that it does not happen.
    """
    laws = model.laws
    # Where hardly anything comes, little is forgotten: a quiet month must not empty the laws.
    share = min(share, _MOST_FORGOTTEN * len(rows) / float(laws.amount_mass[EVERYTHING]))
    if share <= 0.0:
        return model
    mix = _Mix(share, len(rows))
    moved = read_only(
        laws._replace(**_amounts(laws, rows, mix), **_hours(laws, rows, mix), **_declared(laws, rows, mix))
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
    """How much of a law goes, and how many transactions take its place."""

    share: float
    rows: int

    def weight(self, mass: float) -> float:
        """What a transaction counts for in a law of this mass."""
        return min(self.share * mass / self.rows, 1.0)


def _amounts(laws: Densities, rows: Features, mix: _Mix) -> dict[str, Any]:
    """Mixed where they are finest, by merchant: categories and everything are sums of that."""
    known = 1 + len(laws.categories)
    first = laws.amount_start[known]
    category, merchant = rows.category.astype(np.uint64), rows.merchant.astype(np.uint64)
    pair = np.concatenate(
        [np.repeat(laws.pairs, np.diff(laws.amount_start[known:])), (category << np.uint64(32)) | merchant]
    )
    cell = np.concatenate([laws.amount_cells[first:], np.rint(np.log1p(rows.amount) / CELL).astype(np.int64)])
    mass = float(laws.amount_mass[EVERYTHING])
    pair, cell, weight = _mixed(pair, cell, laws.amount_weight[first:], mass, mix)
    pairs, of_pair = np.unique(pair, return_inverse=True)
    categories, of_category = np.unique(pair >> np.uint64(32), return_inverse=True)
    families = [
        kernel_density(law, cell, weight, count)
        for law, count in ((np.zeros_like(of_pair), 1), (of_category, len(categories)), (of_pair, len(pairs)))
    ]
    return {
        **joined("amount", families, laws.amount_kernel),
        "categories": categories,
        "pairs": pairs,
        "merchants": merchants_of(categories, pairs),
        "center": _centers(families[0], families[1]),
    }


def _mixed(
    key: AnyArray, cell: IntArray, weight: FloatArray, mass: float, mix: _Mix
) -> tuple[AnyArray, IntArray, FloatArray]:
    """Weights by key and cell: old ones first in both, then those of the rows. The forgotten are left out."""
    new = mix.weight(mass)
    mass = (1.0 - mix.share) * mass + new * (len(key) - len(weight))
    weight = np.concatenate([(1.0 - mix.share) * weight, np.full(len(key) - len(weight), new)])
    keys, law = np.unique(key, return_inverse=True)
    merged = kernel_density(law, cell, weight, len(keys))
    stays = merged.weight >= _FORGOTTEN * new
    key = np.repeat(keys, np.diff(merged.start))[stays]
    weight = merged.weight[stays]
    return key, merged.cells[stays], weight * (mass / weight.sum())


def _centers(everything: KernelDensity, categories: KernelDensity) -> FloatArray:
    everywhere = _median(everything, 0)
    centers = [center_of(mass, _median(categories, i), everywhere) for i, mass in enumerate(categories.mass.tolist())]
    return np.array([*centers, everywhere])


def _median(laws: KernelDensity, law: int) -> float:
    own = slice(laws.start[law], laws.start[law + 1])
    below = np.cumsum(laws.weight[own])
    return CELL * float(laws.cells[own][np.searchsorted(below, 0.5 * below[-1])])


def _hours(laws: Densities, rows: Features, mix: _Mix) -> dict[str, Any]:
    if laws.day <= 0.0:
        return {}
    recent = hour_density(quarter(hours_of(laws, rows.time)), np.ones(mix.rows), _HOUR_SIGMA)
    return {"hour": (1.0 - mix.share) * laws.hour + mix.share * recent}


def _declared(laws: Densities, rows: Features, mix: _Mix) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    if rows.names.shape[1]:
        keys, weights, start = [], [], [0]
        for i, mass in enumerate(laws.name_mass.tolist()):
            own = slice(laws.name_start[i], laws.name_start[i + 1])
            key = np.concatenate([laws.name_keys[own], rows.names[:, i].astype(np.uint64)])
            key, _, weight = _mixed(key, np.zeros(len(key), np.int64), laws.name_weight[own], mass, mix)
            keys.append(key)
            weights.append(weight)
            start.append(start[-1] + len(key))
        changed |= {"name_keys": np.concatenate(keys), "name_weight": np.concatenate(weights)}
        changed |= {"name_start": np.array(start, np.int64), "name_mass": np.array([w.sum() for w in weights])}
    if rows.numbers.shape[1]:
        moved, missing = [], []
        for i, values in enumerate(rows.numbers.T):
            law, absent = _number(laws, i, values, mix)
            moved.append(law)
            missing.append(absent)
        changed |= {**joined("number", moved, laws.number_kernel), "number_missing": np.array(missing)}
    return changed


def _number(laws: Densities, i: int, values: FloatArray, mix: _Mix) -> tuple[KernelDensity, float]:
    """The law of a declared number, and the share of those that do not have it."""
    there = values[~np.isnan(values)]
    absent = float((1.0 - mix.share) * laws.number_missing[i] + mix.share * (1.0 - len(there) / len(values)))
    own = slice(laws.number_start[i], laws.number_start[i + 1])
    position = np.sign(there) * np.log1p(np.abs(there) / laws.number_scale[i])
    cell = np.concatenate([laws.number_cells[own], np.rint(position / CELL).astype(np.int64)])
    mass = float(laws.number_mass[i])
    if not len(there):
        return kernel_density(np.zeros_like(cell), cell, laws.number_weight[own], 1), absent
    _, cell, weight = _mixed(np.zeros(len(cell), np.int64), cell, laws.number_weight[own], max(mass, 1.0), mix)
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


def _names(model: Model, laws: Densities, rows: Features) -> dict[int, str]:
    """Texts behind all codes that the laws or the library of windows hold."""
    held = [laws.categories, laws.pairs >> np.uint64(32), laws.pairs & np.uint64(2**32 - 1), laws.name_keys]
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
