"""Terms of the evidence in the words that an investigator would use."""

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
    RATE,
    STATUSES,
    USUAL,
    USUAL_WEIGHT,
    VIEW,
    WEEKDAY,
    Batch,
)
from stream_ccsd.evidence.densities import (
    CELL,
    COUNTS,
    QUARTERS,
    Densities,
    amount_cell,
    gap_octave,
    number_position,
    place_shares,
)
from stream_ccsd.evidence.profile import decay_by_lag
from stream_ccsd.evidence.supervised import LATELY_TERM, NAMED_RECORDS, RECORD, rated_fields, term_names
from stream_ccsd.evidence.terms import evidence_of
from stream_ccsd.fields import OWN
from stream_ccsd.model.model import Model
from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.scores import EVIDENCE
from stream_ccsd.transaction import Transaction, identity

ANYONE = "fit anyone better than this account"
"""How the sentence of a takeover ends."""

_LEAST = 0.05  # nats: smaller terms have no sentence
REST = ("everything else about it, taken together", "nothing about it stands out by itself")
"""The sentence for all terms that have none of their own: beside others, and alone."""
_ENOUGH = 50.0  # transactions of a category from which on a sentence may be about it
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
    """The sentence of the takeover score after so many transactions.

    >>> takeover_sentence(9)
    'the last nine transactions fit anyone better than this account'
    """
    if run == 1:
        return f"a transaction that would by far {ANYONE}"
    return f"the last {_NUMBERS[run] if run < len(_NUMBERS) else run} transactions {ANYONE}"


def explain_evidence(model: Model, transaction: Transaction, batch: Batch, i: int) -> list[tuple[float, str, str]]:
    """The parts of the evidence: each term that speaks for fraud, with its sentence and name, and all others as one.

    Empty where the view of the transaction is no longer kept. The parts come from the view that the account keeps,
    rounded as it is there, so that a repeated alert says the same.
    """
    background = batch.backgrounds[i]
    if not background["id"]:
        return []
    view = np.concatenate([background["seen"], batch.views[i]]).astype(float)
    values = _remembered_terms(model, batch, i, view) if model.learnt is None else _learnt_terms(batch, i)
    case = _Case(model, transaction, batch.events[i], view)
    names = term_names(model.settings.declared)
    said = [(nats, case.sentence(name), name) for name, nats in zip(names, values, strict=True) if nats >= _LEAST]
    evidence = float(batch.outputs[i]["scores"][EVIDENCE])
    return [*said, (evidence - sum(nats for nats, *_ in said), REST[0 if said else 1], "")]


def _remembered_terms(model: Model, batch: Batch, i: int, view: FloatArray) -> list[float]:
    one = slice(i, i + 1)
    terms = np.zeros((1, batch.terms.shape[1]))
    missing = np.uint32(model.codes(""))
    evidence_of(model.laws, batch.events[one], batch.names[one], batch.numbers[one], view[None], missing, terms)
    values: list[float] = terms[0].tolist()
    return values


def _learnt_terms(batch: Batch, i: int) -> list[float]:
    """As they were scored. A repeated alert has none, because the model may have been updated since."""
    values: list[float] = batch.terms[i].tolist()
    return values if STATUSES[int(batch.outputs[i]["status"])].entered else [0.0] * len(values)


