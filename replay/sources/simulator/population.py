"""A stream to try things on: customers with habits, merchants with a long tail, and four patterns of fraud.

Own code and own parameters, nothing taken from any data set. A day is drawn at once for all customers, so that streams
of any length need memory for the customers only. Labels are returned beside the transactions, never in them. Merchants
are chains and web shops: they are in every country. When, where and on which device customers pay: ``behaviour``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from replay.sources.simulator.behaviour import Devices, Hours, Rhythm, Travels, at_night, country_name, device_name
from stream_ccsd.calendar import Unit
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, require_memory
from stream_ccsd.transaction import Transaction

PATTERNS = ("rare merchants", "out of habit", "slow drain", "new regime")
RARE, HABIT, DRAIN, REGIME = range(len(PATTERNS))
_NONE = -1

FIELDS = ("country:category", "device:category")
"""What a simulated transaction says besides, as settings declare it."""
TIME_UNIT: Unit = "days"
TIME_ORIGIN = "2026-01-05"
"""Time 0 of a simulated stream: the midnight before a Monday, so that days 5 and 6 of each week are a weekend."""

_CATEGORIES = (
    ("transport", 2.6, 0.25, 3.0),
    ("groceries", 3.4, 0.35, 3.0),
    ("restaurants", 3.2, 0.3, 2.0),
    ("fuel", 3.7, 0.2, 1.2),
    ("pharmacy", 2.9, 0.35, 0.8),
    ("fashion", 4.1, 0.35, 0.8),
    ("home", 4.4, 0.45, 0.5),
    ("leisure", 3.6, 0.4, 0.5),
    ("electronics", 5.2, 0.45, 0.25),
    ("travel", 5.9, 0.45, 0.15),
)
"""Name, mean and deviation of log(1 + amount), and how often it is visited."""

_FAVOURITES = 6  # merchants that hold almost all of a customer's visits
_NEW_PLACE = 0.01  # share of visits elsewhere
_DRAIN_LENGTH = 25
# By pattern, shares of the strangers: who pay from abroad, and who bring a device of their own. Some have stolen the
# customer's; a drain is a program that runs on it.
_ABROAD = np.array([0.8, 0.1, 0.05, 0.1])
_OWN_DEVICE = np.array([0.85, 0.85, 0.0, 1.0])
_BURST_HOURS = (0.5, 2.0)
# About what a customer's habits take while they are drawn, and a transaction kept as an object.
_BYTES_A_CUSTOMER = 500
_BYTES_A_TRANSACTION = 800


class SimulatedRows(NamedTuple):
    """One day's transactions in time order, as columns.

    ``country`` and ``device`` are numbers, see ``behaviour`` for their names; ``device`` is -1 where none is known.
    ``pattern`` is -1 where all is well.
    """

    time: FloatArray
    customer: AnyArray
    amount: FloatArray
    merchant: AnyArray
    country: AnyArray
    device: AnyArray
    pattern: AnyArray


class PriceShift(NamedTuple):
    """Prices from one day on: of a category, or of all."""

    day: int
    factor: float
    category: str | None = None


@dataclass(frozen=True)
class SimulatedStream:
    """Transactions in time order, and which of them are fraud of which pattern, by transaction id."""

    transactions: list[Transaction]
    fraud: dict[str, str]

    def normal_accounts(self) -> set[str]:
        """Accounts without any fraud."""
        fraudulent = {t.account for t in self.transactions if t.id in self.fraud}
        return {t.account for t in self.transactions} - fraudulent


class Population:
    """Merchants with prices and popularity, customers with habits, and who will suffer what, and when."""

    def __init__(
        self,
        accounts: int,
        days: int,
        fraud_share: float = 0.2,
        merchants: int = 250,
        seed: int = 0,
        price_shift: PriceShift | None = None,
    ) -> None:
        require_memory(_BYTES_A_CUSTOMER * accounts + _BYTES_A_CUSTOMER * merchants, f"{accounts:,} customers")
        rng = np.random.default_rng([seed, 0])
        self.days, self.seed, self.price_shift = days, seed, price_shift
        visits = np.array([c[3] for c in _CATEGORIES])
        self.category = rng.choice(len(_CATEGORIES), merchants, p=visits / visits.sum())
        self.level = np.array([c[1] for c in _CATEGORIES])[self.category] + rng.normal(0, 0.25, merchants)
        self.spread = np.array([c[2] for c in _CATEGORIES])[self.category]
        popularity = 1.0 / np.arange(1, merchants + 1) ** 1.1
        self.popularity = popularity / popularity.sum()

        self.favourites = self._habits(rng, accounts)
        self.taste = np.cumsum(rng.dirichlet(np.full(_FAVOURITES, 0.7), accounts), axis=1)
        self.thrift = rng.normal(0, 0.2, accounts)
        self.rate = rng.uniform(0.5, 1.8, accounts)

        drawn = rng.integers(len(PATTERNS), size=accounts)
        self.pattern = np.where(rng.random(accounts) < fraud_share, drawn, _NONE)
        self.begin = np.floor(rng.uniform(0.3, 0.9, accounts) * days)
        self.stranger = self._habits(rng, accounts)  # whose habits a new regime follows
        self.burst = rng.integers(3, 8, accounts)

        # From generators of their own: whatever changes here, who pays how much to whom stays as it is. A zero at the
        # end of a seed changes nothing, so [seed, 2] would be day 0 of [seed, 2, day].
        rng = np.random.default_rng([seed, 2])
        self.hours = Hours([c[0] for c in _CATEGORIES])
        self.rhythm = Rhythm.draw(rng, accounts)
        self.travels = Travels(rng, accounts, seed)
        self.devices = Devices(rng, accounts)
        self.stranger_rhythm = Rhythm.draw(rng, accounts)
        is_abroad = rng.random(accounts) < _ABROAD[self.pattern]
        self.stranger_country = np.where(is_abroad, self.travels.strangers(rng), self.travels.home)
        self.brings_device = rng.random(accounts) < _OWN_DEVICE[self.pattern]
        self.burst_length = rng.uniform(*_BURST_HOURS, accounts)
        self.burst_begin = np.minimum(at_night(rng.random(accounts)), 24.0 - self.burst_length)

    def category_name(self, merchant: int) -> str:
        """The category of a merchant."""
        return _CATEGORIES[self.category[merchant]][0]

    def day(self, number: int) -> SimulatedRows:
        """The transactions of one day; days may be asked for in any order."""
        rng = np.random.default_rng([self.seed, 1, number])
        customer = np.repeat(np.arange(len(self.rate)), rng.poisson(self.rate))
        pattern = np.where((self.pattern == REGIME) & (self.begin <= number), REGIME, _NONE)[customer]
        habits = np.where((pattern == REGIME)[:, None], self.stranger[customer], self.favourites[customer])
        pick = (rng.random(len(customer))[:, None] > self.taste[customer]).sum(axis=1)
        merchant = habits[np.arange(len(customer)), np.minimum(pick, _FAVOURITES - 1)]
        elsewhere = rng.random(len(customer)) < _NEW_PLACE
        merchant = np.where(elsewhere, self._popular(rng, len(customer)), merchant)
        parts = [(customer, merchant, self.thrift[customer], pattern), *self._frauds(rng, number)]
        who, where, shift, label = (np.concatenate(column) for column in zip(*parts, strict=True))
        log_amount = self.level[where] + shift + self.spread[where] * rng.normal(size=len(who))
        amount = np.round(np.expm1(np.maximum(log_amount, 0.02)) * self._price_level(number, where), 2)
        time = self._times(number, rng.random(len(who)), who, where, label)
        country, device = self._from_where(number, time, who, label)
        order = np.lexsort((who, time))
        return SimulatedRows(*(c[order] for c in (time, who, amount, where, country, device, label)))

    def _price_level(self, number: int, where: AnyArray) -> FloatArray:
        """What prices at these merchants are on a day, against those of the first."""
        if self.price_shift is None or number < self.price_shift.day:
            return np.ones(len(where))
        dearer = [self.price_shift.category in (None, name) for name, *_ in _CATEGORIES]
        return np.where(np.array(dearer)[self.category[where]], self.price_shift.factor, 1.0)

    def _times(self, number: int, chance: FloatArray, who: AnyArray, where: AnyArray, label: AnyArray) -> FloatArray:
        """When each transaction of a day happens: as customers, or those who pay in their name, are used to."""
        is_strange = (label == HABIT) | (label == REGIME)
        own, strange = self.rhythm.of(who), self.stranger_rhythm.of(who)
        rhythm = Rhythm(np.where(is_strange, strange.kind, own.kind), np.where(is_strange, strange.lag, own.lag))
        hours = self.hours.at(chance, rhythm, self.category[where], number % 7 >= 5)
        hours = np.where(label == DRAIN, at_night(chance), hours)
        hours = np.where(label == RARE, self.burst_begin[who] + chance * self.burst_length[who], hours)
        # Rounded down: a moment before midnight is still of this day.
        return np.round(number + np.minimum(np.floor(hours / 24 * 1e4), 9999) / 1e4, 4)

    def _from_where(self, number: int, time: FloatArray, who: AnyArray, label: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Country and device of each transaction of a day."""
        is_fraud = label != _NONE
        country = np.where(is_fraud, self.stranger_country[who], self.travels.country(who, time, number))
        rng = np.random.default_rng([self.seed, 3, number])
        return country, self.devices.used(rng, who, time, is_fraud & self.brings_device[who])

    def _frauds(self, rng: np.random.Generator, number: int) -> list[tuple[AnyArray, AnyArray, FloatArray, AnyArray]]:
        """Customers, merchants, shift of the log amount and pattern of transactions somebody else adds this day."""
        since = number - self.begin
        frauds = []
        burst = np.flatnonzero((self.pattern == RARE) & (since == 0))
        who = np.repeat(burst, self.burst[burst])
        frauds.append((who, self._rare(rng, len(who)), np.full(len(who), 1.0), np.full(len(who), RARE)))
        # Places and prices that are nothing special, but not this customer's: twice a day for a while.
        odd = np.flatnonzero((self.pattern == HABIT) & (since >= 0) & (since < self.burst))
        who = np.repeat(odd, 2)
        frauds.append((who, self._popular(rng, len(who)), np.full(len(who), 0.7), np.full(len(who), HABIT)))
        # Little by little, every other day, at ever other places.
        drained = np.flatnonzero((self.pattern == DRAIN) & (since >= 0) & (since < 2 * _DRAIN_LENGTH))
        who = drained[rng.random(len(drained)) < 0.5]
        frauds.append((who, self._popular(rng, len(who)), np.full(len(who), -0.6), np.full(len(who), DRAIN)))
        return frauds

    def _habits(self, rng: np.random.Generator, accounts: int) -> AnyArray:
        return rng.choice(len(self.popularity), (accounts, _FAVOURITES), p=self.popularity)

    def _popular(self, rng: np.random.Generator, count: int) -> AnyArray:
        return rng.choice(len(self.popularity), count, p=self.popularity)

    def _rare(self, rng: np.random.Generator, count: int) -> AnyArray:
        merchants = len(self.popularity)
        return rng.integers(merchants // 2, merchants, count)


def simulate(
    accounts: int = 300,
    days: int = 120,
    fraud_share: float = 0.2,
    merchants: int = 250,
    seed: int = 0,
    price_shift: PriceShift | None = None,
) -> SimulatedStream:
    """A stream of ``accounts`` customers over ``days``; each of a ``fraud_share`` of them suffers one pattern.

    >>> stream = simulate(accounts=3, days=10, seed=1)
    >>> stream.transactions == simulate(accounts=3, days=10, seed=1).transactions
    True
    """
    require_memory(_BYTES_A_TRANSACTION * accounts * days, f"{accounts:,} customers for {days:,} days")
    population = Population(accounts, days, fraud_share, merchants, seed, price_shift)
    transactions: list[Transaction] = []
    fraud: dict[str, str] = {}
    for transaction, pattern in simulated(population):
        transactions.append(transaction)
        if pattern:
            fraud[transaction.id] = pattern
    return SimulatedStream(transactions, fraud)


def simulated(population: Population) -> Iterator[tuple[Transaction, str]]:
    """Every transaction of a population in time order, with its pattern of fraud or an empty text."""
    position = 0
    names = [population.category_name(m) for m in range(len(population.popularity))]
    for number in range(population.days):
        columns = (column.tolist() for column in population.day(number))
        for time, customer, amount, merchant, country, device, pattern in zip(*columns, strict=True):
            where, who = merchant_name(merchant), account_name(customer)
            fields = {"country": country_name(country), "device": device_name(customer, device)}
            made = Transaction(who, time, amount, names[merchant], where, transaction_id(position), fields)
            position += 1
            yield made, PATTERNS[pattern] if pattern >= 0 else ""


def account_name(customer: int) -> str:
    """What a customer is called in the stream."""
    return f"c{customer:05d}"


def merchant_name(merchant: int) -> str:
    """What a merchant is called in the stream."""
    return f"m{merchant:04d}"


def transaction_id(position: int) -> str:
    """Of the transaction at that place of the stream, counted from 0."""
    return f"t{position}"
