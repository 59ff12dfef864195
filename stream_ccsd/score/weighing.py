"""Evidence by what verdicts have taught: still a sum of terms in nats, each a reason.

Weights multiply terms; what a tree adds is split among its inputs along the path that a transaction takes, and counted
to the terms that these belong to. So terms add up to the evidence, whatever was learnt.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stream_ccsd.account import GAP, HOUR, WEEKDAY
from stream_ccsd.compiling import compiled, inner
from stream_ccsd.library.laws import Laws, find, gap_octave, gap_position, number_position
from stream_ccsd.library.learnt import DIFFUSE, NAMED_RECORDS, Learnt, amount_bin, number_bin
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.score.evidence import AMOUNT, GAP_TERM, HOUR_TERM, WEEKDAY_TERM


@inner()
def weigh(
    learnt: Learnt,
    laws: Laws,
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
def contributions(learnt: Learnt, inputs: AnyArray, terms: FloatArray) -> float:
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
def evidence_by(learnt: Learnt, inputs: AnyArray, count: int) -> FloatArray:
    """Evidence of many transactions by their inputs, as a lesson judges what it learnt; ``count`` terms."""
    out, terms = np.empty(len(inputs)), np.empty(count)
    for i in range(len(inputs)):
        out[i] = contributions(learnt, inputs[i], terms)
    return out


@inner()
def _fill_law_of_fraud(
    learnt: Learnt, laws: Laws, event: Any, numbers: FloatArray, view: FloatArray, terms: FloatArray
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
