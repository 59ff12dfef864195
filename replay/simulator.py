"""A stream to try things on: customers with habits, merchants with a long tail, and four patterns of fraud.

Own code and own parameters, nothing taken from any data set. A day is drawn at once for all customers, so that streams
of any length need memory for the customers only. Labels are returned beside the transactions, never in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stream_ccsd.memory import require_memory
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.transaction import Transaction

PATTERNS = ("rare merchants", "out of habit", "slow drain", "new regime")
RARE, HABIT, DRAIN, REGIME = range(len(PATTERNS))
_NONE = -1

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
# About what a customer's habits take while they are drawn, and a transaction kept as an object.
_BYTES_A_CUSTOMER = 400
_BYTES_A_TRANSACTION = 500


class Rows(NamedTuple):
    """One day's transactions in time order, as columns; ``pattern`` is -1 where all is well."""

    time: FloatArray
    customer: AnyArray
    amount: FloatArray
    merchant: AnyArray
    pattern: AnyArray


@dataclass(frozen=True)
class SimulatedStream:
    """Transactions in time order, and which of them are fraud of which pattern, by transaction id."""

    transactions: list[Transaction]
    fraud: dict[str, str]

    def normal_accounts(self) -> set[str]:
        """Accounts without any fraud."""
        fraudulent = {t.account for t in self.transactions if t.id in self.fraud}
        return {t.account for t in self.transactions} - fraudulent


class Town:
    """Merchants with prices and popularity, customers with habits, and who will suffer what, and when."""

    def __init__(self, accounts: int, days: int, fraud_share: float = 0.2, merchants: int = 250, seed: int = 0) -> None:
        require_memory(_BYTES_A_CUSTOMER * accounts + _BYTES_A_CUSTOMER * merchants, f"{accounts:,} customers")
        rng = np.random.default_rng([seed, 0])
        self.days, self.seed = days, seed
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

    def category_name(self, merchant: int) -> str:
        """The category of a merchant."""
        return _CATEGORIES[self.category[merchant]][0]

    def day(self, number: int) -> Rows:
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
        amount = np.round(np.expm1(np.maximum(log_amount, 0.02)), 2)
        time = np.round(number + rng.random(len(who)), 4)
        order = np.lexsort((who, time))
        return Rows(time[order], who[order], amount[order], where[order], label[order])

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
    accounts: int = 300, days: int = 120, fraud_share: float = 0.2, merchants: int = 250, seed: int = 0
) -> SimulatedStream:
    """A stream of ``accounts`` customers over ``days``; each of a ``fraud_share`` of them suffers one pattern.

    >>> stream = simulate(accounts=3, days=10, seed=1)
    >>> stream.transactions == simulate(accounts=3, days=10, seed=1).transactions
    True
    """
    require_memory(_BYTES_A_TRANSACTION * accounts * days, f"{accounts:,} customers for {days:,} days")
    town = Town(accounts, days, fraud_share, merchants, seed)
    transactions: list[Transaction] = []
    fraud: dict[str, str] = {}
    for transaction, pattern in simulated(town):
        transactions.append(transaction)
        if pattern:
            fraud[transaction.id] = pattern
    return SimulatedStream(transactions, fraud)


def simulated(town: Town) -> Iterator[tuple[Transaction, str]]:
    """Every transaction of a town in time order, with its pattern of fraud or an empty text."""
    position = 0
    names = [town.category_name(m) for m in range(len(town.popularity))]
    for number in range(town.days):
        for time, customer, amount, merchant, pattern in zip(*(c.tolist() for c in town.day(number)), strict=True):
            where, who = merchant_name(merchant), account_name(customer)
            made = Transaction(who, time, amount, names[merchant], where, transaction_id(position))
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
