"""Evidence after learning from verdicts: still a sum of terms in nats, each of them a reason.

A model update learns three things:

- the distribution of fraud, field by field. For names (account, category, merchant, declared categories) it is the
  fraud rate of each value, as ``log`` of its rate over everyone's, with several half-lives. For amount, hour, weekday,
  gap and declared numbers it is how often fraud falls where the diffuse density, its prior, expects it once;
- weights of the terms, which are 1 until verdicts say otherwise;
- small trees on all features of a transaction, for what a weighted sum cannot say.

Weights multiply terms. What a tree adds is split among its inputs along the path that a transaction takes, and counted
to the terms that these belong to. So the terms always add up to the evidence.

``inputs`` are all features that a model update learns from, as they were when the transaction was scored.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stream_ccsd.account import GAP, HOUR, LATELY, WEEKDAY
from stream_ccsd.evidence.densities import OCTAVES, Densities, gap_octave, gap_position, number_position
from stream_ccsd.evidence.terms import AMOUNT, GAP_TERM, HOUR_TERM, WEEKDAY_TERM
from stream_ccsd.fields import TERMS, Field, density_terms
from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.numerics.compiling import compiled, inner
from stream_ccsd.numerics.vector import find

HALF_LIVES = (1.0, 2.0, 5.0, 20.0, 60.0)
"""Of fraud rates, in days: a terminal's rate moves within days, that of a category within months."""
NAMED_RECORDS = ("account", "category", "merchant")
"""Fields with fraud rates that every transaction has; declared categories follow."""
OWN_INPUTS = ("takeover", "size", "beyond", "at_hour", "at_weekday", "after")
"""Inputs that are neither terms nor fraud rates: takeover, log amount, how far that is beyond the account's usual,
hour, weekday and log gap, -1 where there is none. Declared numbers follow."""
RECORD = "_record"
"""Suffix of the terms of fraud rates."""
LATELY_TERM = "lately"
"""The term of what the account did in the last days, which only trees use."""
BINS = 64
"""Of the fraud density, for amounts and declared numbers."""
BIN = 0.25
"""Their width on the axis: a quarter of a log amount."""
DIFFUSE = 24.0
"""How many frauds the diffuse density counts for."""


class Supervised(NamedTuple):
    """Everything that was learnt from verdicts. Read only."""

    listening: bool  # whether inputs are recorded
    # Fraud rates: of each field its values' codes, rising, and a row of log rates, one a half-life.
    start: AnyArray
    codes: AnyArray  # uint64
    rates: FloatArray
    unknown: FloatArray  # (fields, half-lives): of a value without a fraud rate
    chosen: AnyArray  # by field: which half-life its term has
    # The fraud density over the diffuse one, and how many frauds, decayed, each is made of.
    amount: FloatArray
    hour: FloatArray
    weekday: FloatArray
    gap: FloatArray
    number: FloatArray  # a row a declared number
    frauds: FloatArray  # of amount, hour, weekday, gap and each declared number
    weights: FloatArray  # of density terms and fraud rates
    # Trees, node after node: inputs at most the threshold go left. A leaf has the feature -1.
    roots: AnyArray
    feature: AnyArray
    threshold: FloatArray
    left: AnyArray
    right: AnyArray
    value: FloatArray
    term_of: AnyArray  # by input: the term it belongs to


def rated_fields(fields: tuple[Field, ...]) -> tuple[str, ...]:
    """Fields whose values have fraud rates."""
    return (*NAMED_RECORDS, *(f.name for f in fields if f.kind == "category"))


def term_names(fields: tuple[Field, ...]) -> tuple[str, ...]:
    """All terms of the evidence: those of densities, of fraud rates, and what the account did lately."""
    return (*density_terms(fields), *(name + RECORD for name in rated_fields(fields)), LATELY_TERM)


