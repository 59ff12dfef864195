"""What a term of the evidence says, in words an investigator would use."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stream_ccsd.account import (
    AT_HOUR,
    AT_PLACE,
    GAP,
    HOUR,
    HOUR_WEIGHT,
    IN_DAY,
    IN_HOUR,
    NAMED,
    OWN_WEIGHT,
    USUAL,
    USUAL_WEIGHT,
    VIEW,
    WEEKDAY,
)
from stream_ccsd.batch import Batch
from stream_ccsd.library.laws import QUARTERS, Laws, amount_cell, place_shares
from stream_ccsd.library.model import Model
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.score.evidence import OWN, TERMS, evidence_of, term_names
from stream_ccsd.transaction import Transaction

ANYONE = "fit anyone better than this account"
"""How the sentence of a takeover ends."""

_LEAST = 0.05  # nats: what is less says nothing
_REST = "everything else about it, taken together"
_ENOUGH = 50.0  # transactions of a category that people can be told about it
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def one_in(rate: float) -> str:
    """``1 / rate`` for people.

    >>> one_in(1e-3), one_in(0.25), one_in(3e-13)
    ('1,000', '4', '3.3e+12')
    """
    count = 1.0 / max(rate, 1e-300)
    return f"{count:,.0f}" if count < 1e9 else f"{count:.1e}"


def takeover_sentence(run: int) -> str:
    """What the takeover score says after so many transactions.

    >>> takeover_sentence(9)
    'the last nine transactions fit anyone better than this account'
    """
    if run == 1:
        return f"taken by itself, the transaction would {ANYONE}"
    return f"the last {_NUMBERS[run] if run < len(_NUMBERS) else run} transactions {ANYONE}"


def explain_evidence(model: Model, transaction: Transaction, batch: Batch, i: int) -> list[tuple[float, str]]:
    """The terms that speak for fraud with their sentences, and all others as one: they add up to the evidence.

    Nothing where the view of the transaction is no longer kept. They come from the view that the account remembers,
    rounded as it is there, so that a repeated alert says the same.
    """
    background, one = batch.backgrounds[i], slice(i, i + 1)
    if not background["id"]:
        return []
    view = np.concatenate([background["seen"], batch.views[i]]).astype(float)
    terms = np.empty((1, batch.terms.shape[1]))
    missing = np.uint32(model.codes(""))
    evidence_of(model.laws, batch.events[one], batch.names[one], batch.numbers[one], view[None], missing, terms)
    case = _Case(model, transaction, batch.events[i], view)
    names = term_names(model.settings.declared)
    values = terms[0].tolist()
    said = [(nats, case.sentence(name)) for name, nats in zip(names, values, strict=True) if nats >= _LEAST]
    return [*said, (sum(values) - sum(nats for nats, _ in said), _REST)]


@dataclass(frozen=True)
class _Case:
    """A transaction, and what its account's past says about it."""

    model: Model
    transaction: Transaction
    event: Any
    view: FloatArray

    def sentence(self, term: str) -> str:
        if term in TERMS:
            return _SENTENCES[term](self)
        name, own = (term.removesuffix(OWN), True) if term.endswith(OWN) else (term, False)
        return self._declared_own(name) if own else self._declared(name)

    @property
    def laws(self) -> Laws:
        return self.model.laws

    @property
    def category(self) -> int:
        return _place(self.laws.categories, int(self.event["category"]))

    @property
    def pair(self) -> int:
        return _place(self.laws.pairs, (int(self.event["category"]) << 32) | int(self.event["merchant"]))

    def amount(self) -> str:
        law = 1 + self.category
        known = law > 0 and self.laws.amount_mass[law] >= _ENOUGH
        share, seen = _upper_share(self.laws, law if known else 0, amount_cell(self.event["amount"]))
        where = (
            f"for {self.transaction.category!r}" if known and self.transaction.category else "in normal transactions"
        )
        paid = f"{self.transaction.amount:,.2f}"
        if share * seen < 1.0:
            return f"{paid} is more than anyone pays {where} ({seen:,.0f} transactions)"
        if share < 0.2:
            return f"{paid} is more than all but 1 in {one_in(share)} pay {where}"
        return f"{paid} is {'an odd' if share < 0.8 else 'an unusually small'} amount {where}"

    def amount_own(self) -> str:
        weight = self.view[USUAL_WEIGHT]
        usual = self.view[USUAL] * weight / (weight + self.laws.usual_strength)
        times = math.exp(math.log1p(self.transaction.amount) - self.laws.center[self.category] - usual)
        if times >= 1.0:
            return f"{times:,.1f} times what this account usually pays for such things"
        return f"a {_ordinal_part(1.0 / times)} of what this account usually pays for such things"

    def in_category(self) -> str:
        share, _ = place_shares(self.laws, self.category, self.pair)
        category = self.transaction.category
        if self.category < 0:
            return f"category {category!r} never occurs in normal transactions"
        named = f"category {category!r}" if category else "no category is named: that"
        return f"{named} is {_part(share)} normal transactions"

    def at_merchant(self) -> str:
        merchant, category = repr(self.transaction.merchant), self.transaction.category
        if self.pair < 0 or self.laws.amount_mass[1 + len(self.laws.categories) + self.pair] <= 0:
            return f"merchant {merchant} never occurs in normal transactions" + (
                f" of {category!r}" if category else ""
            )
        _, share = place_shares(self.laws, self.category, self.pair)
        return f"merchant {merchant} is {_part(share)} normal transactions" + (f" of {category!r}" if category else "")

    def place_own(self) -> str:
        return self._own(f"merchant {self.transaction.merchant!r}", self.view[AT_PLACE], self.view[OWN_WEIGHT])

    def habit(self) -> str:
        return f"this account has long been paying such amounts at {self.transaction.merchant!r}"

    def hour(self) -> str:
        density = self.laws.hour[min(int(self.view[HOUR] * QUARTERS / 24.0), QUARTERS - 1)]
        return f"{_clock(self.view[HOUR])}: {_part(density)} normal transactions are within that hour"

    def hour_own(self) -> str:
        at, weight = self.view[AT_HOUR], self.view[HOUR_WEIGHT]
        said = "none" if at < 0.01 else _part(min(1.0, at / weight)).removesuffix(" of")
        return f"{_clock(self.view[HOUR])}: {said} of this account's transactions are around that hour"

    def weekday(self) -> str:
        day = int(self.view[WEEKDAY])
        named = f"on a {_DAYS[day]}" if self.model.calendar.origin else f"on day {day + 1} of 7"
        return f"{named}: {_part(float(self.laws.weekday[day]))} normal transactions"

    def gap(self) -> str:
        length = self.model.calendar.length(float(self.view[GAP]))
        return f"{length} after the account's transaction before, which is unusual for accounts that pay as often"

    def count_hour(self) -> str:
        return self._counted(self.view[IN_HOUR], "an hour")

    def count_day(self) -> str:
        return self._counted(self.view[IN_DAY], "a day")

    def _counted(self, earlier: float, span: str) -> str:
        number = int(earlier) + 1
        ordinal = _ORDINALS[number - 1] if number <= len(_ORDINALS) else f"{number}th"
        rates = self.laws.counts[1, int(self.view[9])]
        usual = float(rates[1:].sum())  # the mean of a count is the sum of the shares that reach each number
        return f"{ordinal} transaction within {span}; accounts like this one make {usual + 1:.1f} in a day"

    def _declared(self, name: str) -> str:
        value = self.transaction.fields.get(name)
        if value is None or value == "":
            return f"{name} is missing, unlike in most normal transactions"
        if isinstance(value, str):
            place = [f.name for f in self.model.settings.declared if f.kind == "category"].index(name)
            first, last = self.laws.name_start[place], self.laws.name_start[place + 1]
            known = _place(self.laws.name_keys[first:last], self.model.codes(value))
            share = self.laws.name_weight[first + known] / self.laws.name_mass[place] if known >= 0 else 0.0
            return f"{name} {value!r} " + (
                f"is {_part(share)} normal transactions" if share else "never occurs in normal ones"
            )
        return f"{name} {value:,.6g} is unlike that of normal transactions"

    def _declared_own(self, name: str) -> str:
        place = [f.name for f in self.model.settings.declared if f.kind == "category"].index(name)
        return self._own(
            f"{name} {self.transaction.fields.get(name)!r}", self.view[VIEW + place], self.view[OWN_WEIGHT]
        )

    def _own(self, what: str, same: float, weight: float) -> str:
        if same < 1e-6:
            return (
                f"{what} is new for this account"
                if weight < 60
                else f"{what} is not among its last {NAMED} transactions"
            )
        return f"{what} is {_part(min(1.0, same / weight))} this account's transactions"


