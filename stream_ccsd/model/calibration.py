"""Calibration: how rare a score is, as in "1 in N normal transactions scores this high".

Up to a high quantile the rate is the empirical one of held-out normal transactions. Beyond it, a generalised Pareto
tail goes on where data ends, so that the rate never saturates and still ranks. Its shape is kept at 0 or above, because
a tail that ends somewhere would call everything beyond impossible. Where scores end abruptly (uniform ones do), such a
tail would never be as rare as a budget asks: there the empirical rate goes on almost to the highest score.

:func:`followed` lets a tail follow the stream: it mixes the old one with what normal transactions score now. Alerts are
not among these, so nothing is known of scores above the threshold they were raised by. Below it, rates are mixed at the
knots of the tail. Beyond the last knot, the Pareto tail keeps its shape, and its scale follows the mean of the scores
between the last knot and the threshold: it is the scale at which a tail cut off there has that mean.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from stream_ccsd.numerics.arrays import AnyArray, FloatArray, IntArray, read_only
from stream_ccsd.numerics.compiling import compiled

_KNOTS = 400
_MIN_TAIL = 20
# The most that one account may have of the tail: so many scores, or this share of it.
_MOST_OF_ONE, _SHARE_OF_ONE = 3, 0.02
_MAX_SHAPE = 1.0
_MIN_SCALE = 1e-3
# Scores end abruptly where the highest of so many in the tail is hardly above their mean: an exponential tail is
# that short once in 5,000 times. Tails that only thin out (BankSim's takeover: 3.8) rank by how far scores go.
_WALL, _ENOUGH_FOR_A_WALL = 2.5, 100
# A scale so large that nothing is ever rare.
_NO_TAIL = 1e300


class Tail(NamedTuple):
    """Rarity ``-log(rate)`` of a score, in nats: interpolated between knots, then the Pareto tail."""

    knots: FloatArray  # scores, strictly rising
    rarity: FloatArray  # at the knots, rising
    beyond: float  # just above the last knot: many scores may equal it, and then this is a step up
    shape: float
    scale: float


def fit_tail(scores: FloatArray, tail_share: float, accounts: IntArray | None = None) -> Tail:
    """Calibrate on scores of left-out normal transactions; NaN (not scored) are left out.

    Transactions of one account are alike, so one odd account would decide what is rare for all. Where ``accounts``
    gives the account of each score, no account has more than a fiftieth of the tail.

    Without any score nothing is known to be rare, and the rate of everything is 1.
    """
    known = ~np.isnan(scores)
    scores = scores[known]
    n = len(scores)
    if accounts is not None and n:
        scores = scores[_thinned(scores, accounts[known], tail_share)]
    scores = np.sort(scores)
    n = len(scores)
    if n == 0:
        return read_only(Tail(np.array([0.0, 1.0]), np.zeros(2), 0.0, 0.0, _NO_TAIL))
    exceeding = int(min(max(round(tail_share * n), _MIN_TAIL), n - 1))
    threshold = scores[n - 1 - exceeding] if exceeding > 0 else scores[-1]
    body = scores[scores <= threshold]
    knots = np.unique(np.quantile(body, np.linspace(0.0, 1.0, _KNOTS)))
    excess = scores[scores > threshold] - threshold
    least = _MIN_SCALE
    if len(excess) >= _ENOUGH_FOR_A_WALL and excess.max() < _WALL * excess.mean():
        least *= float(excess.mean())  # hardly any spread, relative to scores that are so close to each other
        threshold = scores[n - 1 - _MIN_TAIL]
        upper = scores[(scores >= knots[-1]) & (scores <= threshold)]
        knots = np.unique(np.append(knots, np.quantile(upper, np.linspace(0.0, 1.0, _KNOTS))))
        excess = scores[scores > threshold] - threshold
    # Share of scores at or above each knot; the last knot is the threshold, above which the tail takes over.
    rate = (n - np.searchsorted(scores, knots, side="left")) / n
    beyond = -np.log(max(len(excess), 1) / (n + 1))
    if len(knots) == 1:
        knots, rate = np.append(knots[0] - 1.0, knots), np.append(1.0, rate)
    rarity = np.maximum.accumulate(-np.log(np.minimum(rate, 1.0)))
    # With hardly any spread, nothing is known of the scale: one nat of score is then one nat of rarity.
    shape, scale = _fit_pareto(excess) if len(excess) >= 2 and excess.mean() > least else (0.0, 1.0)
    return read_only(Tail(knots, rarity, float(max(beyond, rarity[-1])), float(shape), float(max(scale, least))))


def _thinned(scores: FloatArray, accounts: IntArray, tail_share: float) -> AnyArray:
    """Which scores stay: all of the body, and of each account's in the tail no more than its share, spread evenly."""
    size = max(round(tail_share * len(scores)), _MIN_TAIL)
    line = np.partition(scores, max(len(scores) - 1 - size, 0))[max(len(scores) - 1 - size, 0)]
    kept = np.ones(len(scores), dtype=bool)
    above = np.flatnonzero(scores > line)
    most = max(_MOST_OF_ONE, round(_SHARE_OF_ONE * len(above)))
    for account in np.unique(accounts[above]):
        own = above[accounts[above] == account]
        if len(own) > most:
            order = own[np.argsort(scores[own], kind="stable")]
            kept[order] = False
            kept[order[np.linspace(0, len(order) - 1, most).round().astype(int)]] = True
    return kept


