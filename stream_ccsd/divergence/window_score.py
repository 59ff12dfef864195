"""The paper's window score: local density against global density of changes, in O(J + L) after the search.

With Fourier features, a Gram term needs only the sum of all features of a density's windows, one sum for each of the
four combinations of change flags: ``I_pq = sum_rs gate[r, s] P[r] . Q[s]``. The J x J double sum is never computed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stream_ccsd.divergence.fourier import FourierFeatures
from stream_ccsd.divergence.kernels import log_weighted_gaussian_sum
from stream_ccsd.divergence.search.index import Index, Scratch, nearest, square_distance
from stream_ccsd.divergence.search.windows import CATEGORY_CHANGED, MERCHANT_CHANGED, REGIME_COUNT
from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.numerics.compiling import inner
from stream_ccsd.numerics.vector import exp_of_nonpositive
from stream_ccsd.settings import Settings

# Truncation of the Fourier series; Gram terms below _SMALLEST_TERM are summed directly, where it could show.
_TOLERANCE = 1e-13
_SMALLEST_TERM = 1e-3
_REACH = float(np.sqrt(-2.0 * np.log(_TOLERANCE)))
# Under a bandwidth for which a change takes more harmonics than this, nothing is like anything else.
_MOST_FREQUENCIES = 1e6
# Harmonics that are made in one pass.
_AT_ONCE = 4
# A product of weights below this may hold one that met the least that ``exp_of_nonpositive`` gives (3e-308).
_LEAST_TRUSTED = 1e-300


class ChangeDensity(NamedTuple):
    """Constants of the change space: bandwidth, gates, boosts, decay, and the library's waves on a fixed grid."""

    sigma_y: float
    gate: FloatArray  # (4, 4), likeness of two regimes
    boost: FloatArray  # (4, 4), local weight of a window's regime given the query's
    log_decay: float  # of a local window's weight, for each transaction that it lies back
    largest_y: float  # the grid's range; beyond it, waves are made for the occasion
    step: float
    cosine: FloatArray  # (n,), of step * y
    sine: FloatArray


def build_change_density(index: Index, settings: Settings, sigma_y: float) -> ChangeDensity:
    """Tables for the given library."""
    regimes = np.arange(REGIME_COUNT)
    differs = regimes[:, None] ^ regimes[None, :]
    category_differs, merchant_differs = differs & CATEGORY_CHANGED != 0, differs & MERCHANT_CHANGED != 0
    gate = np.where(category_differs, settings.gate_category, 1.0)
    gate = gate * np.where(merchant_differs, settings.gate_merchant, 1.0)
    boost = np.where(category_differs, 1.0, settings.eta_category)
    boost = boost * np.where(merchant_differs, 1.0, settings.eta_merchant)
    largest = float(index.y.max()) if len(index.y) else 0.0
    features = FourierFeatures.for_box([0.0], [largest], [sigma_y], tolerance=_TOLERANCE, max_frequencies=10**6)
    step = float(features.step[0])
    return ChangeDensity(
        sigma_y=float(sigma_y),
        gate=gate if settings.gates else np.ones_like(gate),
        boost=boost if settings.boosts else np.ones_like(boost),
        log_decay=-float(np.log(2.0)) / settings.half_life if settings.decay else 0.0,
        largest_y=largest,
        step=step,
        cosine=np.cos(step * index.y),
        sine=np.sin(step * index.y),
    )


class LocalDensity(NamedTuple):
    """Working memory for the account's earlier windows: change, regime and weight of each."""

    y: FloatArray
    regime: AnyArray  # int8
    weights: FloatArray

    @staticmethod
    def of_size(n: int) -> LocalDensity:
        """For ``n`` windows."""
        return LocalDensity(np.empty(n), np.empty(n, np.int8), np.empty(n))


@inner()
def divergence_score(
    index: Index,
    density: ChangeDensity,
    amounts: FloatArray,
    categories: AnyArray,
    merchants: AnyArray,
    mean: float,
    deviation: float,
    lags: AnyArray,
    scratch: Scratch,
    local: LocalDensity,
) -> tuple[float, int, int]:
    """The score of the newest window, and how many library and local windows it comes from.

    NaN and 0 where there is nothing to compare. ``amounts``, ``categories`` and ``merchants`` run from oldest to
    newest; ``lags`` are the ends of the earlier windows, in transactions before the newest, rising. Both
    densities are in ``scratch`` and ``local`` afterwards, with weights that sum to 1.
    """
    usable = windows_before(len(amounts), index.z.shape[1], lags)
    if usable == 0 or index.neighbours == 0:
        return np.nan, 0, 0
    standardise(amounts, mean, deviation, scratch.queries[0])
    found = nearest(index, scratch.queries[0], categories[-1], merchants[-1], scratch)
    rows, weights = scratch.rows[:found], scratch.log_weights[:found]
    score = compare_densities(
        index, density, amounts, categories, merchants, deviation, lags[:usable], rows, weights, local
    )
    return score, found, usable


