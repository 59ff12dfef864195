"""What verdicts have taught, as compiled code takes it.

Evidence stays a sum of terms in nats, each a reason (``score.weighing``). Three things are learnt by a lesson:

- the law of fraud, field by field: where verdicts say that fraud happens. Of names (account, category, merchant,
  declared categories) it is the *record* of each value, ``log`` of its rate of fraud over everyone's, with several
  half-lives; of amount, hour, weekday, gap and declared numbers it is how often fraud falls where the diffuse law,
  which is its prior, expects it once;
- weights of the terms, 1 until verdicts say otherwise;
- small trees on everything that is known of a transaction, for what a weighted sum cannot say.

``inputs`` is everything that a lesson learns from, as it was when the transaction was scored.

Evidence by what verdicts have taught: still a sum of terms in nats, each a reason.

Weights multiply terms; what a tree adds is split among its inputs along the path that a transaction takes, and counted
to the terms that these belong to. So terms add up to the evidence, whatever was learnt.
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
"""Of records, in days: a terminal's rate moves within days, that of a category within months."""
NAMED_RECORDS = ("account", "category", "merchant")
"""Records that every transaction has; those of declared categories follow."""
OWN_INPUTS = ("takeover", "size", "beyond", "at_hour", "at_weekday", "after")
"""Inputs that are neither terms nor records: takeover, log amount, how far that is beyond the account's usual, hour,
weekday and log gap, -1 where there is none. Declared numbers follow."""
RECORD = "_record"
"""What the name of such a term ends in."""
LATELY_TERM = "lately"
"""The term of what the account did in the last days, which only trees speak about."""
BINS = 64
"""Of the law of fraud, for amounts and declared numbers."""
BIN = 0.25
"""Their width on the axis: a quarter of a log amount."""
DIFFUSE = 24.0
"""Frauds that the diffuse law counts for."""


class Supervised(NamedTuple):
    """What verdicts have taught. Read only."""

    listening: bool  # whether inputs are written down
    # Records: of each field its values' codes, rising, and a row of log rates, one a half-life.
    start: AnyArray
    codes: AnyArray  # uint64
    rates: FloatArray
    unknown: FloatArray  # (fields, half-lives): of a value without a record
    chosen: AnyArray  # by field: which half-life its term has
    # The law of fraud over the diffuse one, and how many frauds, decayed, each is made of.
    amount: FloatArray
    hour: FloatArray
    weekday: FloatArray
    gap: FloatArray
    number: FloatArray  # a row a declared number
    frauds: FloatArray  # of amount, hour, weekday, gap and each declared number
    weights: FloatArray  # of law terms and records
    # Trees, node after node: inputs at most the threshold go left. A leaf has the feature -1.
    roots: AnyArray
    feature: AnyArray
    threshold: FloatArray
    left: AnyArray
    right: AnyArray
    value: FloatArray
    term_of: AnyArray  # by input: the term it belongs to


def rated_fields(fields: tuple[Field, ...]) -> tuple[str, ...]:
    """What has a record."""
    return (*NAMED_RECORDS, *(f.name for f in fields if f.kind == "category"))


def term_names(fields: tuple[Field, ...]) -> tuple[str, ...]:
    """All terms of the evidence: those of laws, of records, and what the account did lately."""
    return (*density_terms(fields), *(name + RECORD for name in rated_fields(fields)), LATELY_TERM)


def input_names(fields: tuple[Field, ...]) -> tuple[str, ...]:
    """What a lesson learns from, in the order of ``inputs``."""
    records = rated_fields(fields)
    rates = (f"{name}{RECORD}_{life:g}" for name in records for life in HALF_LIVES)
    lately = (f"{LATELY_TERM}_{kind}_{i}" for i in range(len(LATELY)) for kind in ("more", "count"))
    numbers = (f"{f.name}_value" for f in fields if f.kind == "number")
    return (*density_terms(fields), *(name + RECORD for name in records), *rates, *lately, *OWN_INPUTS, *numbers)


def unsupervised(fields: tuple[Field, ...], listening: bool) -> Supervised:
    """Before the first verdict: evidence is the plain sum of its terms."""
    law, records, halves = len(density_terms(fields)), len(rated_fields(fields)), len(HALF_LIVES)
    numbers = sum(f.kind == "number" for f in fields)
    none = np.zeros(0, np.int32)
    return Supervised(
        listening=listening,
        start=np.zeros(records + 1, np.int64),
        codes=np.zeros(0, np.uint64),
        rates=np.zeros((0, halves)),
        unknown=np.zeros((records, halves)),
        chosen=np.full(records, 1, np.int64),
        amount=np.zeros(BINS),
        hour=np.zeros(24),
        weekday=np.zeros(7),
        gap=np.zeros(OCTAVES),
        number=np.zeros((numbers, BINS)),
        frauds=np.zeros(4 + numbers),
        weights=np.ones(law + records),
        roots=none,
        feature=none,
        threshold=np.zeros(0),
        left=none,
        right=none,
        value=np.zeros(0),
        term_of=_terms_of_inputs(law, records, numbers),
    )


def _terms_of_inputs(law: int, records: int, numbers: int) -> AnyArray:
    lately = law + records
    own = [*range(law + records), *(law + r for r in range(records) for _ in HALF_LIVES)]
    last = lately, *(TERMS.index(name) for name in ("amount", "amount_own", "hour", "weekday", "gap"))
    return np.array([*own, *[lately] * 2 * len(LATELY), *last, *range(law - numbers, law)], np.int32)


