"""Where fraud happens: fraud rates by value of a field, and fraud densities on the axes of numbers.

:class:`FraudRates` counts frauds among all transactions of each merchant, category, account or other name.
:class:`FraudDensity` counts where fraud falls on the axes of amount, hour, weekday, gap and declared numbers, against a
diffuse density. Both fade with every model update, at several half-lives side by side. The half-life is used under
which frauds were most likely, each before it was counted.
"""

from __future__ import annotations

import numpy as np

from stream_ccsd.evidence.densities import OCTAVES, Densities
from stream_ccsd.evidence.supervised import BIN, BINS, DIFFUSE, HALF_LIVES
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, IntArray

_STRENGTH = 1.0  # transactions at everyone's rate that a fraud rate begins with
_LATELY = HALF_LIVES.index(5.0)
_FORGOTTEN = 0.01  # of a transaction: what is left of a count that is dropped
_PRIOR = 0.05, 50.0  # frauds and transactions before there are any


class FraudRates:
    """Of one field: codes of its values, rising, and for each its frauds and all its transactions, by half-life."""

    def __init__(self, only_with_fraud: bool = False) -> None:
        self.codes: AnyArray = np.zeros(0, np.uint64)
        self.counts: FloatArray = np.zeros((0, 2, len(HALF_LIVES)))
        self._since: IntArray = np.zeros(0, np.int64)  # the update in which counting began
        self._updates = 0
        self._only_with_fraud = only_with_fraud

    def fade(self, factor: FloatArray) -> None:
        """Multiply counts by a factor for each half-life; drop what has nearly faded."""
        self._updates += 1
        self.counts *= factor
        kept = self.counts[:, 1, -1] > _FORGOTTEN
        if not kept.all():
            self.codes, self.counts, self._since = self.codes[kept], self.counts[kept], self._since[kept]

    def add(self, codes: AnyArray, frauds: FloatArray, transactions: FloatArray) -> None:
        """Add these counts, by row and half-life."""
        if self._only_with_fraud:  # accounts are many, and few have fraud: counting begins with the first one
            known = np.isin(codes, np.append(self.codes, codes[frauds[:, -1] > 0]))
            codes, frauds, transactions = codes[known], frauds[known], transactions[known]
        if not len(codes):
            return
        new = np.setdiff1d(codes, self.codes)
        if len(new):
            merged = np.concatenate([self.codes, new])
            order = np.argsort(merged, kind="stable")
            blank = np.zeros((len(new), 2, len(HALF_LIVES)))
            self.codes, self.counts = merged[order], np.concatenate([self.counts, blank])[order]
            self._since = np.append(self._since, np.full(len(new), self._updates))[order]
        places = np.searchsorted(self.codes, codes)
        np.add.at(self.counts[:, 0], places, frauds)
        np.add.at(self.counts[:, 1], places, transactions)

    def take_back(self, codes: AnyArray, frauds: FloatArray, transactions: FloatArray, entered: IntArray) -> None:
        """Subtract what is left of rows counted in these updates; rows from before counting began are not in it."""
        known = np.isin(codes, self.codes)
        places = np.searchsorted(self.codes, codes[known])
        counted = entered[known] >= self._since[places]
        np.subtract.at(self.counts[:, 0], places[counted], frauds[known][counted])
        np.subtract.at(self.counts[:, 1], places[counted], transactions[known][counted])
        np.maximum(self.counts, 0.0, out=self.counts)

    def rates(self, everyone: float) -> FloatArray:
        """``log`` of each value's rate over everyone's, by half-life."""
        frauds, transactions = self.counts[:, 0], self.counts[:, 1]
        rates: FloatArray = np.log((frauds / everyone + _STRENGTH) / (transactions + _STRENGTH))
        return rates

    def rates_without(self, codes: AnyArray, fraud: AnyArray, own: FloatArray, everyone: float) -> FloatArray:
        """Rates of the values of transactions, each without its own count."""
        places = np.minimum(np.searchsorted(self.codes, codes), max(len(self.codes) - 1, 0))
        counts = self.counts[places] if len(self.codes) else np.zeros((len(codes), 2, len(HALF_LIVES)))
        known = self.codes[places] == codes if len(self.codes) else np.zeros(len(codes), bool)
        frauds = np.maximum(counts[:, 0] - own * fraud[:, None], 0.0)
        others = np.maximum(counts[:, 1] - own, 0.0)
        rates = np.log((frauds / everyone + _STRENGTH) / (others + _STRENGTH))
        return np.where(known[:, None], rates, 0.0)

    def novelty(self, codes: AnyArray) -> FloatArray:
        """One over 1 and how many transactions of each value are known from the last days."""
        places = np.minimum(np.searchsorted(self.codes, codes), max(len(self.codes) - 1, 0))
        known = self.codes[places] == codes if len(self.codes) else np.zeros(len(codes), bool)
        counts = self.counts[places, 1, _LATELY] if len(self.codes) else np.zeros(len(codes))
        return 1.0 / (1.0 + np.where(known, counts, 0.0))

    def of(self, code: int) -> FloatArray | None:
        """Frauds and transactions of a value, by half-life."""
        place = int(np.searchsorted(self.codes, np.uint64(code)))
        return self.counts[place] if place < len(self.codes) and self.codes[place] == code else None