def _fit_pareto(excess: FloatArray) -> tuple[float, float]:
    """Maximum likelihood over the shape in [0, 1]; the scale is profiled through Grimshaw's ratio shape/scale."""
    mean = float(excess.mean())

    def cost(ratio: float) -> float:
        shape = float(np.mean(np.log1p(ratio * excess)))
        return float(np.log(shape / ratio) + shape + 1.0) if shape > 0 else np.inf

    optimum = minimize_scalar(
        lambda t: cost(np.exp(t)), bounds=(np.log(1e-6 / mean), np.log(1e4 / mean)), method="bounded"
    )
    ratio = float(np.exp(optimum.x))
    shape = float(np.mean(np.log1p(ratio * excess)))
    exponential = np.log(mean) + 1.0
    if optimum.fun >= exponential or shape < 1e-4:
        return 0.0, mean
    return min(shape, _MAX_SHAPE), shape / ratio


@compiled()
def rarities(tail: Tail, scores: FloatArray) -> FloatArray:
    """:func:`rarity` of many scores."""
    out = np.empty(len(scores))
    for i in range(len(scores)):
        out[i] = rarity(tail, scores[i])
    return out


@compiled()
def rarity(tail: Tail, score: float) -> float:
    """``-log`` of the rate of normal transactions that score this high; 0 for an ordinary or missing score."""
    last = len(tail.knots) - 1
    if not score > tail.knots[0]:
        return 0.0
    if score > tail.knots[last]:
        excess = (score - tail.knots[last]) / tail.scale
        return tail.beyond + (excess if tail.shape == 0.0 else np.log1p(tail.shape * excess) / tail.shape)
    if score == tail.knots[last]:
        return tail.rarity[last]
    right = np.searchsorted(tail.knots, score, side="right")
    left = right - 1
    share = (score - tail.knots[left]) / (tail.knots[right] - tail.knots[left])
    return tail.rarity[left] + share * (tail.rarity[right] - tail.rarity[left])


# How far a scale may move at once, whatever was seen.
_STEP = 2.0
_HALVINGS = 60


def followed(tail: Tail, scores: FloatArray, share: float, line: float) -> Tail:
    """``1 - share`` of the tail and ``share`` of these scores; those rarer than ``line`` (nats) do not count."""
    ceiling = score_at(tail, line)
    above_line = float(np.exp(-line))
    scores = np.sort(scores[scores < ceiling])
    if not len(scores):
        return tail
    # With the alerts, which are missing here, there would be so many.
    total = len(scores) / (1.0 - above_line)
    last = float(tail.knots[-1])

    def mixed(old: FloatArray, at: FloatArray, side: str) -> FloatArray:
        """Mixed rates of scores from these on (left), or beyond them (right)."""
        recent = (total - np.searchsorted(scores, at, side=side)) / total  # type: ignore[call-overload]
        rate: FloatArray = np.where(at < ceiling, (1.0 - share) * old + share * recent, old)
        return rate

    rate = mixed(np.exp(-tail.rarity), tail.knots, "left")
    rarity = np.maximum.accumulate(np.maximum(-np.log(rate), 0.0))
    beyond_rate = float(np.exp(-tail.beyond))
    beyond = float(-np.log(mixed(np.array([beyond_rate]), np.array([last]), "right")[0]))
    scale = tail.scale
    if ceiling > last:
        excess = scores[scores > last] - last
        length = ceiling - last
        known = (1.0 - share) * max(beyond_rate - above_line, 0.0)
        count = known + share * len(excess) / total
        total_excess = known * _mean_below(tail.scale, tail.shape, length) + share * float(excess.sum()) / total
        if count > 0.0:
            scale = _scale_of(total_excess / count, tail, length)
    return read_only(Tail(tail.knots, rarity, max(beyond, float(rarity[-1])), tail.shape, scale))


def score_at(tail: Tail, rarity: float) -> float:
    """The score that is so rare: the inverse of :func:`rarity`."""
    if rarity <= tail.beyond:
        return float(np.interp(rarity, tail.rarity, tail.knots))
    beyond = rarity - tail.beyond
    excess = beyond if tail.shape == 0.0 else np.expm1(tail.shape * beyond) / tail.shape
    return float(tail.knots[-1] + tail.scale * excess)


def _mean_below(scale: float, shape: float, length: float) -> float:
    """Mean of a generalised Pareto distribution below a length."""
    reach = length / scale
    if shape == 0.0:
        survives, area = np.exp(-reach), scale * -np.expm1(-reach)
    else:
        survives = (1.0 + shape * reach) ** (-1.0 / shape)
        if abs(shape - 1.0) < 1e-9:
            area = scale * np.log1p(reach)
        else:
            area = scale / (1.0 - shape) * (1.0 - (1.0 + shape * reach) ** (1.0 - 1.0 / shape))
    return float((area - length * survives) / max(1.0 - survives, 1e-300))


def _scale_of(mean: float, tail: Tail, length: float) -> float:
    """The scale whose distribution has this mean below the length: the mean rises with the scale."""
    low, high = tail.scale / _STEP, tail.scale * _STEP
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        if _mean_below(middle, tail.shape, length) < mean:
            low = middle
        else:
            high = middle
    return low