@dataclass(frozen=True)
class _Case:
    """A transaction, and the view of its account's past."""

    model: Model
    transaction: Transaction
    event: Any
    view: FloatArray

    def sentence(self, term: str) -> str:
        if term in _TIMED and np.isnan(self.view[_TIMED[term]]):
            return "the account's first transaction" if _TIMED[term] == GAP else "when it happened"
        if term in _SENTENCES:
            return _SENTENCES[term](self)
        if term.endswith(RECORD):
            return self._record(term.removesuffix(RECORD))
        name, own = (term.removesuffix(OWN), True) if term.endswith(OWN) else (term, False)
        return self._declared_own(name) if own else self._declared(name)

    @property
    def laws(self) -> Densities:
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
        first, last = self.laws.amount_start[law if known else 0 :][:2]
        weight = self.laws.amount_weight[first:last]
        share = _upper_share(self.laws.amount_cells[first:last], weight, amount_cell(self.event["amount"]))
        named = known and bool(self.transaction.category)
        what = f" for {self.transaction.category!r}" if named else ""
        paid, seen = f"{self.transaction.amount:,.2f}", float(weight.sum())
        if share * seen < 1.0:
            return f"{paid} is more than anyone paid{what} in {seen:,.0f} normal transactions"
        if share < 0.2:
            return f"{paid} is more than all but 1 in {one_in(share)} pay{what}"
        odd = "an odd" if share < 0.8 else "an unusually small"
        return f"{paid} is {odd} amount{what or ' among normal transactions'}"

    def amount_own(self) -> str:
        weight = self.view[USUAL_WEIGHT]
        usual = self.view[USUAL] * weight / (weight + self.laws.usual_strength)
        times = math.exp(math.log1p(self.transaction.amount) - self.laws.center[self.category] - usual)
        return f"{_multiple(times)} what this account usually pays for such things"

    def in_category(self) -> str:
        share, _ = place_shares(self.laws, self.category, self.pair)
        category = self.transaction.category
        if self.category < 0:
            named = f"category {category!r} never occurs" if category else "no category is named, as never"
            return f"{named} in normal transactions"
        named = f"category {category!r} is" if category else "no category is named, as in"
        return f"{named} {_part(share)} normal transactions"

    def at_merchant(self) -> str:
        merchant, category = repr(self.transaction.merchant), self.transaction.category
        where = f"normal transactions of {category!r}" if category else "normal transactions"
        if self.pair < 0 or self.laws.amount_mass[1 + len(self.laws.categories) + self.pair] <= 0:
            return f"merchant {merchant} never occurs in {where}"
        _, share = place_shares(self.laws, self.category, self.pair)
        return f"merchant {merchant} is {_part(share)} {where}"

    def place_own(self) -> str:
        return self._own(f"merchant {self.transaction.merchant!r}", self.view[AT_PLACE])

    def hour(self) -> str:
        density = self.laws.hour[min(int(self.view[HOUR] * QUARTERS / 24.0), QUARTERS - 1)]
        return f"{_clock(self.view[HOUR])}: {_part(density)} normal transactions are made around that hour"

    def hour_own(self) -> str:
        at, weight = self.view[AT_HOUR], self.view[HOUR_WEIGHT]
        said = "none" if at < 0.01 else _part(min(1.0, at / weight)).removesuffix(" of")
        return f"{_clock(self.view[HOUR])}: {said} of this account's transactions are made around that hour"

    def weekday(self) -> str:
        day = int(self.view[WEEKDAY])
        named = f"on a {_DAYS[day]}" if self.model.calendar.origin else f"on day {day + 1} of 7"
        return f"{named}, as {_part(float(self.laws.weekday[day]))} normal transactions are"

    def gap(self) -> str:
        gap = float(self.view[GAP])
        share = float(self.laws.gaps[int(self.view[RATE]), gap_octave(self.laws, gap)])
        length = self.model.calendar.length(gap)
        return f"{length} after the account's last transaction, as {_part(share)} gaps of accounts that pay as often"

    def count_hour(self) -> str:
        return self._counted(self.view[IN_HOUR], "an hour")

    def count_day(self) -> str:
        return self._counted(self.view[IN_DAY], "a day")

    def habit(self) -> str:
        return f"how often this account has paid at {self.transaction.merchant!r} before"

    def lately(self) -> str:
        return "what this account did in the last days, taken together, looks like fraud that was found before"

    def _record(self, name: str) -> str:
        """The fraud rate of a value, against the rate everywhere."""
        learnt, fields = self.model.learnt, rated_fields(self.model.settings.declared)
        value = getattr(self.transaction, name, None) if name in NAMED_RECORDS else self.transaction.fields.get(name)
        what = "this account" if name == "account" else f"{name} {value!r}" if value else f"no {name}"
        place = fields.index(name)
        assert learnt is not None
        first, last = learnt.start[place], learnt.start[place + 1]
        code = identity(self.transaction.account) if name == "account" else self.model.codes(str(value or ""))
        at = _place(learnt.codes[first:last], code)
        times = math.exp(learnt.rates[first + at, learnt.chosen[place]]) if at >= 0 else 1.0
        if times < 1.1:
            return f"{what}: what is known of fraud there, with everything else"
        return f"{what} had fraud {_multiple(times)} as often as others lately"

    def _counted(self, earlier: float, span: str) -> str:
        number = int(earlier) + 1
        counted = f"{_ordinal(number)} transaction" if number < COUNTS else f"{number} transactions or more"
        shares = self.laws.counts[1, int(self.view[RATE])]
        usual = 1.0 + float(shares[1:].sum())  # the mean of a count is the sum of the shares that reach each number
        return f"{counted} within {span}; accounts that pay as often make {usual:.1f} within a day"

    def _declared(self, name: str) -> str:
        value = self.transaction.fields.get(name)
        if value is None or value == "":
            return f"{name} is missing, unlike in most normal transactions"
        if isinstance(value, str):
            place = self._position(name)
            first, last = self.laws.name_start[place], self.laws.name_start[place + 1]
            known = _place(self.laws.name_keys[first:last], self.model.codes(value))
            share = float(self.laws.name_weight[first + known] / self.laws.name_mass[place]) if known >= 0 else 0.0
            said = f"is {_part(share)} normal transactions" if share else "never occurs in normal transactions"
            return f"{name} {value!r} {said}"
        return f"{name} {value:,.6g} is {self._compared(self._position(name), value)}"

    def _compared(self, place: int, value: float) -> str:
        """A number with those of normal transactions: they are ordered as their places on the axis are."""
        first, last = self.laws.number_start[place], self.laws.number_start[place + 1]
        cells, weight = self.laws.number_cells[first:last], self.laws.number_weight[first:last]
        cell = round(number_position(self.laws, place, value) / CELL)
        shares = {
            "more": _upper_share(cells, weight, cell),
            "less": _upper_share(-cells[::-1], weight[::-1], -cell),
        }
        side = min(shares, key=lambda name: shares[name])
        if shares[side] * weight.sum() < 1.0:
            return f"{side} than in any of {weight.sum():,.0f} normal transactions"
        if shares[side] < 0.1:
            return f"{side} than in all but 1 in {one_in(shares[side])} normal transactions"
        return "an odd value among normal transactions"

    def _position(self, name: str) -> int:
        """Of a declared field among those of its kind."""
        declared = self.model.settings.declared
        kind = next(f.kind for f in declared if f.name == name)
        return [f.name for f in declared if f.kind == kind].index(name)

    def _declared_own(self, name: str) -> str:
        return self._own(f"{name} {self.transaction.fields.get(name)!r}", self.view[VIEW + self._position(name)])

    def _own(self, what: str, same: float) -> str:
        weight, settings = self.view[OWN_WEIGHT], self.model.settings
        if same >= 1e-6:
            return f"{what} is {_part(min(1.0, same / weight))} this account's transactions"
        kept = min(NAMED, settings.window + settings.local_history - 1)
        if weight < decay_by_lag(settings)[1 : kept + 1].sum() - 1e-3:
            return f"{what} is new for this account"
        return f"{what} is not among this account's last {kept} transactions"