def input_names(fields: tuple[Field, ...]) -> tuple[str, ...]:
    """What a model update learns from, in the order of ``inputs``."""
    rated = rated_fields(fields)
    rates = (f"{name}{RECORD}_{life:g}" for name in rated for life in HALF_LIVES)
    lately = (f"{LATELY_TERM}_{kind}_{i}" for i in range(len(LATELY)) for kind in ("more", "count"))
    numbers = (f"{f.name}_value" for f in fields if f.kind == "number")
    return (*density_terms(fields), *(name + RECORD for name in rated), *rates, *lately, *OWN_INPUTS, *numbers)


def unsupervised(fields: tuple[Field, ...], listening: bool) -> Supervised:
    """Before the first verdict: evidence is the plain sum of its terms."""
    base, rated, halves = len(density_terms(fields)), len(rated_fields(fields)), len(HALF_LIVES)
    numbers = sum(f.kind == "number" for f in fields)
    none = np.zeros(0, np.int32)
    return Supervised(
        listening=listening,
        start=np.zeros(rated + 1, np.int64),
        codes=np.zeros(0, np.uint64),
        rates=np.zeros((0, halves)),
        unknown=np.zeros((rated, halves)),
        chosen=np.full(rated, 1, np.int64),
        amount=np.zeros(BINS),
        hour=np.zeros(24),
        weekday=np.zeros(7),
        gap=np.zeros(OCTAVES),
        number=np.zeros((numbers, BINS)),
        frauds=np.zeros(4 + numbers),
        weights=np.ones(base + rated),
        roots=none,
        feature=none,
        threshold=np.zeros(0),
        left=none,
        right=none,
        value=np.zeros(0),
        term_of=_terms_of_inputs(base, rated, numbers),
    )


def _terms_of_inputs(base: int, rated: int, numbers: int) -> AnyArray:
    lately = base + rated
    own = [*range(base + rated), *(base + r for r in range(rated) for _ in HALF_LIVES)]
    last = lately, *(TERMS.index(name) for name in ("amount", "amount_own", "hour", "weekday", "gap"))
    return np.array([*own, *[lately] * 2 * len(LATELY), *last, *range(base - numbers, base)], np.int32)


@inner()
def amount_bin(amount: float) -> int:
    """The bin of an amount in the fraud density."""
    return min(int(np.log1p(amount) / BIN), BINS - 1)


