"""k-medoids of any number of series: over all pairs where memory allows, else on samples (CLARA)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stream_ccsd.clustering.bandwidths import Bandwidths, DivergenceMatrices
from stream_ccsd.clustering.medoids import Clustering, Geometry, Method, k_medoids
from stream_ccsd.divergence.kernels import Weighting
from stream_ccsd.files import Progress
from stream_ccsd.numerics.arrays import FloatArray, some_rows

# Up to so many series all pairs are compared: 5,000 squared are 200 MB, 20,000 squared would be 3.2 GB.
MOST_AT_ONCE = 5000

# CLARA's samples: Kaufman and Rousseeuw drew 5, of 40 + 2 k rows. Pairs are cheap here, and a larger sample knows
# better where the middles are, and has neighbours that are near.
_SAMPLES = 5
_SAMPLE = 2000
_SAMPLE_A_CLUSTER = 20

# Series compared with landmarks at once: enough for matrix products to be worth it, few enough for a progress bar.
_BLOCK = 2000


@dataclass(frozen=True)
class Measure:
    """The distance between series: the divergence at some bandwidths, and the geometry that turns it into distances."""

    bandwidths: Bandwidths
    weighting: Weighting = "one-sided"
    geometry: Geometry = field(default_factory=Geometry)

    def among(self, series: FloatArray) -> FloatArray:
        """Distances between all pairs."""
        return self.geometry.of(DivergenceMatrices(series, weighting=self.weighting).at(self.bandwidths))


@dataclass(frozen=True, eq=False)
class Landmarks:
    """Series whose distances to the medoids are known, and by way of which those of any others are found.

    Where distances are straight, these are the medoids themselves.
    """

    measure: Measure
    series: FloatArray
    known: FloatArray  # (series, medoids)

    @classmethod
    def of(cls, measure: Measure, series: FloatArray, distances: FloatArray, clustering: Clustering) -> Landmarks:
        """From series that were clustered by their distances."""
        medoids = clustering.medoids
        if measure.geometry.neighbours is None:
            return cls(measure, series[medoids], np.zeros((len(medoids), len(medoids))))
        return cls(measure, series, distances[:, medoids])

    def to_medoids(self, series: FloatArray, progress: Progress | None = None) -> FloatArray:
        """Distances ``(series, medoids)``, computed in blocks of series."""
        found = np.empty((len(series), self.known.shape[1]))
        geometry, weighting = self.measure.geometry, self.measure.weighting
        for first in range(0, len(series), _BLOCK):
            block = series[first : first + _BLOCK]
            # Landmarks first: the ridge comes from them alone, so a series' answer does not depend on its neighbours.
            matrices = DivergenceMatrices(self.series, block, weighting=weighting)
            divergences = matrices.at(self.measure.bandwidths).T
            straight = geometry.neighbours is None
            answer = geometry.straight(divergences) if straight else geometry.through(divergences, self.known)
            found[first : first + _BLOCK] = answer
            if progress:
                progress(min(first + _BLOCK, len(series)), len(series))
        return found


def cluster_series(
    series: FloatArray,
    k: int,
    measure: Measure,
    *,
    method: Method = "fasterpam",
    starts: int = 1,
    seed: int = 0,
    most_at_once: int = MOST_AT_ONCE,
    progress: Progress | None = None,
) -> tuple[Clustering, Landmarks]:
    """The series around ``k`` of them: exactly up to ``most_at_once`` series, else by :func:`clara`.

    >>> t = np.linspace(0, 6, 50)
    >>> waves = np.vstack([np.sin((1 + i % 2) * t + 0.02 * i) for i in range(20)])
    >>> whole, _ = cluster_series(waves, 2, Measure(Bandwidths("value", 2.0, 1.0)))
    >>> parts, _ = cluster_series(waves, 2, Measure(Bandwidths("value", 2.0, 1.0)), most_at_once=12)
    >>> whole.labels.tolist() in (parts.labels.tolist(), (1 - parts.labels).tolist())
    True
    """
    if len(series) <= max(most_at_once, k):
        distances = measure.among(series)
        clustering = k_medoids(distances, k, method=method, starts=starts, seed=seed)
        return clustering, Landmarks.of(measure, series, distances, clustering)
    size = max(min(_SAMPLE, most_at_once), _SAMPLE_A_CLUSTER * k)
    return clara(series, k, measure, size=size, method=method, starts=starts, seed=seed, progress=progress)


def clara(
    series: FloatArray,
    k: int,
    measure: Measure,
    *,
    size: int,
    samples: int = _SAMPLES,
    method: Method = "fasterpam",
    starts: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Clustering, Landmarks]:
    """k-medoids on random samples of so many series; the medoids with the least loss over all series are kept.

    That is Kaufman and Rousseeuw's CLARA (1990). Paths go along a sample's own series; all others take their first
    step to some of these. Memory is that of one sample's pairs, and of one block's with the sample.
    """
    n, rng = len(series), np.random.default_rng(seed)
    rows = [some_rows(n, size, rng) for _ in range(samples if size < n else 1)]
    steps = -(-n // _BLOCK) + 1  # of a sample: its own pairs, and blocks of series
    best: tuple[Clustering, Landmarks] | None = None
    for done, sample in enumerate(rows):

        def passed(compared: int, total: int, before: int = done * steps + 1) -> None:
            if progress:
                progress(before + ((steps - 1) * compared) // total, steps * len(rows))

        passed(0, 1)
        distances = measure.among(series[sample])
        local = k_medoids(distances, min(k, len(sample)), method=method, starts=starts, seed=seed)
        landmarks = Landmarks.of(measure, series[sample], distances, local)
        to_medoids = landmarks.to_medoids(series, passed)
        labels = np.argmin(to_medoids, axis=1)
        loss = float(to_medoids[np.arange(n), labels].sum())
        if best is None or loss < best[0].loss:
            best = Clustering(sample[local.medoids], labels, loss), landmarks
    assert best is not None
    return best
