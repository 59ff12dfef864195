"""Where fraud falls on the axes of amount, hour, weekday, gap and declared numbers, against a diffuse law.

Counts fade at a few half-lives side by side; the one under which frauds were most likely, each before it was counted,
is the one that is used.
"""

from __future__ import annotations

import numpy as np

from stream_ccsd.library.laws import OCTAVES, Laws
from stream_ccsd.library.learnt import BIN, BINS, DIFFUSE
from stream_ccsd.numeric import FloatArray, IntArray

HALF_LIVES = (20.0, 60.0, 180.0)
"""In days."""
_COMPARED = 35.0  # half-life of what half-lives are compared by


class AxisLaw:
    """Frauds by bin of one axis, and the diffuse law they are compared with."""

    def __init__(self, diffuse: FloatArray) -> None:
        self._diffuse = diffuse
        self._counts: FloatArray = np.zeros((len(HALF_LIVES), len(diffuse)))
        self._likelihood: FloatArray = np.zeros(len(HALF_LIVES))

    def fade(self, days: float) -> None:
        """So much later."""
        self._counts *= 0.5 ** (days / np.array(HALF_LIVES))[:, None]
        self._likelihood *= 0.5 ** (days / _COMPARED)

    def add(self, bins: IntArray, weight: FloatArray) -> None:
        """Count frauds: each is judged by what was known before them. Weights below 0 take back what was wrong."""
        known = bins >= 0
        bins, weight = bins[known], weight[known]
        total = self._counts.sum(axis=1, keepdims=True)
        law = (self._counts + DIFFUSE * self._diffuse) / (total + DIFFUSE)
        self._likelihood += (np.log(law[:, bins]) * np.maximum(weight, 0.0)).sum(axis=1)
        np.add.at(self._counts.T, bins, weight[:, None])
        np.maximum(self._counts, 0.0, out=self._counts)

    @property
    def chosen(self) -> int:
        """Which half-life predicted best."""
        return int(np.argmax(self._likelihood))

    def ratio(self) -> tuple[FloatArray, float]:
        """The law of frauds over the diffuse one, bin by bin, and how many frauds it is made of."""
        counts = self._counts[self.chosen]
        total = float(counts.sum())
        if total < 1e-6:
            return np.zeros(len(counts)), 0.0
        return counts / total / self._diffuse, total


def axis_laws(laws: Laws) -> list[AxisLaw]:
    """Of amount, hour, weekday, gap and each declared number, nothing counted yet."""
    # A density that grows with the amount, up to the largest normal one, and falls as fast beyond.
    at = (np.arange(BINS) + 0.5) * BIN
    amount = np.exp(np.minimum(at, laws.amount_scale) - np.maximum(at - laws.amount_scale, 0.0) - laws.amount_scale)
    octaves = int(np.ceil(laws.octaves)) if laws.octaves > 0 else 1
    gap = np.where(np.arange(OCTAVES) <= octaves, 1.0, 1e-3)
    # A number's axis is as long as its reach, somewhere: bins beyond normal ones are as likely as those within.
    numbers = [np.full(BINS, min(1.0, BIN / max(reach, BIN))) for reach in laws.number_reach]
    shares = [amount * BIN, np.full(24, 1 / 24), np.full(7, 1 / 7), gap / gap.sum(), *numbers]
    return [AxisLaw(np.maximum(share, 1e-9)) for share in shares]
