"""Rates of scores that follow the stream: an old tail, mixed with what normal transactions score now.

Alerts are not among what is followed, so nothing is known of scores above the line they were made by. Below it, rates
are mixed where the tail has its knots. Beyond the last knot, the Pareto tail keeps its shape, and its scale follows
the mean of the scores between the last knot and the line: it is the scale at which a tail cut off there has that mean.
"""

from __future__ import annotations

import numpy as np

from stream_ccsd.library.tails import Tail
from stream_ccsd.numeric import FloatArray, read_only

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
    # So many more would have been there, were alerts among them.
    total = len(scores) / (1.0 - above_line)
    last = float(tail.knots[-1])

    def mixed(old: FloatArray, at: FloatArray, side: str) -> FloatArray:
        """Rates of scores from these on (left), or beyond them (right)."""
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
    """The score that is so rare: the inverse of ``library.tails.rarity``."""
    if rarity <= tail.beyond:
        return float(np.interp(rarity, tail.rarity, tail.knots))
    beyond = rarity - tail.beyond
    excess = beyond if tail.shape == 0.0 else np.expm1(tail.shape * beyond) / tail.shape
    return float(tail.knots[-1] + tail.scale * excess)


def _mean_below(scale: float, shape: float, length: float) -> float:
    """Mean of a generalised Pareto law of what lies below a length."""
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
    """The scale whose law has this mean below the length: it rises with the scale."""
    low, high = tail.scale / _STEP, tail.scale * _STEP
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        if _mean_below(middle, tail.shape, length) < mean:
            low = middle
        else:
            high = middle
    return low
