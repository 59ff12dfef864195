"""Scored transactions as drift detection takes them, and their sums over a period, in whole numbers.

Sums of whole numbers do not depend on the batches they are added up in. So a replay that was stopped and resumed finds
the same changes as one that was not. Fractions are counted in ten-thousandths, as the recorded terms are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from stream_ccsd.fields import OWN, density_terms
from stream_ccsd.model.model import Model
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, IntArray
from stream_ccsd.result import Result

RATES = (0.01, 0.001)
"""Rates of normal transactions; how many score above each is watched, by category for the first."""
MIXES = ("in_category", "at_merchant")
"""Sums whose shares are watched."""
DIGITS = 1e4
"""Fractions are counted in units of one over this."""

# Categories and merchants that are looked at each for itself: the most usual ones of the fit.
_CATEGORIES, _MERCHANTS = 12, 40


class DriftSample(NamedTuple):
    """Scored transactions in the order of the stream, a row each."""

    time: FloatArray
    score: FloatArray
    category: IntArray  # place among the watched ones; behind the last of them for all others
    merchant: IntArray  # likewise
    log_amount: IntArray  # in ten-thousandths
    terms: IntArray  # (rows, watched terms), likewise

    def part(self, first: int, last: int) -> DriftSample:
        """Rows of a range."""
        columns: tuple[Any, ...] = self
        return DriftSample(*(column[first:last] for column in columns))


@dataclass(frozen=True)
class SampleLayout:
    """Names that have statistics of their own, and the places of their sums in a row of whole numbers."""

    categories: tuple[str, ...]
    merchants: tuple[str, ...]
    terms: tuple[str, ...]
    places: tuple[int, ...]  # of the watched terms among all

    @classmethod
    def of(cls, model: Model) -> SampleLayout:
        """The most usual categories and merchants of a model, and the terms that do not compare with the account.

        What compares with the account itself changes by itself while accounts grow older. On ten simulated
        populations without any change, 'habit' would have been an event in five of them, and 'country_own' in three.
        """
        densities, known = model.laws, len(model.laws.categories)
        mass = densities.amount_mass
        category = _most(densities.categories, mass[1 : 1 + known], _CATEGORIES)
        code, owner = np.unique(densities.pairs & np.uint64(2**32 - 1), return_inverse=True)
        merchant = _most(code, np.bincount(owner, mass[1 + known :]), _MERCHANTS)
        # Where a model learns, the weight of a term changes with every update.
        names = density_terms(model.settings.declared) if model.learnt is None else ()
        informative = model.laws.tells.tolist()
        places = [i for i, n in enumerate(names) if informative[i] and n != "habit" and not n.endswith(OWN)]
        return cls(
            tuple(model.name(c) for c in category),
            tuple(model.name(c) for c in merchant),
            tuple(names[i] for i in places),
            tuple(places),
        )

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each kind of sum lies."""
        categories, merchants = len(self.categories) + 1, len(self.merchants) + 1
        sizes = {"count": 1, "over": len(RATES), "in_category": categories, "over_in_category": categories}
        sizes |= {"amounts": categories, "at_merchant": merchants, "terms": len(self.terms), "judged": 2}
        ends = np.cumsum(list(sizes.values())).tolist()
        return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}

    def nothing(self) -> IntArray:
        """Sums of no transaction."""
        return np.zeros(self.slices["judged"].stop, np.int64)

    def sums(self, sample: DriftSample) -> IntArray:
        """Sums of some transactions."""
        out = self.nothing()
        categories, merchants = len(self.categories) + 1, len(self.merchants) + 1
        high = sample.score >= -np.log(RATES[0])
        at = self.slices
        out[at["count"]] = len(sample.time)
        out[at["over"]] = [np.count_nonzero(sample.score >= -np.log(rate)) for rate in RATES]
        out[at["in_category"]] = np.bincount(sample.category, minlength=categories)
        out[at["over_in_category"]] = np.bincount(sample.category[high], minlength=categories)
        # Exact: sums of whole numbers far below 2**53.
        out[at["amounts"]] = np.bincount(sample.category, sample.log_amount, categories).astype(np.int64)
        out[at["at_merchant"]] = np.bincount(sample.merchant, minlength=merchants)
        out[at["terms"]] = sample.terms.sum(axis=0)
        return out

    def of_scores(self, scores: pa.RecordBatch) -> DriftSample:
        """From score records, as a replay has written them."""
        texts = "\n".join(text or "{}" for text in scores.column("terms").to_pylist())
        terms = np.zeros((scores.num_rows, len(self.terms)))
        if scores.num_rows and self.terms:
            schema = pa.schema([(name, pa.float64()) for name in self.terms])
            options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
            reading = arrow_json.ReadOptions(use_threads=False)
            table = arrow_json.read_json(pa.BufferReader(texts.encode()), reading, options)
            for i, name in enumerate(self.terms):
                terms[:, i] = table.column(name).fill_null(0.0).to_numpy()
        return self._sample(
            scores.column("time").to_numpy(),
            scores.column("score").to_numpy(zero_copy_only=False),
            scores.column("amount").to_numpy(),
            (
                _places_in(scores.column("category"), self.categories),
                _places_in(scores.column("merchant"), self.merchants),
            ),
            terms,
        )

    def of_results(self, results: Sequence[Result]) -> DriftSample:
        """The same from results of the engine."""
        entered = [result for result in results if result.entered and result.term_values is not None]
        transactions = [result.transaction for result in entered]
        terms = np.array([result.term_values for result in entered]).reshape(len(entered), -1)
        return self._sample(
            np.array([t.time for t in transactions], float),
            np.array([result.score for result in entered], float),
            np.array([t.amount for t in transactions], float),
            (
                _places((t.category for t in transactions), self.categories),
                _places((t.merchant for t in transactions), self.merchants),
            ),
            terms[:, list(self.places)] if entered else np.zeros((0, len(self.terms))),
        )

    def _sample(
        self,
        time: FloatArray,
        score: FloatArray,
        amount: FloatArray,
        places: tuple[IntArray, IntArray],
        terms: FloatArray,
    ) -> DriftSample:
        return DriftSample(
            time,
            np.nan_to_num(score),
            *places,
            np.rint(np.log1p(amount) * DIGITS).astype(np.int64),
            np.rint(terms * DIGITS).astype(np.int64),
        )


def _most(codes: AnyArray, mass: AnyArray, count: int) -> list[int]:
    """The codes with the most mass; of equal ones the smaller."""
    return [int(c) for c in codes[np.lexsort((codes, -mass))[:count]]]


def _places_in(names: Any, known: tuple[str, ...]) -> IntArray:
    """Places of the names of a column among the known ones; behind them for others."""
    found = pc.index_in(names, value_set=pa.array(known, pa.string()))
    return found.fill_null(len(known)).to_numpy(zero_copy_only=False).astype(np.int64)


def _places(names: Iterable[str], known: tuple[str, ...]) -> IntArray:
    """The same of names that may be any text: a column of Arrow's takes no halves of characters."""
    place = {name: i for i, name in enumerate(known)}
    return np.array([place.get(name, len(known)) for name in names], np.int64)
