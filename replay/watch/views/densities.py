"""The densities behind an alert, as curves: of normal transactions, of this account, and of fraud."""

from __future__ import annotations

from typing import Any

import numpy as np

from replay.watch.views.context import ModelCache
from stream_ccsd.evidence.densities import (
    CELL,
    QUARTERS,
    Densities,
    amount_density,
    hours_of,
    pair_key,
    residual,
    usual_density,
)
from stream_ccsd.evidence.profile import decay_by_lag
from stream_ccsd.evidence.supervised import BIN, BINS, DIFFUSE
from stream_ccsd.model.model import Model
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, IntArray
from stream_ccsd.numerics.compiling import compiled
from stream_ccsd.numerics.vector import find
from stream_ccsd.stores import Record

_POINTS = 96


def densities_behind(
    model_cache: ModelCache, noted: str | None, alert: Record, past: list[Record]
) -> dict[str, Any] | None:
    """Of amount and hour; None where the model is not at hand. ``past`` holds the account's transactions."""
    model = model_cache.model(alert["model"], noted)
    if model is None:
        return None
    earlier = [row for row in past if row["position"] < alert["position"]]
    found = {"amount": _amount(model, alert, earlier), "hour": _hour(model, alert, earlier)}
    return {name: curve for name, curve in found.items() if curve is not None}


def _amount(model: Model, alert: Record, earlier: list[Record]) -> dict[str, Any]:
    densities = model.laws
    category, merchant = (np.uint64(model.codes(alert[name])) for name in ("category", "merchant"))
    amounts = np.array([alert["amount"], *(row["amount"] for row in earlier)])
    low, high = np.log1p(max(0.2, amounts.min() / 2)), np.log1p(amounts.max() * 3)
    cells = np.unique(np.linspace(low / CELL, high / CELL, _POINTS).astype(np.int64))
    usual, weight = _usual(model, earlier)
    normal, own = _amount_curves(densities, cells, category, merchant, usual, weight)
    at = cells * CELL
    diffuse = np.exp(
        np.minimum(at, densities.amount_scale) - densities.amount_scale - np.maximum(at - densities.amount_scale, 0.0)
    )
    fraud = _filled(model, diffuse, "amount", np.minimum((at / BIN).astype(int), BINS - 1), 0)
    return {
        "axis": np.expm1(at).tolist(),
        "normal": normal.tolist(),
        "own": own.tolist() if weight > 0 else None,
        "fraud": fraud.tolist(),
        "value": float(alert["amount"]),
        "unit": "amount",
    }


def _hour(model: Model, alert: Record, earlier: list[Record]) -> dict[str, Any] | None:
    densities = model.laws
    if not densities.day > 0.0:
        return None
    times = np.array([alert["time"], *(row["time"] for row in earlier)], float)
    hours = hours_of(densities, times)
    if len(np.unique(hours)) == 1 and len(hours) > 5:
        return None  # times in whole days say nothing about hours
    axis = (np.arange(QUARTERS) + 0.5) * 24.0 / QUARTERS
    counts = np.bincount(hours[1:].astype(int), minlength=24) if len(earlier) else np.zeros(24)
    own = np.repeat(counts / max(counts.sum(), 1), QUARTERS // 24)
    fraud = _filled(model, np.full(QUARTERS, 1 / 24), "hour", axis.astype(int), 1)
    return {
        "axis": axis.tolist(),
        "normal": densities.hour.tolist(),
        "own": own.tolist() if len(earlier) else None,
        "fraud": fraud.tolist(),
        "value": float(hours[0]),
        "unit": "hour",
    }


def _filled(model: Model, diffuse: FloatArray, name: str, bins: IntArray, place: int) -> FloatArray:
    """The diffuse density of fraud, as far as verdicts have filled it."""
    learnt = model.learnt
    if learnt is None or learnt.frauds[place] <= 0.0:
        return diffuse
    frauds, ratio = learnt.frauds[place], getattr(learnt, name)[bins]
    return diffuse * (DIFFUSE + frauds * ratio) / (DIFFUSE + frauds)


def _usual(model: Model, earlier: list[Record]) -> tuple[float, float]:
    """How far the account's amounts usually lie from the center of their categories, and what that is worth."""
    decay = decay_by_lag(model.settings)[1:]
    newest = earlier[::-1][: len(decay)]
    if not newest:
        return 0.0, 0.0
    weight = decay[: len(newest)]
    distances = np.array([residual(model.laws, row["amount"], model.codes(row["category"])) for row in newest])
    return float((weight * distances).sum() / weight.sum()), float(weight.sum())


@compiled()
def _amount_curves(
    densities: Densities, cells: AnyArray, category: Any, merchant: Any, usual: float, weight: float
) -> tuple[FloatArray, FloatArray]:
    """Everyone's density of amounts at this place, and the account's: its usual distance, mixed with everyone's."""
    known = find(densities.categories, 0, len(densities.categories), category)
    pair = find(densities.pairs, 0, len(densities.pairs), pair_key(category, merchant))
    leaning = usual * weight / (weight + densities.usual_strength)
    share = densities.usual_share * weight / (weight + densities.usual_strength)
    normal, own = np.empty(len(cells)), np.empty(len(cells))
    for i in range(len(cells)):
        normal[i] = amount_density(densities, cells[i], known, pair)
        distance = cells[i] * CELL - densities.center[known] - leaning
        own[i] = (1.0 - share) * normal[i] + share * usual_density(densities, distance)
    return normal, own