_SENTENCES: dict[str, Callable[[_Case], str]] = dict(
    zip(
        TERMS,
        (
            *(_Case.amount, _Case.amount_own, _Case.in_category, _Case.at_merchant, _Case.place_own, _Case.habit),
            *(_Case.hour, _Case.hour_own, _Case.weekday, _Case.gap, _Case.count_hour, _Case.count_day),
        ),
        strict=True,
    )
)


def _place(keys: AnyArray, wanted: int) -> int:
    place = int(np.searchsorted(keys, np.asarray(wanted, keys.dtype)))
    return place if place < len(keys) and keys[place] == wanted else -1


def _upper_share(laws: Laws, law: int, cell: int) -> tuple[float, float]:
    """Share of a law's transactions with at least this amount, and how many it has."""
    first, last = laws.amount_start[law], laws.amount_start[law + 1]
    from_here = first + int(np.searchsorted(laws.amount_cells[first:last], cell))
    mass = float(laws.amount_mass[law])
    return float(laws.amount_weight[from_here:last].sum()) / max(mass, 1e-9), mass


def _part(share: float) -> str:
    if share >= 1:
        return "all"
    return f"{share:.0%} of" if share >= 0.1 else f"1 in {one_in(share)}"


def _clock(hour: float) -> str:
    minutes = round(hour * 60) % 1440
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _ordinal_part(times: float) -> str:
    named = {2: "half", 3: "third", 4: "quarter"}
    return named.get(round(times), f"{round(times):,}th part")