@inner()
def windows_before(transactions: int, k: int, lags: AnyArray) -> int:
    """How many of the lags, counted from the newest of so many transactions, end a window of ``k``."""
    usable = 0
    while usable < len(lags) and transactions - lags[usable] >= k:
        usable += 1
    return usable


@inner()
def standardise(amounts: FloatArray, mean: float, deviation: float, query: FloatArray) -> None:
    """The newest window as the library's are."""
    unit, first = _unit(deviation), len(amounts) - len(query)
    for i in range(len(query)):
        query[i] = (amounts[first + i] - mean) * unit


@inner()
def _unit(deviation: float) -> float:
    return 1.0 / deviation if deviation > 0.0 else 1.0


@inner()
def compare_densities(
    index: Index,
    density: ChangeDensity,
    amounts: FloatArray,
    categories: AnyArray,
    merchants: AnyArray,
    deviation: float,
    lags: AnyArray,
    rows: AnyArray,
    weights: FloatArray,
    local: LocalDensity,
) -> float:
    """The score from the neighbours that a search has found, whose log weights become shares."""
    exact = _normalise(weights)
    local_exact = _local_density(index, density, amounts, categories, merchants, _unit(deviation), lags, local)
    y, regime, local_weights = local.y[: len(lags)], local.regime[: len(lags)], local.weights[: len(lags)]
    return _compare(index, density, rows, weights, exact, y, regime, local_weights, local_exact)


@inner()
def _normalise(log_weights: FloatArray) -> FloatArray:
    """Logarithms into weights that sum to 1, in place.

    Returns the logarithms of these weights: they are right also where a weight is smaller than any that ``exp`` gives.
    """
    log_weights -= log_weights.max()
    exact = log_weights.copy()
    exp_of_nonpositive(log_weights)
    total = log_weights.sum()
    log_weights /= total
    exact -= np.log(total)
    return exact


@inner()
def regime_at(categories: AnyArray, merchants: AnyArray, position: int) -> int:
    """The two change flags of a transaction against the one before it, as a number from 0 to 3."""
    category_changed = int(categories[position] != categories[position - 1])
    merchant_changed = int(merchants[position] != merchants[position - 1])
    return CATEGORY_CHANGED * category_changed + MERCHANT_CHANGED * merchant_changed


@inner()
def _local_density(
    index: Index,
    density: ChangeDensity,
    amounts: FloatArray,
    categories: AnyArray,
    merchants: AnyArray,
    unit: float,
    lags: AnyArray,
    local: LocalDensity,
) -> FloatArray:
    """Changes, regimes and weights of the account's earlier windows; returns the weights' logarithms.

    All windows are standardised with the same mean and deviation, so the mean cancels in every difference.
    """
    y, regime, weights = local.y, local.regime, local.weights
    k = index.z.shape[1]
    newest = len(amounts) - 1
    own_regime = regime_at(categories, merchants, newest)
    scale = -0.5 * (unit / index.sigma_x) ** 2
    for i in range(len(lags)):
        end = newest - lags[i]
        y[i] = abs(amounts[end] - amounts[end - 1]) * unit
        regime[i] = regime_at(categories, merchants, end)
        value = scale * square_distance(amounts[end - k + 1 : end + 1], amounts[newest - k + 1 :])
        if categories[end] != categories[newest]:
            value += index.log_rho_category
        if merchants[end] != merchants[newest]:
            value += index.log_rho_merchant
        weights[i] = value + density.log_decay * lags[i] + np.log(density.boost[own_regime, regime[i]])
    return _normalise(weights[: len(lags)])


@inner()
def _compare(
    index: Index,
    density: ChangeDensity,
    rows: AnyArray,
    weights: FloatArray,
    exact: FloatArray,
    local_y: FloatArray,
    local_regime: AnyArray,
    local_weights: FloatArray,
    local_exact: FloatArray,
) -> float:
    """The divergence between the two densities, ``1/2 (log I_pp + log I_qq) - log I_pq``; below 0 is rounding.

    NaN where changes are so much wider than the bandwidth that features for them would fill the memory.
    """
    n = len(local_y)
    largest = max(density.largest_y, local_y.max())
    step = density.step
    if largest > density.largest_y:
        step = 2.0 * np.pi / (largest / density.sigma_y + _REACH) / density.sigma_y
    if not density.sigma_y * step * _MOST_FREQUENCIES > _REACH:
        return np.nan
    frequencies = int(_REACH / (density.sigma_y * step)) + 1
    cosine, sine = np.empty(n), np.empty(n)
    for i in range(n):
        cosine[i], sine[i] = np.cos(step * local_y[i]), np.sin(step * local_y[i])
    p = _feature_sums(local_weights, local_regime, cosine, sine, frequencies)
    m = len(rows)
    regime = np.empty(m, np.int8)
    cosine, sine = np.empty(m), np.empty(m)
    for j in range(m):
        regime[j] = index.regime[rows[j]]
    if step == density.step:
        for j in range(m):
            cosine[j], sine[j] = density.cosine[rows[j]], density.sine[rows[j]]
    else:
        for j in range(m):
            angle = step * index.y[rows[j]]
            cosine[j], sine[j] = np.cos(angle), np.sin(angle)
    q = _feature_sums(weights, regime, cosine, sine, frequencies)
    width = step * density.sigma_y
    pp, qq, pq = (
        _product(p, p, density.gate, width),
        _product(q, q, density.gate, width),
        _product(p, q, density.gate, width),
    )
    log_pq = np.log(pq) if pq > _SMALLEST_TERM else -np.inf
    if pq <= _SMALLEST_TERM:
        log_pq = _log_cross_term(
            index, density, rows, weights, exact, local_y, local_regime, local_weights, local_exact
        )
    return max(0.0, 0.5 * (np.log(pp) + np.log(qq)) - log_pq)