@inner()
def amount_bin(amount: float) -> int:
    """Where an amount lies in the law of fraud."""
    return min(int(np.log1p(amount) / BIN), BINS - 1)


@inner()
def number_bin(position: float) -> int:
    """Where a declared number lies in it, by its place on its axis: 0 is in the middle."""
    return min(max(int(np.floor(position / BIN)) + BINS // 2, 0), BINS - 1)


@inner()
def weigh(
    learnt: Supervised,
    laws: Densities,
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
    """Evidence by what was learnt. ``terms`` come as the laws have them and leave as they count; fills ``inputs``."""
    records, halves = len(learnt.start) - 1, learnt.rates.shape[1]
    law = len(learnt.weights) - records
    _fill_law_of_fraud(learnt, laws, event, numbers, view, terms)
    for i in range(law):
        inputs[i] = terms[i]
    place = law + records
    for r in range(records):
        if r < len(NAMED_RECORDS):
            code = event.account if r == 0 else np.uint64(event.category if r == 1 else event.merchant)
        else:
            code = np.uint64(names[r - len(NAMED_RECORDS)])
        at = find(learnt.codes, learnt.start[r], learnt.start[r + 1], code)
        for h in range(halves):
            inputs[place + h] = learnt.rates[at, h] if at >= 0 else learnt.unknown[r, h]
        inputs[law + r] = inputs[place + learnt.chosen[r]]
        place += halves
    for i in range(len(lately) // 2):
        inputs[place] = lately[2 * i] / (lately[2 * i + 1] + 1.0)
        inputs[place + 1] = np.log1p(lately[2 * i + 1])
        place += 2
    inputs[place], inputs[place + 1], inputs[place + 2] = takeover, np.log1p(event.amount), beyond
    timed = not np.isnan(view[HOUR])
    inputs[place + 3], inputs[place + 4] = (view[HOUR], view[WEEKDAY]) if timed else (-1.0, -1.0)
    inputs[place + 5] = -1.0 if np.isnan(view[GAP]) else gap_position(laws, view[GAP])
    for i in range(len(numbers)):
        inputs[place + 6 + i] = 0.0 if np.isnan(numbers[i]) else number_position(laws, i, numbers[i])
    return contributions(learnt, inputs, terms)


@compiled()
def contributions(learnt: Supervised, inputs: AnyArray, terms: FloatArray) -> float:
    """What each term counts for, by the weights and along the paths of the trees; returns their sum."""
    for i in range(len(terms)):
        terms[i] = learnt.weights[i] * inputs[i] if i < len(learnt.weights) else 0.0
    for root in learnt.roots:
        node = root
        while learnt.feature[node] >= 0:
            feature = learnt.feature[node]
            child = learnt.left[node] if inputs[feature] <= learnt.threshold[node] else learnt.right[node]
            terms[learnt.term_of[feature]] += learnt.value[child] - learnt.value[node]
            node = child
    total = 0.0
    for i in range(len(terms)):
        total += terms[i]
    return total


@compiled()
def evidence_by(learnt: Supervised, inputs: AnyArray, count: int) -> FloatArray:
    """Evidence of many transactions by their inputs, as a lesson judges what it learnt; ``count`` terms."""
    out, terms = np.empty(len(inputs)), np.empty(count)
    for i in range(len(inputs)):
        out[i] = contributions(learnt, inputs[i], terms)
    return out


@inner()
def _fill_law_of_fraud(
    learnt: Supervised, laws: Densities, event: Any, numbers: FloatArray, view: FloatArray, terms: FloatArray
) -> None:
    """Terms of numbers as far as verdicts have filled the law of fraud. ``laws.tells`` has 0 where nothing is said."""
    p = laws.departure
    terms[AMOUNT] = _filled(terms[AMOUNT], 1.0, learnt.amount[amount_bin(event.amount)], learnt.frauds[0])
    if not np.isnan(view[HOUR]):
        if laws.tells[HOUR_TERM] > 0.0:
            terms[HOUR_TERM] = _filled(terms[HOUR_TERM], p, learnt.hour[int(view[HOUR])], learnt.frauds[1])
        if laws.tells[WEEKDAY_TERM] > 0.0:
            terms[WEEKDAY_TERM] = _filled(terms[WEEKDAY_TERM], p, learnt.weekday[int(view[WEEKDAY])], learnt.frauds[2])
    if not np.isnan(view[GAP]) and laws.tells[GAP_TERM] > 0.0:
        terms[GAP_TERM] = _filled(terms[GAP_TERM], p, learnt.gap[gap_octave(laws, view[GAP])], learnt.frauds[3])
    place = len(laws.tells) - len(numbers)
    for i in range(len(numbers)):
        if not np.isnan(numbers[i]) and laws.tells[place + i] > 0.0:
            where = number_bin(number_position(laws, i, numbers[i]))
            terms[place + i] = _filled(terms[place + i], p, learnt.number[i, where], learnt.frauds[4 + i])


@compiled()
def _filled(term: float, p: float, ratio: float, frauds: float) -> float:
    """``log F / N`` where F is the prior law ``(1 - p) N + p F0``, worth some frauds, and those that were found.

    The term says what the prior has, so ``F0 / N`` follows from it; ``ratio`` is the law of those found over F0.
    """
    if frauds <= 0.0:
        return term
    prior = np.exp(term)
    diffuse = (prior - 1.0 + p) / p
    return np.log((DIFFUSE * prior + frauds * ratio * diffuse) / (DIFFUSE + frauds))