@inner()
def number_bin(position: float) -> int:
    """The bin of a declared number, by its place on its axis: 0 is in the middle."""
    return min(max(int(np.floor(position / BIN)) + BINS // 2, 0), BINS - 1)


@inner()
def weigh(
    supervised: Supervised,
    densities: Densities,
    event: Any,
    names: AnyArray,
    numbers: FloatArray,
    view: FloatArray,
    lately: AnyArray,
    beyond: float,
    takeover: float,
    terms: FloatArray,
    inputs: AnyArray,
) -> float:
    """Evidence after learning: ``terms`` come from the densities, and leave as weighted ones. Fills ``inputs``."""
    rated, halves = len(supervised.start) - 1, supervised.rates.shape[1]
    base = len(supervised.weights) - rated
    _fill_fraud_density(supervised, densities, event, numbers, view, terms)
    for i in range(base):
        inputs[i] = terms[i]
    place = base + rated
    for r in range(rated):
        if r < len(NAMED_RECORDS):
            code = event.account if r == 0 else np.uint64(event.category if r == 1 else event.merchant)
        else:
            code = np.uint64(names[r - len(NAMED_RECORDS)])
        at = find(supervised.codes, supervised.start[r], supervised.start[r + 1], code)
        for h in range(halves):
            inputs[place + h] = supervised.rates[at, h] if at >= 0 else supervised.unknown[r, h]
        inputs[base + r] = inputs[place + supervised.chosen[r]]
        place += halves
    for i in range(len(lately) // 2):
        inputs[place] = lately[2 * i] / (lately[2 * i + 1] + 1.0)
        inputs[place + 1] = np.log1p(lately[2 * i + 1])
        place += 2
    inputs[place], inputs[place + 1], inputs[place + 2] = takeover, np.log1p(event.amount), beyond
    timed = not np.isnan(view[HOUR])
    inputs[place + 3], inputs[place + 4] = (view[HOUR], view[WEEKDAY]) if timed else (-1.0, -1.0)
    inputs[place + 5] = -1.0 if np.isnan(view[GAP]) else gap_position(densities, view[GAP])
    for i in range(len(numbers)):
        inputs[place + 6 + i] = 0.0 if np.isnan(numbers[i]) else number_position(densities, i, numbers[i])
    return contributions(supervised, inputs, terms)


@compiled()
def contributions(supervised: Supervised, inputs: AnyArray, terms: FloatArray) -> float:
    """The contribution of each term, by the weights and along the paths of the trees; returns their sum."""
    for i in range(len(terms)):
        terms[i] = supervised.weights[i] * inputs[i] if i < len(supervised.weights) else 0.0
    for root in supervised.roots:
        node = root
        while supervised.feature[node] >= 0:
            feature = supervised.feature[node]
            child = supervised.left[node] if inputs[feature] <= supervised.threshold[node] else supervised.right[node]
            terms[supervised.term_of[feature]] += supervised.value[child] - supervised.value[node]
            node = child
    total = 0.0
    for i in range(len(terms)):
        total += terms[i]
    return total


@compiled()
def evidence_by(supervised: Supervised, inputs: AnyArray, count: int) -> FloatArray:
    """Evidence of many transactions by their inputs, for a model update to evaluate; ``count`` terms."""
    out, terms = np.empty(len(inputs)), np.empty(count)
    for i in range(len(inputs)):
        out[i] = contributions(supervised, inputs[i], terms)
    return out


@inner()
def _fill_fraud_density(
    supervised: Supervised, densities: Densities, event: Any, numbers: FloatArray, view: FloatArray, terms: FloatArray
) -> None:
    """Update the terms of numbers with the fraud density. Terms that are not informative (``tells`` is 0) stay."""
    p = densities.departure
    terms[AMOUNT] = _filled(terms[AMOUNT], 1.0, supervised.amount[amount_bin(event.amount)], supervised.frauds[0])
    if not np.isnan(view[HOUR]):
        if densities.tells[HOUR_TERM] > 0.0:
            terms[HOUR_TERM] = _filled(terms[HOUR_TERM], p, supervised.hour[int(view[HOUR])], supervised.frauds[1])
        if densities.tells[WEEKDAY_TERM] > 0.0:
            terms[WEEKDAY_TERM] = _filled(
                terms[WEEKDAY_TERM], p, supervised.weekday[int(view[WEEKDAY])], supervised.frauds[2]
            )
    if not np.isnan(view[GAP]) and densities.tells[GAP_TERM] > 0.0:
        terms[GAP_TERM] = _filled(
            terms[GAP_TERM], p, supervised.gap[gap_octave(densities, view[GAP])], supervised.frauds[3]
        )
    place = len(densities.tells) - len(numbers)
    for i in range(len(numbers)):
        if not np.isnan(numbers[i]) and densities.tells[place + i] > 0.0:
            where = number_bin(number_position(densities, i, numbers[i]))
            terms[place + i] = _filled(terms[place + i], p, supervised.number[i, where], supervised.frauds[4 + i])


@compiled()
def _filled(term: float, p: float, ratio: float, frauds: float) -> float:
    """``log F / N`` where F is made of the prior density ``(1 - p) N + p F0``, worth some frauds, and known frauds.

    The term is that of the prior, so ``F0 / N`` follows from it; ``ratio`` is the density of known frauds over F0.
    """
    if frauds <= 0.0:
        return term
    prior = np.exp(term)
    diffuse = (prior - 1.0 + p) / p
    return np.log((DIFFUSE * prior + frauds * ratio * diffuse) / (DIFFUSE + frauds))