@inner(fastmath={"reassoc", "contract", "nsz"})
def _feature_sums(
    weights: FloatArray, regime: AnyArray, cosine: FloatArray, sine: FloatArray, frequencies: int
) -> FloatArray:
    """Weighted sums of cosines and sines of every harmonic, ``(2, 4, frequencies)``, by regime.

    Each follows from the two before it, ``cos (f + 1) a = 2 cos a cos f a - cos (f - 1) a``; four at a time, because to
    read and write them costs more than to make them.
    """
    out = np.zeros((2, REGIME_COUNT, frequencies + _AT_ONCE))
    n = len(weights)
    first = np.zeros(REGIME_COUNT + 1, np.int64)
    for i in range(n):
        first[regime[i] + 1] += 1
    for r in range(REGIME_COUNT):
        first[r + 1] += first[r]
    place = first.copy()
    turns, c0, c1, s0, s1 = np.empty(n), np.empty(n), np.empty(n), np.zeros(n), np.empty(n)
    for i in range(n):  # sorted by regime, so that each regime is one run
        j = place[regime[i]]
        place[regime[i]] += 1
        turns[j] = 2.0 * cosine[i]
        c0[j], c1[j], s1[j] = weights[i], weights[i] * cosine[i], weights[i] * sine[i]
    for r in range(REGIME_COUNT):
        low, high = first[r], first[r + 1]
        for f in range(0, frequencies, _AT_ONCE):
            _next_harmonics(turns[low:high], c0[low:high], c1[low:high], out[0, r, f : f + _AT_ONCE])
            _next_harmonics(turns[low:high], s0[low:high], s1[low:high], out[1, r, f : f + _AT_ONCE])
    return out[:, :, :frequencies]


@inner(fastmath={"reassoc", "contract", "nsz"})
def _next_harmonics(turns: FloatArray, now: FloatArray, then: FloatArray, sums: FloatArray) -> None:
    """Sums of two harmonics and of the two after them, in whose place the next two come; turns are twice the cosine."""
    sum_0 = sum_1 = sum_2 = sum_3 = 0.0
    for i in range(len(turns)):
        turn, zero, one = turns[i], now[i], then[i]
        two = turn * one - zero
        three = turn * two - one
        four = turn * three - two
        sum_0 += zero
        sum_1 += one
        sum_2 += two
        sum_3 += three
        now[i], then[i] = four, turn * four - three
    sums[0], sums[1], sums[2], sums[3] = sum_0, sum_1, sum_2, sum_3


@inner()
def _product(p: FloatArray, q: FloatArray, gate: FloatArray, width: float) -> float:
    """Gram term of two densities from their feature sums; ``width`` is the frequency step in units of 1/sigma."""
    total = 0.0
    for f in range(p.shape[2]):
        inner = 0.0
        for r in range(REGIME_COUNT):
            for s in range(REGIME_COUNT):
                inner += gate[r, s] * (p[0, r, f] * q[0, s, f] + p[1, r, f] * q[1, s, f])
        total += inner * (1.0 if f == 0 else 2.0) * np.exp(-0.5 * (f * width) ** 2)
    return total * width / np.sqrt(2.0 * np.pi)


@inner()
def _log_cross_term(
    index: Index,
    density: ChangeDensity,
    rows: AnyArray,
    weights: FloatArray,
    exact: FloatArray,
    local_y: FloatArray,
    local_regime: AnyArray,
    local_weights: FloatArray,
    local_exact: FloatArray,
) -> float:
    """``log I_pq`` by the double sum, in logarithms: for densities so distant that the features hold only rounding.

    ``exact`` and ``local_exact`` are the weights' own logarithms, for weights that are too small to be right.
    """
    m = len(rows)
    log_weights = np.empty((len(local_y), m))
    p, q = np.empty((len(local_y), 1)), np.empty((m, 1))
    for j in range(m):
        q[j, 0] = index.y[rows[j]] / density.sigma_y
    for i in range(len(local_y)):
        p[i, 0] = local_y[i] / density.sigma_y
        for j in range(m):
            gate = density.gate[local_regime[i], index.regime[rows[j]]]
            product = local_weights[i] * weights[j] * gate
            if product > _LEAST_TRUSTED:
                log_weights[i, j] = np.log(product)
            else:
                log_weights[i, j] = local_exact[i] + exact[j] + np.log(gate)
    return log_weighted_gaussian_sum(log_weights, p, q)