# Terms that need a time of day, or an earlier transaction.
_TIMED = {"hour": HOUR, "hour_own": HOUR, "weekday": WEEKDAY, "gap": GAP, "count_hour": GAP, "count_day": GAP}
_SENTENCES: dict[str, Callable[[_Case], str]] = {
    "amount": _Case.amount,
    "amount_own": _Case.amount_own,
    "category": _Case.in_category,
    "merchant": _Case.at_merchant,
    "place_own": _Case.place_own,
    "hour": _Case.hour,
    "hour_own": _Case.hour_own,
    "weekday": _Case.weekday,
    "gap": _Case.gap,
    "count_hour": _Case.count_hour,
    "count_day": _Case.count_day,
    # Without verdicts a habit is never evidence for fraud, and the last days have no term.
    "habit": _Case.habit,
    LATELY_TERM: _Case.lately,
}


def _place(keys: AnyArray, wanted: int) -> int:
    place = int(np.searchsorted(keys, np.asarray(wanted, keys.dtype)))
    return place if place < len(keys) and keys[place] == wanted else -1


def _upper_share(cells: AnyArray, weight: FloatArray, cell: int) -> float:
    """Share of a density's transactions that lie in this cell or above."""
    return float(weight[int(np.searchsorted(cells, cell)) :].sum()) / max(float(weight.sum()), 1e-9)


def _part(share: float) -> str:
    if share >= 1:
        return "all"
    return f"{share:.0%} of" if share >= 0.1 else f"1 in {one_in(share)}"


def _clock(hour: float) -> str:
    minutes = int(hour * 60 + 1e-3) % 1440
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _ordinal(number: int) -> str:
    """For people.

    >>> [_ordinal(n) for n in (2, 11, 21, 22)]
    ['second', '11th', '21st', '22nd']
    """
    if number <= len(_ORDINALS):
        return _ORDINALS[number - 1]
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _multiple(times: float) -> str:
    """How many times as much, or what part of it.

    >>> [_multiple(x) for x in (1234.5, 3.21, 1.02, 0.5, 0.24, 0.01)]
    ['1,234 times', '3.2 times', 'about', 'half of', 'a quarter of', '1/100 of']
    """
    if times >= 1.1:
        return f"{times:,.1f} times" if times < 100 else f"{times:,.0f} times"
    part = round(1.0 / max(times, 1e-9))
    return {1: "about", 2: "half of", 3: "a third of", 4: "a quarter of"}.get(part, f"1/{part:,} of")
