"""Evidence: how much likelier the transaction is as fraud than as a normal one, in nats, term by term.

The difference of two Cauchy–Schwarz divergences of a point, from the density of normal outcomes and from that of
fraudulent ones, is a log likelihood ratio. With a factorised outcome it is a sum over fields. For each field ``x``

    log F(x) / N(x)                        everyone's density N against a diffuse density of fraud F: any place, any
                                           hour, larger amounts rather than smaller (it grows with the amount)
    log (1 - p + p N(x) / N_own(x))        the account's own density N_own against "possibly somebody else's"

where N_own mixes what the account did with what everyone does. A purchase that the account has long been making counts
for no more than it does there (``habit``, never above 0). Fraud is about money and chooses its place: for amount,
category and merchant F is all there is. In any other field a fraud differs from normal with probability p only:
``log (1 - p + p F(x) / N(x))``. That also keeps a rare but innocent hour or gap from outweighing an amount.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stream_ccsd.account import (
    ALIKE,
    AT_HOUR,
    AT_PLACE,
    GAP,
    HOUR,
    HOUR_WEIGHT,
    IN_DAY,
    IN_HOUR,
    OWN_WEIGHT,
    RATE,
    USUAL,
    USUAL_WEIGHT,
    VIEW,
    WEEKDAY,
)
from stream_ccsd.evidence.densities import (
    CELL,
    COUNTS,
    QUARTERS,
    Densities,
    amount_cell,
    amount_density,
    gap_octave,
    name_share,
    number_density,
    number_position,
    pair_key,
    place_shares,
    usual_density,
)
from stream_ccsd.fields import TERMS
from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.numerics.compiling import compiled, inner
from stream_ccsd.numerics.vector import find

AMOUNT, AMOUNT_OWN, CATEGORY, MERCHANT, PLACE_OWN, HABIT = range(6)
HOUR_TERM, HOUR_OWN, WEEKDAY_TERM, GAP_TERM, HOUR_COUNT, DAY_COUNT = range(6, 12)

# A value that is missing is at least this usual, so that a column that stays away does not become an alarm; nor does
# one that appears.
_MISSING = 0.01
_FRAUD_MISSING = 0.1
# Share of takeovers that keep the account's own hours, device and so on: the usual values prove little there.
_SOMEBODY_ELSE = 0.5


@inner()
def evidence_terms(
    densities: Densities,
    event: Any,
    names: AnyArray,
    numbers: FloatArray,
    view: FloatArray,
    missing: Any,
    terms: FloatArray,
) -> tuple[float, float]:
    """Fill the terms of a transaction; returns their sum, and how much better it fits anyone than this account."""
    own = _money_and_place(densities, event, view, terms) + _clock_and_pace(densities, view, terms)
    place = len(TERMS)
    for i in range(len(names)):
        share = name_share(densities, i, np.uint64(names[i]))
        equal = 1.0 / (densities.name_start[i + 1] - densities.name_start[i] + 1)
        if names[i] == missing:
            terms[place] = _departure(densities.departure, np.log(_FRAUD_MISSING / max(share, _MISSING)))
            terms[place + 1] = 0.0
        else:
            terms[place] = _departure(densities.departure, np.log(equal / share))
            other = _log_ratio(view[VIEW + i], view[OWN_WEIGHT], densities.name_own[i], share)
            terms[place + 1] = _departure(densities.departure, other)
            own += _departure(_SOMEBODY_ELSE, other) * densities.tells[place + 1]
        place += 2
    for i in range(len(numbers)):
        absent = densities.number_missing[i]
        if np.isnan(numbers[i]):
            terms[place] = _departure(densities.departure, np.log(_FRAUD_MISSING / max(absent, _MISSING)))
        else:
            density = max(1.0 - absent, _MISSING) * number_density(
                densities, i, number_position(densities, i, numbers[i])
            )
            terms[place] = _departure(densities.departure, -np.log(density * densities.number_reach[i]))
        place += 1
    total = 0.0
    for i in range(len(densities.tells)):
        terms[i] *= densities.tells[i]
        total += terms[i]
    return total, own


@inner()
def _money_and_place(densities: Densities, event: Any, view: FloatArray, terms: FloatArray) -> float:
    known = len(densities.categories)
    category = find(densities.categories, 0, known, np.uint64(event.category))
    pair = find(densities.pairs, 0, len(densities.pairs), pair_key(event.category, event.merchant))
    cell = amount_cell(event.amount)
    normal = amount_density(densities, cell, category, pair)
    # The density of fraud grows with the amount: its logarithm is the log amount, and a constant that ranks nothing.
    terms[AMOUNT] = cell * CELL - np.log(normal) - densities.amount_scale
    usual = view[USUAL] * view[USUAL_WEIGHT] / (view[USUAL_WEIGHT] + densities.usual_strength)
    share = densities.usual_share * view[USUAL_WEIGHT] / (view[USUAL_WEIGHT] + densities.usual_strength)
    innovation = np.log1p(event.amount) - densities.center[category] - usual
    other_amount = -np.log((1.0 - share) + share * usual_density(densities, innovation) / normal)
    terms[AMOUNT_OWN] = _departure(densities.amount_departure, other_amount)
    in_category, at_merchant = place_shares(densities, category, pair)
    terms[CATEGORY] = -np.log(in_category * (known + 1))
    terms[MERCHANT] = -np.log(at_merchant * (len(densities.pairs) + 1) / (known + 1))
    other_place = _log_ratio(view[AT_PLACE], view[OWN_WEIGHT], densities.own_place_strength, in_category * at_merchant)
    terms[PLACE_OWN] = _departure(densities.departure, other_place)
    # A purchase that the account has long been making is no evidence, however rare it is elsewhere.
    beyond = max(view[AT_PLACE] - densities.settled, 0.0)
    everyone = densities.own_place_strength * in_category * at_merchant * normal
    own = (view[ALIKE] * beyond / max(view[AT_PLACE], 1e-9) + everyone) / (
        view[OWN_WEIGHT] + densities.own_place_strength
    )
    terms[HABIT] = -max(np.log(own / (in_category * at_merchant * normal)), 0.0)
    return other_amount * densities.tells[AMOUNT_OWN] + other_place * densities.tells[PLACE_OWN]


@inner()
def _clock_and_pace(densities: Densities, view: FloatArray, terms: FloatArray) -> float:
    for i in range(HOUR_TERM, len(TERMS)):
        terms[i] = 0.0
    other = 0.0
    if not np.isnan(view[HOUR]):
        normal = densities.hour[min(int(view[HOUR] * QUARTERS / 24.0), QUARTERS - 1)]
        terms[HOUR_TERM] = _departure(densities.departure, -np.log(normal * 24.0))
        other = _log_ratio(view[AT_HOUR], view[HOUR_WEIGHT], densities.own_hour_strength, normal)
        terms[HOUR_OWN] = _departure(densities.departure, other)
        terms[WEEKDAY_TERM] = _departure(densities.departure, -np.log(densities.weekday[int(view[WEEKDAY])] * 7.0))
    rate = int(view[RATE])
    if not np.isnan(view[GAP]):
        share = densities.gaps[rate, gap_octave(densities, view[GAP])]
        terms[GAP_TERM] = _departure(densities.departure, -np.log(share * densities.octaves))
        if densities.day > 0.0:
            terms[HOUR_COUNT] = _departure(densities.departure, _at_least(densities.counts[0, rate], view[IN_HOUR]))
            terms[DAY_COUNT] = _departure(densities.departure, _at_least(densities.counts[1, rate], view[IN_DAY]))
    return _departure(_SOMEBODY_ELSE, other) * densities.tells[HOUR_OWN]


@inner()
def _at_least(shares: FloatArray, count: float) -> float:
    """One-sided log ratio of so many or more, between equally likely counts and the usual ones."""
    return np.log((COUNTS - count) / COUNTS / shares[int(count)])


@inner()
def _log_ratio(same: float, weight: float, strength: float, everyone: float) -> float:
    """``log N / N_own``: how much better a value fits everyone than the account, which backs off to everyone."""
    return -np.log((same / everyone + strength) / (weight + strength))


@inner()
def _departure(p: float, ratio: float) -> float:
    """``log (1 - p + p e^ratio)``: evidence of a field in which only a share p of frauds differ."""
    if ratio > 30.0:
        return np.log(p) + ratio
    return np.log(1.0 - p + p * np.exp(ratio))


@compiled()
def evidence_of(
    densities: Densities,
    events: AnyArray,
    names: AnyArray,
    numbers: FloatArray,
    views: FloatArray,
    missing: Any,
    terms: FloatArray,
) -> FloatArray:
    """Evidence of many transactions whose views are known; ``terms`` has a row each."""
    out = np.empty(len(events))
    for i in range(len(events)):
        out[i], _ = evidence_terms(densities, events[i], names[i], numbers[i], views[i], missing, terms[i])
    return out
