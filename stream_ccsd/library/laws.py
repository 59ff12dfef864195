"""What normal accounts buy: laws of log amounts for everything, each category, each merchant and each pair.

A law is a sum of Gaussians over the axis ``u = log(1 + amount)``, one for each transaction. Transactions in a cell of
a tenth of the bandwidth are kept as the moments of their distances from the cell's middle: with ``t`` the distance of u
from the middle and ``d`` that of a transaction, ``exp(-(t-d)^2/2) = exp(-t^2/2) exp(-d^2/2) sum_n (t d)^n / n!``, exact
to 1e-11 with eleven terms. So a law stays small however many transactions it came from, and nothing is rounded away.
Its mass is how often that category, merchant or pair occurs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from stream_ccsd.numeric import AnyArray, FloatArray, read_only
from stream_ccsd.settings import Settings
from stream_ccsd.vector import exp_of_nonpositive

_CELLS_PER_BANDWIDTH = 10
_TERMS = 11
# Further than this from a point, in bandwidths, the Gaussian is below 1e-17.
_FAR = 9.0

EVERYTHING = 0


class Laws(NamedTuple):
    """All laws one after the other: law 0 is everything; then categories, merchants and pairs by sorted code."""

    middle: FloatArray  # of the cells, rising within each law
    moments: FloatArray  # (11, cells), sums of share * exp(-d^2/2) d^n / n!
    start: AnyArray  # (laws + 1,), first cell of each law
    mass: FloatArray  # (laws,), share of all transactions
    categories: AnyArray  # sorted codes; law 1 + i
    merchants: AnyArray  # sorted codes; law 1 + len(categories) + i
    pairs: AnyArray  # sorted uint64, category << 32 | merchant
    self_term: float  # I_qq of the whole law under the outcome kernel
    sigma_u: float
    mismatch: float
    ridge: float


def build_laws(amounts: FloatArray, categories: AnyArray, merchants: AnyArray, settings: Settings) -> Laws:
    """Laws of the given transactions, all of them normal."""
    u = np.log1p(amounts)
    width = settings.sigma_u / _CELLS_PER_BANDWIDTH
    cell = np.rint(u / width)
    distance = (u - cell * width) / settings.sigma_u
    terms = np.exp(-0.5 * distance**2) / len(u) * np.ones((_TERMS, 1))
    for n in range(1, _TERMS):
        terms[n:] *= distance / n
    pairs = pair_code(categories, merchants)
    keys = [np.unique(categories), np.unique(merchants), np.unique(pairs)]
    groups = [(np.zeros(len(u), np.uint64), np.zeros(1, np.uint64))]
    groups += [(c, k) for c, k in zip((categories, merchants, pairs), keys, strict=True)]
    middles, moments, sizes, masses = [], [], [], []
    for member, known in groups:
        law = np.searchsorted(known, member)
        order = np.lexsort((cell, law))
        first = np.flatnonzero(np.append(True, (np.diff(law[order]) != 0) | (np.diff(cell[order]) != 0)))
        middles.append(cell[order][first] * width)
        moments.append(np.add.reduceat(terms[:, order], first, axis=1))
        sizes.append(np.bincount(law[order][first], minlength=len(known)))
        masses.append(np.bincount(law, minlength=len(known)) / len(u))
    laws = read_only(
        Laws(
            middle=np.concatenate(middles),
            moments=np.ascontiguousarray(np.concatenate(moments, axis=1)),
            start=np.append(0, np.cumsum(np.concatenate(sizes))).astype(np.int64),
            mass=np.concatenate(masses),
            categories=keys[0].astype(np.uint32),
            merchants=keys[1].astype(np.uint32),
            pairs=keys[2],
            self_term=1.0,
            sigma_u=settings.sigma_u,
            mismatch=settings.mismatch,
            ridge=settings.outcome_ridge,
        )
    )
    return laws._replace(self_term=_self_term(laws, u, categories, merchants))


def pair_code(categories: AnyArray, merchants: AnyArray) -> AnyArray:
    """Category and merchant in one 64-bit number."""
    return (categories.astype(np.uint64) << np.uint64(32)) | merchants.astype(np.uint64)


class Shares(NamedTuple):
    """How often something occurs among normal transactions; 0 for what was never seen."""

    merchant: float
    category: float
    category_at_merchant: float  # of the merchant's transactions


def shares(laws: Laws, category: int, merchant: int) -> Shares:
    """The true shares behind an outcome, without the kernel's allowance for mismatches."""
    place = {
        "category": (1, _find(laws.categories, np.uint32(category))),
        "merchant": (1 + len(laws.categories), _find(laws.merchants, np.uint32(merchant))),
        "pair": (
            1 + len(laws.categories) + len(laws.merchants),
            _find(laws.pairs, np.uint64((category << 32) | merchant)),
        ),
    }
    mass = {name: float(laws.mass[first + i]) if i >= 0 else 0.0 for name, (first, i) in place.items()}
    together = mass["pair"] / mass["merchant"] if mass["merchant"] > 0 else 0.0
    return Shares(mass["merchant"], mass["category"], together)