def base_rate(counts: FloatArray) -> float:
    """Everyone's fraud rate, by the longest half-life."""
    return float((counts[0, -1] + _PRIOR[0]) / (counts[1, -1] + _PRIOR[1]))


def likelihoods(rates: FloatArray, everyone: float, fraud: AnyArray) -> FloatArray:
    """Log likelihood of the outcomes by the rates of each half-life, as they were when the transactions were scored."""
    p = np.clip(everyone * np.exp(rates), 1e-6, 0.999)
    chance: FloatArray = np.where(fraud[:, None], np.log(p), np.log1p(-p))
    return chance.sum(axis=0)


DENSITY_HALF_LIVES = (20.0, 60.0, 180.0)
"""In days."""
_COMPARED = 35.0  # half-life of the likelihoods that half-lives are compared by


class FraudDensity:
    """Frauds by bin of one axis, and the diffuse density they are compared with."""

    def __init__(self, diffuse: FloatArray) -> None:
        self._diffuse = diffuse
        self._counts: FloatArray = np.zeros((len(DENSITY_HALF_LIVES), len(diffuse)))
        self._likelihood: FloatArray = np.zeros(len(DENSITY_HALF_LIVES))

    def fade(self, days: float) -> None:
        """Let counts fade over so many days."""
        self._counts *= 0.5 ** (days / np.array(DENSITY_HALF_LIVES))[:, None]
        self._likelihood *= 0.5 ** (days / _COMPARED)

    def add(self, bins: IntArray) -> None:
        """Count frauds, after evaluating each half-life on them. Bins below 0 are none."""
        bins = bins[bins >= 0]
        total = self._counts.sum(axis=1, keepdims=True)
        density = (self._counts + DIFFUSE * self._diffuse) / (total + DIFFUSE)
        self._likelihood += np.log(density[:, bins]).sum(axis=1)
        np.add.at(self._counts.T, bins, 1.0)

    def take_back(self, bins: IntArray, days: FloatArray) -> None:
        """Subtract what is left of frauds that were none, counted so many days ago."""
        known = bins >= 0
        left = 0.5 ** (days[known, None] / np.array(DENSITY_HALF_LIVES))
        np.subtract.at(self._counts.T, bins[known], left)
        np.maximum(self._counts, 0.0, out=self._counts)

    @property
    def chosen(self) -> int:
        """Which half-life predicted best."""
        return int(np.argmax(self._likelihood))

    def ratio(self) -> tuple[FloatArray, float]:
        """The density of frauds over the diffuse one, bin by bin, and how many frauds it is made of."""
        counts = self._counts[self.chosen]
        total = float(counts.sum())
        if total < 1e-6:
            return np.zeros(len(counts)), 0.0
        return counts / total / self._diffuse, total


def fraud_densities(densities: Densities) -> list[FraudDensity]:
    """Of amount, hour, weekday, gap and each declared number, nothing counted yet."""
    # A density that grows with the amount, up to the largest normal one, and falls as fast beyond.
    at = (np.arange(BINS) + 0.5) * BIN
    amount = np.exp(
        np.minimum(at, densities.amount_scale) - np.maximum(at - densities.amount_scale, 0.0) - densities.amount_scale
    )
    octaves = int(np.ceil(densities.octaves)) if densities.octaves > 0 else 1
    gap = np.where(np.arange(OCTAVES) <= octaves, 1.0, 1e-3)
    # A number's axis is as long as its reach, somewhere: bins beyond normal ones are as likely as those within.
    numbers = [np.full(BINS, min(1.0, BIN / max(reach, BIN))) for reach in densities.number_reach]
    shares = [amount * BIN, np.full(24, 1 / 24), np.full(7, 1 / 7), gap / gap.sum(), *numbers]
    return [FraudDensity(np.maximum(share, 1e-9)) for share in shares]
