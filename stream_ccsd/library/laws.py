"""What normal accounts buy: laws of log amounts for everything, each category, each merchant and each pair.

A law is a weighted set of points on the axis ``u = log(1 + amount)``. Amounts closer together than a twentieth of the
bandwidth are one point at their mean, so a law stays small however many transactions it came from. Weights are shares
of all transactions: the mass of a law is how often that category, merchant or pair occurs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from stream_ccsd.numeric import AnyArray, FloatArray, read_only
from stream_ccsd.settings import Settings
from stream_ccsd.vector import exp_of_nonpositive

_POINTS_PER_BANDWIDTH = 20
# Further than this from a point, in bandwidths, the Gaussian is below 1e-17.
_FAR = 9.0

EVERYTHING = 0


class Laws(NamedTuple):
    """All laws one after the other: law 0 is everything; then categories, merchants and pairs by sorted code."""

    point: FloatArray  # positions u, rising within each law
    share: FloatArray  # of all transactions
    start: AnyArray  # (laws + 1,), first point of each law
    mass: FloatArray  # (laws,), sum of shares
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
    cell = np.rint(u * (_POINTS_PER_BANDWIDTH / settings.sigma_u)).astype(np.int64)
    pairs = pair_code(categories, merchants)
    keys = [np.unique(categories), np.unique(merchants), np.unique(pairs)]
    groups = [(np.zeros(len(u), np.uint64), np.zeros(1, np.uint64))]
    groups += [(c, k) for c, k in zip((categories, merchants, pairs), keys, strict=True)]
    points, shares, sizes = [], [], []
    for member, known in groups:
        law = np.searchsorted(known, member)
        order = np.lexsort((cell, law))
        first = np.flatnonzero(np.append(True, (np.diff(law[order]) != 0) | (np.diff(cell[order]) != 0)))
        count = np.diff(np.append(first, len(u)))
        points.append(np.add.reduceat(u[order], first) / count)
        shares.append(count / len(u))
        sizes.append(np.bincount(law[order][first], minlength=len(known)))
    start = np.append(0, np.cumsum(np.concatenate(sizes)))
    share = np.concatenate(shares)
    laws = read_only(
        Laws(
            point=np.concatenate(points),
            share=share,
            start=start.astype(np.int64),
            mass=np.add.reduceat(share, start[:-1]),
            categories=keys[0].astype(np.uint32),
            merchants=keys[1].astype(np.uint32),
            pairs=keys[2],
            self_term=1.0,
            sigma_u=settings.sigma_u,
            mismatch=settings.mismatch,
            ridge=settings.outcome_ridge,
        )
    )
    return laws._replace(self_term=_self_term(laws))


def pair_code(categories: AnyArray, merchants: AnyArray) -> AnyArray:
    """Category and merchant in one 64-bit number."""
    return (categories.astype(np.uint64) << np.uint64(32)) | merchants.astype(np.uint64)


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
    """Sum of shares times the Gaussian, over the points that are not too far to matter."""
    point = laws.point[laws.start[law] : laws.start[law + 1]]
    share = laws.share[laws.start[law] : laws.start[law + 1]]
    first = _first_from(point, u - _FAR * laws.sigma_u)
    last = _first_from(point, u + _FAR * laws.sigma_u)
    near, share = point[first:last], share[first:last]
    exponents = np.empty(last - first)
    scale = -0.5 / (laws.sigma_u * laws.sigma_u)
    for i in range(last - first):
        difference = u - near[i]
        exponents[i] = scale * difference * difference
    exp_of_nonpositive(exponents)
    total = 0.0
    for i in range(last - first):
        total += share[i] * exponents[i]
    return total


@njit(cache=True, nogil=True)
def _self_term(laws: Laws) -> float:
    total = 0.0
    first_pair = 1 + len(laws.categories) + len(laws.merchants)
    for i in range(len(laws.pairs)):
        category, merchant = laws.pairs[i] >> np.uint64(32), laws.pairs[i] & np.uint64(0xFFFFFFFF)
        for j in range(laws.start[first_pair + i], laws.start[first_pair + i + 1]):
            total += laws.share[j] * outcome_density(laws, laws.point[j], category, merchant)[2]
    return total