@njit(cache=True, nogil=True)
def outcome_density(laws: Laws, u: float, category: int, merchant: int) -> tuple[float, float, float]:
    """Masses and density at an outcome under the product kernel: (merchant, merchant and category, all with amount).

    With ``g`` the mismatch, a transaction at another merchant counts ``g``, in another category ``g``, in both ``g^2``.
    Sums over "same or not" become sums over four nested laws.
    """
    g = laws.mismatch
    pair = (np.uint64(category) << np.uint64(32)) | np.uint64(merchant)
    category_law = _find(laws.categories, np.uint32(category))
    merchant_law = _find(laws.merchants, np.uint32(merchant))
    pair_law = _find(laws.pairs, pair)
    categories, merchants = len(laws.categories), len(laws.merchants)
    every = _density(laws, EVERYTHING, u)
    in_category = in_merchant = in_pair = 0.0
    mass_category = mass_merchant = mass_pair = 0.0
    if category_law >= 0:
        mass_category = laws.mass[1 + category_law]
        in_category = _density(laws, 1 + category_law, u)
    if pair_law >= 0:
        mass_pair = laws.mass[1 + categories + merchants + pair_law]
        in_pair = _density(laws, 1 + categories + merchants + pair_law, u)
    if merchant_law >= 0:
        mass_merchant = laws.mass[1 + categories + merchant_law]
        # A merchant of one category only has the law of that pair.
        same = mass_merchant == mass_pair
        in_merchant = in_pair if same else _density(laws, 1 + categories + merchant_law, u)
    at_merchant = mass_merchant + g * (1.0 - mass_merchant)
    both = _spread(g, mass_pair, mass_merchant, mass_category, 1.0)
    density = _spread(g, in_pair, in_merchant, in_category, every)
    return at_merchant, both, density


@njit(cache=True, nogil=True)
def _spread(g: float, pair: float, merchant: float, category: float, every: float) -> float:
    """Sum over all transactions with ``g`` for each mismatch, from the sums over the four nested laws."""
    return pair + g * (merchant - pair) + g * (category - pair) + g * g * (every - merchant - category + pair)


@njit(cache=True, nogil=True)
def _find(codes: AnyArray, wanted: Any) -> int:
    place = _first_from(codes, wanted)
    return place if place < len(codes) and codes[place] == wanted else -1


@njit(cache=True, nogil=True)
def _first_from(values: AnyArray, wanted: Any) -> int:
    """Place of the first value that is not below the wanted one: numpy's search, without its care for NaN."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def _density(laws: Laws, law: int, u: float) -> float:
    """Sum of the Gaussians of a law, over the cells that are not too far to matter."""
    first, last = laws.start[law], laws.start[law + 1]
    every = laws.middle[first:last]
    low = first + _first_from(every, u - _FAR * laws.sigma_u)
    high = first + _first_from(every, u + _FAR * laws.sigma_u)
    middle = laws.middle[low:high]
    moments = laws.moments[:, low:high]
    t, gauss, series = np.empty(high - low), np.empty(high - low), np.empty(high - low)
    for i in range(high - low):
        t[i] = (u - middle[i]) / laws.sigma_u
        gauss[i] = -0.5 * t[i] * t[i]
        series[i] = moments[_TERMS - 1, i]
    exp_of_nonpositive(gauss)
    for n in range(_TERMS - 2, -1, -1):
        for i in range(high - low):
            series[i] = series[i] * t[i] + moments[n, i]
    total = 0.0
    for i in range(high - low):
        total += gauss[i] * series[i]
    return total


def _self_term(laws: Laws, u: FloatArray, categories: AnyArray, merchants: AnyArray) -> float:
    """``I_qq``: the law's mean density at its own transactions. Equal ones are asked for once."""
    outcomes = np.stack([u, categories.astype(float), merchants.astype(float)], axis=1)
    distinct, count = np.unique(outcomes, axis=0, return_counts=True)
    codes = distinct[:, 1:].astype(np.uint32)
    return float(_mean_density(laws, np.ascontiguousarray(distinct[:, 0]), codes, count / len(u)))


@njit(cache=True, nogil=True)
def _mean_density(laws: Laws, u: FloatArray, codes: AnyArray, share: FloatArray) -> float:
    total = 0.0
    for i in range(len(u)):
        total += share[i] * outcome_density(laws, u[i], codes[i, 0], codes[i, 1])[2]
    return total
