"""When, in which country and on which device simulated customers pay.

Own parameters, from common sense: nothing is taken from any data set or fitted to any result. Trips are drawn season by
season, and a device's age is a matter of the time: days may be asked for in any order, and a stream of any length needs
memory for its customers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stream_ccsd.numerics.arrays import AnyArray, FloatArray

_COUNTRIES = (
    ("DE", 0.34, 1.0, 0.5),
    ("FR", 0.18, 1.6, 0.8),
    ("NL", 0.12, 0.8, 0.6),
    ("AT", 0.09, 1.2, 0.2),
    ("PL", 0.08, 0.7, 0.7),
    ("IT", 0.07, 2.0, 0.8),
    ("ES", 0.05, 2.2, 0.8),
    ("GB", 0.03, 0.9, 1.6),
    ("US", 0.02, 0.6, 2.2),
    ("TR", 0.02, 1.0, 1.0),
)
"""Name, share of the customers who live there, how often a trip goes there, how often a stranger abroad pays there."""

# How busy an hour is, a digit for each from midnight on: on working days, and at weekends, whose small hours are the
# nights of Friday and Saturday.
_OPEN = {
    "transport": ("100014 999778 778999 976543", "432112 345677 788887 776555"),
    "groceries": ("000000 136888 887778 997300", "000000 013799 988776 543100"),
    "restaurants": ("210000 012223 895333 689863", "542100 001235 788655 789987"),
    "fuel": ("111123 677666 666778 876432", "111111 123567 777777 765432"),
    "pharmacy": ("000000 003898 887789 861000", "000000 001588 876543 210000"),
    "fashion": ("211000 012477 888778 999854", "211100 001489 999998 766543"),
    "home": ("100000 013666 666778 888742", "100000 002689 999987 666532"),
    "leisure": ("211000 012344 445556 899864", "543210 002567 888888 899987"),
    "electronics": ("322111 123567 888777 899875", "432111 112467 888888 888876"),
    "travel": ("211111 234677 888777 899874", "321111 112467 777777 888875"),
}
"""Of the places of a category."""

_RHYTHMS = (
    (0.25, "000013 787665 776677 643100", "000001 368887 776665 543210"),  # up early
    (0.40, "000000 266322 783233 798643", "210000 001467 888777 777654"),  # in an office on working days
    (0.20, "000000 015899 987677 654210", "100000 003689 988776 665421"),  # at home by day
    (0.10, "321000 001235 677667 788898", "654310 000012 567777 888999"),  # up late
    (0.05, "542223 587421 012345 567655", "433221 234543 345666 677765"),  # on shifts
)
"""Of people: share of the customers, and when they are about."""

_NIGHT = "999887 532222 222223 344568"
_ANYWAY = 0.05  # of a digit: no hour is wholly out of the question
_LAG = 0.6  # deviation of a person's hours from those of their kind

_SEASON = 60  # days in which a customer makes one trip at most
_TRIP = (2.0, 15.0)  # days
_LIFETIME = (500.0, 1300.0)  # days until a device is replaced
_HAS_SECOND = 0.45
_NO_DEVICE = 0.03  # share of transactions where none is known
_KINDS = 3  # main, second, a stranger's
_LETTERS = 26


class Rhythm(NamedTuple):
    """When people are about: their kind, and by how many hours each is later than that."""

    kind: AnyArray
    lag: FloatArray

    @classmethod
    def draw(cls, rng: np.random.Generator, count: int) -> Rhythm:
        """Of so many people."""
        kind = rng.choice(len(_RHYTHMS), count, p=[r[0] for r in _RHYTHMS])
        return cls(kind.astype(np.int8), rng.normal(0, _LAG, count))

    def of(self, who: AnyArray) -> Rhythm:
        """A row for each of these people."""
        return Rhythm(self.kind[who], self.lag[who])


class Hours:
    """Hours of the day: when a person is about, and a place of the category is busy."""

    def __init__(self, categories: Sequence[str]) -> None:
        people = np.array([[_digits(text) for text in r[1:]] for r in _RHYTHMS])
        places = np.array([[_digits(text) for text in _OPEN[name]] for name in categories])
        self._shares = people[:, None] * places[None]  # kinds of people, categories, working day or weekend, hours

    def at(self, chance: FloatArray, rhythm: Rhythm, category: AnyArray, is_weekend: bool) -> FloatArray:
        """Hours from 0 to 24 that a uniform chance stands for, a row a transaction."""
        shares = self._shares[:, :, int(is_weekend)]
        row = rhythm.kind.astype(np.intp) * shares.shape[1] + category
        return (_inverse(shares.reshape(-1, 24), row, chance) + rhythm.lag) % 24.0


def at_night(chance: FloatArray) -> FloatArray:
    """Hours that a uniform chance stands for where somebody prefers that others sleep."""
    return _inverse(_digits(_NIGHT)[None], np.zeros(len(chance), np.intp), chance)


class Travels:
    """Where customers live, and where they are: at home but for a trip now and then."""

    def __init__(self, rng: np.random.Generator, accounts: int, seed: int) -> None:
        self.home = rng.choice(len(_COUNTRIES), accounts, p=[c[1] for c in _COUNTRIES]).astype(np.int8)
        self._fondness = rng.beta(0.6, 2.4, accounts)  # chance of a trip in a season: many hardly ever, a few often
        self._seed = seed
        self._season = -1
        self._draw(0)

    def country(self, who: AnyArray, time: FloatArray, number: int) -> AnyArray:
        """Where these customers are at these times of a day."""
        self._draw(number // _SEASON)
        is_away = (self._begin[who] <= time) & (time < self._end[who])
        return np.where(is_away, self._destination[who], self.home[who])

    def strangers(self, rng: np.random.Generator) -> AnyArray:
        """For each customer, a country that is not theirs."""
        return _another(rng, self.home, [c[3] for c in _COUNTRIES])

    def _draw(self, season: int) -> None:
        """The trips of a season; those of the one that was asked for last are kept."""
        if season == self._season:
            return
        rng = np.random.default_rng([self._seed, 4, season])
        accounts = len(self.home)
        length = rng.uniform(*_TRIP, accounts)
        self._begin = _SEASON * season + rng.random(accounts) * (_SEASON - length)
        self._end = np.where(rng.random(accounts) < self._fondness, self._begin + length, self._begin)
        self._destination = _another(rng, self.home, [c[2] for c in _COUNTRIES])
        self._season = season


class Devices:
    """Numbers of the devices of each customer: a main one, for some a second one, and that of a stranger.

    A device is replaced when its time has come, and has a new number from then on.
    """

    def __init__(self, rng: np.random.Generator, accounts: int) -> None:
        self._lifetime = rng.uniform(*_LIFETIME, (2, accounts))
        self._age = rng.random((2, accounts)) * self._lifetime
        self._second_share = np.where(rng.random(accounts) < _HAS_SECOND, rng.beta(1.5, 8.0, accounts), 0.0)
        self._first_letter = rng.integers(_LETTERS, size=accounts).astype(np.int8)

    def used(self, rng: np.random.Generator, who: AnyArray, time: FloatArray, is_stranger: AnyArray) -> AnyArray:
        """The device of each transaction, -1 where none is known; a stranger uses one of their own."""
        kind = (rng.random(len(who)) < self._second_share[who]).astype(np.intp)
        generation = ((time + self._age[kind, who]) // self._lifetime[kind, who]).astype(np.intp)
        number = np.where(is_stranger, _KINDS - 1, _KINDS * generation + kind)
        # Letters begin anywhere, or that of a stranger's device would always be the same: a label in the transaction.
        turn, letter = np.divmod(number, _LETTERS)
        number = turn * _LETTERS + (letter + self._first_letter[who]) % _LETTERS
        return np.where(rng.random(len(who)) < _NO_DEVICE, -1, number)


def country_name(country: int) -> str:
    """What a country is called in the stream."""
    return _COUNTRIES[country][0]


def device_name(customer: int, device: int) -> str:
    """What a customer's device is called in the stream; empty where none is known.

    >>> device_name(12, 0), device_name(12, 27), device_name(12, -1)
    ('d00012a', 'd00012bb', '')
    """
    if device < 0:
        return ""
    turn, letter = divmod(device, _LETTERS)
    return f"d{customer:05d}{chr(ord('a') + letter) * (turn + 1)}"


def _digits(text: str) -> FloatArray:
    return np.array([int(digit) for digit in text.replace(" ", "")]) + _ANYWAY


def _inverse(shares: FloatArray, row: AnyArray, chance: FloatArray) -> FloatArray:
    """Hours below which lies so large a part of a row's shares; within an hour they are even.

    The rows' cumulated shares stand behind each other, each row one above the last, for one search in all of them.
    """
    cumulated = np.cumsum(shares, axis=1)
    cumulated = np.hstack([np.zeros((len(shares), 1)), cumulated / cumulated[:, -1:]])
    cumulated[:, -1] = 1.0
    steps = np.arange(len(shares))[:, None] + cumulated[:, 1:]
    hour = np.minimum(np.searchsorted(steps.ravel(), row + chance, side="right") - 24 * row, 23)
    low, high = cumulated[row, hour], cumulated[row, hour + 1]
    return np.minimum(hour + np.clip((chance - low) / (high - low), 0.0, 1.0), np.nextafter(24.0, 0.0))


def _another(rng: np.random.Generator, home: AnyArray, weights: Sequence[float]) -> AnyArray:
    """For each, a country other than home, by these weights."""
    shares = np.where(np.eye(len(weights), dtype=bool), 0.0, np.array(weights))
    cumulated = np.cumsum(shares / shares.sum(axis=1, keepdims=True), axis=1)
    cumulated[cumulated > 1.0 - 1e-12] = 1.0  # or the last digits would leave a little for a home that is the last
    chance = rng.random(len(home))
    chosen = np.zeros(len(home), np.int8)
    for border in cumulated.T:  # country by country: memory for the customers only, not for all of their choices
        chosen += chance >= border[home]
    return chosen
