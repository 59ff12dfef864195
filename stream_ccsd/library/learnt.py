"""What verdicts have taught, as compiled code takes it.

Evidence stays a sum of terms in nats, each a reason (``score.weighing``). Three things are learnt by a lesson:

- the law of fraud, field by field: where verdicts say that fraud happens. Of names (account, category, merchant,
  declared categories) it is the *record* of each value, ``log`` of its rate of fraud over everyone's, with several
  half-lives; of amount, hour, weekday, gap and declared numbers it is how often fraud falls where the diffuse law,
  which is its prior, expects it once;
- weights of the terms, 1 until verdicts say otherwise;
- small trees on everything that is known of a transaction, for what a weighted sum cannot say.

``inputs`` is everything that a lesson learns from, as it was when the transaction was scored.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stream_ccsd.account import LATELY
from stream_ccsd.compiling import inner
from stream_ccsd.fields import TERMS, Field, law_terms
from stream_ccsd.library.laws import OCTAVES
from stream_ccsd.numeric import AnyArray, FloatArray

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


class Learnt(NamedTuple):
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


def record_fields(fields: tuple[Field, ...]) -> tuple[str, ...]:
    """What has a record."""
    return (*NAMED_RECORDS, *(f.name for f in fields if f.kind == "category"))


def term_names(fields: tuple[Field, ...]) -> tuple[str, ...]:
    """All terms of the evidence: those of laws, of records, and what the account did lately."""
    return (*law_terms(fields), *(name + RECORD for name in record_fields(fields)), LATELY_TERM)


def input_names(fields: tuple[Field, ...]) -> tuple[str, ...]:
    """What a lesson learns from, in the order of ``inputs``."""
    records = record_fields(fields)
    rates = (f"{name}{RECORD}_{life:g}" for name in records for life in HALF_LIVES)
    lately = (f"{LATELY_TERM}_{kind}_{i}" for i in range(len(LATELY)) for kind in ("more", "count"))
    numbers = (f"{f.name}_value" for f in fields if f.kind == "number")
    return (*law_terms(fields), *(name + RECORD for name in records), *rates, *lately, *OWN_INPUTS, *numbers)


def nothing_learnt(fields: tuple[Field, ...], listening: bool) -> Learnt:
    """Before the first verdict: evidence is the plain sum of its terms."""
    law, records, halves = len(law_terms(fields)), len(record_fields(fields)), len(HALF_LIVES)
    numbers = sum(f.kind == "number" for f in fields)
    none = np.zeros(0, np.int32)
    return Learnt(
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
