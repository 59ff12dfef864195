"""The Gaussian kernel as a short cosine sum: exact to rounding, with a number of terms known beforehand.

The trapezoid rule on the Gaussian's Fourier integral converges geometrically. With period ``R + a sigma`` the
nearest alias of any difference up to ``R`` lies ``a sigma`` away and contributes ``exp(-a^2/2)``; frequencies
beyond ``a / sigma`` contribute as little. No randomness, no approximation beyond the tolerance asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from stream_ccsd.divergence.kernels import check_bandwidth
from stream_ccsd.numerics.arrays import FEATURE_TOLERANCE, MAX_FREQUENCIES, FloatArray, IntArray
from stream_ccsd.numerics.compiling import compiled


class TooManyFrequenciesError(ValueError):
    """The range is so wide, or the bandwidth so narrow, that the direct form is the better choice."""


@dataclass(frozen=True, eq=False)
class FourierFeatures:
    r"""Features ``phi`` with ``phi(y) . phi(y') = exp(-|y - y'|^2 / 2 sigma^2)`` on a box.

    For every retained frequency ``w_f`` with weight ``g_f`` there are two numbers, ``sqrt(g_f) cos(w_f . y)``
    and ``sqrt(g_f) sin(w_f . y)``; the sine of the frequency 0 is left out.

    >>> features = FourierFeatures.for_box(low=[-3.0], high=[3.0], sigma=[1.0])
    >>> phi = features.transform(np.array([[0.5], [-2.0]]))
    >>> phi.shape
    (2, 39)
    >>> bool(abs(phi[0] @ phi[1] - np.exp(-0.5 * 2.5**2)) < 1e-15)
    True
    """

    centre: FloatArray  # (d,), the middle of the box: keeps the angles small
    step: FloatArray  # (d,), distance of neighbouring frequencies
    harmonic: IntArray  # (f, d), frequencies in units of their step; the first row is 0
    weight: FloatArray  # (f,)

    @classmethod
    def for_box(
        cls,
        low: ArrayLike,
        high: ArrayLike,
        sigma: ArrayLike,
        *,
        tolerance: float = FEATURE_TOLERANCE,
        max_frequencies: int = MAX_FREQUENCIES,
    ) -> FourierFeatures:
        """Features exact to ``tolerance`` for all pairs of points in the box from ``low`` to ``high``.

        Raises
        ------
        TooManyFrequenciesError
            If that takes more than ``max_frequencies``.
        ValueError
            If a corner is not finite, ``high`` lies below ``low``, or ``sigma`` or ``tolerance`` is out of range.
        """
        lower, upper = np.atleast_1d(np.asarray(low, float)), np.atleast_1d(np.asarray(high, float))
        widths = np.broadcast_to(np.asarray(sigma, float), lower.shape)
        if not (np.isfinite(lower).all() and np.isfinite(upper).all() and (upper >= lower).all()):
            raise ValueError(f"the box from {low!r} to {high!r} must be finite and not turned around")
        if not 0 < tolerance < 1:
            raise ValueError(f"tolerance must lie in (0, 1), got {tolerance!r}")
        check_bandwidth("sigma", widths.tolist())
        reach = np.sqrt(-2 * np.log(tolerance))
        with np.errstate(over="ignore"):
            # In units of sigma, so that neither very wide nor very narrow bandwidths leave the number range.
            period = (upper / 2 - lower / 2) / widths * 2 + reach
        count = reach * period / (2 * np.pi)
        if not np.prod(1 + count) <= 4.0**lower.size * max_frequencies:
            raise TooManyFrequenciesError(_absurd(count, max_frequencies))
        step = 2 * np.pi / period
        harmonic, weight = _half_space(step, np.floor(count).astype(np.int64), tolerance)
        if len(weight) > max_frequencies:
            raise TooManyFrequenciesError(_absurd(np.asarray(len(weight)), max_frequencies))
        return cls(lower / 2 + upper / 2, step / widths, harmonic, weight)

    @property
    def size(self) -> int:
        """Numbers per point."""
        return 2 * len(self.weight) - 1

    def transform(self, points: FloatArray) -> FloatArray:
        """Features ``(n, size)`` of points ``(n, d)``: all cosines, then the sines of all but frequency 0."""
        waves = self.waves(points[:, None, :], 0, len(self.weight))[..., 0]
        scale = np.sqrt(self.weight)
        return np.hstack([waves[0] * scale, (waves[1] * scale)[:, 1:]])

    def waves(self, series: FloatArray, first: int, last: int) -> FloatArray:
        """Unweighted cosines and sines ``(2, n, last - first, T)`` of ``n`` series ``(n, T, d)``.

        Only the frequencies in that range; the time axis comes last, ready for a product along it.
        """
        n, length, _ = series.shape
        out = np.empty((2, n, last - first, length))
        highest = np.abs(self.harmonic[first:last]).max(axis=0)
        angles = np.ascontiguousarray((series - self.centre) * self.step)  # however series lay: compiled for one order
        _waves(angles, self.harmonic[first:last], highest, out)
        return out


@compiled()
def _waves(angles: FloatArray, harmonic: IntArray, highest: IntArray, out: FloatArray) -> None:
    """Cosine and sine of ``harmonic . angle``, by rotating once per harmonic instead of calling ``cos``."""
    series, length, dimensions = angles.shape
    cosine = np.empty((dimensions, highest.max() + 1, length))
    sine = np.empty((dimensions, highest.max() + 1, length))
    for n in range(series):
        for d in range(dimensions):
            for k in range(highest[d] + 1):
                for t in range(length):
                    if k % 16 < 2:  # start afresh, so that rounding cannot add up over many rotations
                        angle = k * angles[n, t, d]
                        cosine[d, k, t], sine[d, k, t] = np.cos(angle), np.sin(angle)
                    else:
                        c, s = cosine[d, k - 1, t], sine[d, k - 1, t]
                        cosine[d, k, t] = c * cosine[d, 1, t] - s * sine[d, 1, t]
                        sine[d, k, t] = s * cosine[d, 1, t] + c * sine[d, 1, t]
        for f in range(harmonic.shape[0]):
            for t in range(length):
                c, s = 1.0, 0.0
                for d in range(dimensions):
                    k = abs(harmonic[f, d])
                    turn_c = cosine[d, k, t]
                    turn_s = sine[d, k, t] if harmonic[f, d] >= 0 else -sine[d, k, t]
                    c, s = c * turn_c - s * turn_s, s * turn_c + c * turn_s
                out[0, n, f, t], out[1, n, f, t] = c, s


def _half_space(step: FloatArray, highest: IntArray, tolerance: float) -> tuple[IntArray, FloatArray]:
    """One of each pair of opposite frequencies, with doubled weight; those below the tolerance are left out."""
    axes = [np.arange(-k if d else 0, k + 1) for d, k in enumerate(highest)]
    harmonic = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    exponent = -0.5 * np.sum((harmonic * step) ** 2, axis=1)
    is_zero = ~harmonic.any(axis=1)
    # Of two opposite frequencies, keep the one whose first number other than 0 is positive.
    leading = harmonic[np.arange(len(harmonic)), np.argmax(harmonic != 0, axis=1)]
    wanted = ((leading > 0) | is_zero) & (exponent >= np.log(tolerance))
    weight = np.where(is_zero, 1.0, 2.0) * np.exp(exponent) * np.prod(step / np.sqrt(2 * np.pi))
    order = np.argsort(-exponent[wanted], kind="stable")
    return harmonic[wanted][order], weight[wanted][order]


def _absurd(count: FloatArray | IntArray, limit: int) -> str:
    return f"about {np.prod(count):.3g} frequencies would be needed, more than {limit}"
