"""A stream to try things on: customers with habits, merchants with a long tail, and four patterns of fraud.

Own code and own parameters, nothing taken from any data set. Labels are returned beside the transactions, never in
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stream_ccsd.transaction import Transaction

_Row = tuple[float, int, float, int, str]  # time, customer, amount, merchant, pattern or ""

PATTERNS = ("rare merchants", "out of habit", "slow drain", "new regime")

_CATEGORIES = (
    ("transport", 2.6, 0.45, 3.0),
    ("groceries", 3.4, 0.55, 3.0),
    ("restaurants", 3.2, 0.5, 2.0),
    ("fuel", 3.7, 0.3, 1.2),
    ("pharmacy", 2.9, 0.6, 0.8),
    ("fashion", 4.1, 0.6, 0.8),
    ("home", 4.4, 0.8, 0.5),
    ("leisure", 3.6, 0.7, 0.5),
    ("electronics", 5.2, 0.8, 0.25),
    ("travel", 5.9, 0.8, 0.15),
)
"""Name, mean and deviation of log(1 + amount), and how often it is visited."""


@dataclass(frozen=True)
class SimulatedStream:
    """Transactions in time order, and which of them are fraud of which pattern, by transaction id."""

    transactions: list[Transaction]
    fraud: dict[str, str]

    def normal_accounts(self) -> set[str]:
        """Accounts without any fraud."""
        fraudulent = {t.account for t in self.transactions if t.id in self.fraud}
        return {t.account for t in self.transactions} - fraudulent


def simulate(
    accounts: int = 300, days: int = 120, fraud_share: float = 0.2, merchants: int = 120, seed: int = 0
) -> SimulatedStream:
    """A stream of ``accounts`` customers over ``days``; each of a ``fraud_share`` of them suffers one pattern.

    >>> stream = simulate(accounts=3, days=10, seed=1)
    >>> stream.transactions == simulate(accounts=3, days=10, seed=1).transactions
    True
    """
    rng = np.random.default_rng(seed)
    town = _Town(rng, merchants)
    rows: list[_Row] = []
    for number in range(accounts):
        pattern = PATTERNS[rng.integers(len(PATTERNS))] if rng.random() < fraud_share else ""
        rows += _customer(rng, town, number, days, pattern)
    rows.sort(key=lambda row: (row[0], row[1]))
    transactions, fraud = [], {}
    for position, (time, number, amount, merchant, pattern) in enumerate(rows):
        identity = f"t{position}"
        category = _CATEGORIES[town.category[merchant]][0]
        transactions.append(Transaction(f"c{number:05d}", time, amount, category, f"m{merchant:04d}", identity))
        if pattern:
            fraud[identity] = pattern
    return SimulatedStream(transactions, fraud)


class _Town:
    """Merchants: a category each, a level of prices, and a popularity that falls with a long tail."""

    def __init__(self, rng: np.random.Generator, merchants: int) -> None:
        visits = np.array([c[3] for c in _CATEGORIES])
        self.category = rng.choice(len(_CATEGORIES), merchants, p=visits / visits.sum())
        self.level = np.array([_CATEGORIES[c][1] for c in self.category]) + rng.normal(0, 0.25, merchants)
        self.spread = np.array([_CATEGORIES[c][2] for c in self.category])
        popularity = 1.0 / np.arange(1, merchants + 1) ** 1.1
        self.popularity = popularity / popularity.sum()

    def amount(self, rng: np.random.Generator, merchant: int, shift: float) -> float:
        u = max(0.02, self.level[merchant] + shift + self.spread[merchant] * rng.normal())
        return round(float(np.expm1(u)), 2)


def _customer(rng: np.random.Generator, town: _Town, number: int, days: int, pattern: str) -> list[_Row]:
    """One customer's rows: a few favourite merchants, a personal level of spending, now and then something new."""
    favourites = rng.choice(len(town.popularity), rng.integers(4, 9), replace=False, p=town.popularity)
    taste = rng.dirichlet(np.full(len(favourites), 1.5))
    thrift = rng.normal(0, 0.35)
    times = np.cumsum(rng.exponential(1.0 / rng.uniform(0.5, 1.8), int(2.5 * days)))
    times = times[times < days]
    begin = rng.uniform(0.3, 0.9) * days
    lengths = {"rare merchants": int(rng.integers(3, 8)), "out of habit": int(rng.integers(2, 5)), "slow drain": 25}
    left = lengths.get(pattern, 10**6)
    rows = []
    for time in times:
        merchant = favourites[rng.choice(len(favourites), p=taste)]
        if rng.random() < 0.08:
            merchant = rng.choice(len(town.popularity), p=town.popularity)
        shift, label = thrift, ""
        if pattern and time >= begin and left > 0:
            merchant, shift, label = _fraud(rng, town, pattern, merchant, thrift)
            left -= bool(label)
        row = (round(float(time), 4), number, town.amount(rng, int(merchant), shift), int(merchant), label)
        rows.append(row)
    return rows


def _fraud(rng: np.random.Generator, town: _Town, pattern: str, merchant: int, thrift: float) -> tuple[int, float, str]:
    """Merchant, shift of the log amount and label of the next transaction under a pattern."""
    merchants = len(town.popularity)
    if pattern == "rare merchants":  # a burst where almost nobody goes, at high prices
        return int(rng.integers(merchants // 2, merchants)), 1.2, pattern
    if pattern == "out of habit":  # the usual places, amounts far above this customer's own
        return merchant, thrift + rng.uniform(1.5, 2.2), pattern
    if pattern == "slow drain":  # small, always the same place, mixed with the usual
        if rng.random() < 0.5:
            return merchants - 1, -1.0, pattern
        return merchant, thrift, ""
    # A new regime: somebody else's life, popular places and ordinary amounts.
    return int(rng.choice(merchants, p=town.popularity)), 0.5, pattern
