"""Clustering of series behind scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from stream_ccsd.clustering.bandwidths import (
    TAUS,
    Bandwidths,
    Output,
    bandwidth_grid,
    check_series,
    series_array,
    standardised,
)
from stream_ccsd.clustering.medoids import NEIGHBOURS, Geometry, Method, k_medoids
from stream_ccsd.clustering.selection import DEFAULT_OUTPUTS, Criterion, select_bandwidths
from stream_ccsd.clustering.series import MOST_AT_ONCE, Landmarks, Measure, cluster_series
from stream_ccsd.divergence.kernels import Weighting
from stream_ccsd.numerics.arrays import FloatArray, IntArray

try:
    from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
except ImportError as error:  # pragma: no cover - the message is for people without the extra
    raise ImportError("the estimator needs scikit-learn: pip install 'stream-ccsd[cluster]'") from error

Series = ArrayLike | Sequence[ArrayLike]


class DivergenceKMedoids(ClusterMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """k-medoids of series under the conditional Cauchy-Schwarz divergence, or under distances given as a matrix.

    Parameters
    ----------
    n_clusters
        How many clusters.
    metric
        ``ccsd``, or ``precomputed``: ``fit`` takes a square matrix of distances, ``predict`` the distances of new
        rows to those of the fit.
    output
        What is compared: ``value``, ``slope``, ``both`` (the two divergences added), ``vector`` (both as one vector
        output), or ``auto``: slope or both, chosen as bandwidths are.
    tau
        Bandwidth in time: steps, or up to 1 a share of the length; None: chosen without labels.
    sigma
        Bandwidth of what is compared, a pair for ``both`` and ``vector``; None: chosen likewise.
    criterion
        What bandwidths are chosen by: ``agreement``, the partition that agrees most with those at all other bandwidths,
        ``silhouette``, the clusters that are separated the most, or ``both``, the sum of its ranks by the two.
    root
        Cluster by the square root of the divergence, which near 0 is a distance where the divergence is a square.
    neighbours
        Measure distances along paths over so many nearest neighbours, so that series of one kind that differ gradually
        (by a shift in time) stay together; None: straight. Goes with precomputed distances, too.
    weighting
        Of the estimator, ``one-sided`` (the paper's clustering) or ``two-sided`` (its Eq. 3).
    standardise
        Give every series mean 0 and deviation 1 first.
    method
        ``fasterpam`` or ``alternating``.
    n_init
        Random starts; the best is kept.
    most_at_once
        Up to so many series all pairs are compared, whose matrix takes the square of that; of more, medoids are sought
        on samples (CLARA), and all series compared with those.
    random_state
        Of those starts and samples, and of the sample that bandwidths are chosen on when there are many series.

    Attributes
    ----------
    labels_, medoid_indices_, inertia_
        The cluster of every series, the series in their middles, the summed distance to them.
    cluster_centers_
        The medoids themselves, as given.
    bandwidths_
        What was compared, and the bandwidths used (None if precomputed).

    Examples
    --------
    >>> t = np.linspace(0, 6, 50)
    >>> series = np.vstack([np.sin(t + 0.1 * i) for i in range(5)] + [np.sin(2 * t + 0.1 * i) for i in range(5)])
    >>> model = DivergenceKMedoids(n_clusters=2, random_state=0).fit(series)
    >>> model.predict(np.vstack([np.sin(t + 0.25), np.sin(2 * t + 0.25)])).tolist() == model.labels_[[2, 7]].tolist()
    True
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        metric: Literal["ccsd", "precomputed"] = "ccsd",
        output: Output | Literal["auto"] = "auto",
        tau: float | None = None,
        sigma: float | tuple[float, float] | None = None,
        criterion: Criterion = "agreement",
        root: bool = True,
        neighbours: int | None = NEIGHBOURS,
        weighting: Weighting = "one-sided",
        standardise: bool = True,
        method: Method = "fasterpam",
        n_init: int = 10,
        most_at_once: int = MOST_AT_ONCE,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.metric = metric
        self.output = output
        self.tau = tau
        self.sigma = sigma
        self.criterion = criterion
        self.root = root
        self.neighbours = neighbours
        self.weighting = weighting
        self.standardise = standardise
        self.method = method
        self.n_init = n_init
        self.most_at_once = most_at_once
        self.random_state = random_state

    def fit(self, X: Series, y: Any = None) -> DivergenceKMedoids:
        """Find the medoids; ``X`` is an array ``(series, time)``, a sequence of series, or a matrix of distances."""
        del y
        if self.metric not in ("ccsd", "precomputed"):
            raise ValueError(f"metric must be ccsd or precomputed, got {self.metric!r}")
        table = self._table(X, reset=True)
        if not 1 <= self.n_clusters <= len(table):
            raise ValueError(f"n_clusters={self.n_clusters} must lie between 1 and n_samples={len(table)}")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.bandwidths_: Bandwidths | None = None
        how: dict[str, Any] = {"method": self.method, "starts": self.n_init, "seed": seed}
        self._landmarks: Landmarks | None = None
        if self.metric == "precomputed":
            distances = self._geometry().of(table)
            clustering = k_medoids(distances, self.n_clusters, **how)
            self._known: FloatArray = distances[:, clustering.medoids]
        else:
            compared = self._prepared(table)
            self.bandwidths_ = self._bandwidths(compared, seed)
            measure = Measure(self.bandwidths_, self.weighting, self._geometry())
            clustering, self._landmarks = cluster_series(
                compared, self.n_clusters, measure, most_at_once=self.most_at_once, **how
            )
        self.medoid_indices_: IntArray = clustering.medoids
        self.labels_: IntArray = clustering.labels
        self.inertia_ = clustering.loss
        self.cluster_centers_ = None if self.metric == "precomputed" else table[clustering.medoids]
        return self

    def transform(self, X: Series) -> FloatArray:
        """Distances ``(series, clusters)`` to the medoids."""
        check_is_fitted(self)
        table = self._table(X, reset=False)
        if self._landmarks is not None:
            return self._landmarks.to_medoids(self._prepared(table))
        if self.neighbours is None:
            return table[:, self.medoid_indices_]
        return self._geometry().through(table, self._known)

    def predict(self, X: Series) -> IntArray:
        """The nearest medoid's cluster for each series."""
        return np.argmin(self.transform(X), axis=1)

    def _geometry(self) -> Geometry:
        """Of divergences; distances that were computed elsewhere are no squares."""
        if self.neighbours is not None and self.neighbours < 1:
            raise ValueError(f"neighbours must be at least 1, or None, got {self.neighbours}")
        return Geometry(self.root and self.metric == "ccsd", self.neighbours)

    def _prepared(self, series: FloatArray) -> FloatArray:
        return standardised(series) if self.standardise else series

    def _bandwidths(self, series: FloatArray, seed: int) -> Bandwidths:
        outputs = DEFAULT_OUTPUTS if self.output == "auto" else (self.output,)
        if self.tau is not None and self.sigma is not None:
            return self._given(self.tau)
        if self.sigma is not None:
            grid = [self._given(tau) for tau in TAUS]
        else:
            grid = bandwidth_grid(series, outputs, TAUS if self.tau is None else (self.tau,))
        return select_bandwidths(
            series,
            self.n_clusters,
            weighting=self.weighting,
            grid=grid,
            criterion=self.criterion,
            geometry=self._geometry(),
            starts=min(3, self.n_init),
            seed=seed,
        ).bandwidths

    def _given(self, tau: float) -> Bandwidths:
        sigmas = tuple(np.atleast_1d(np.asarray(self.sigma, dtype=float)).tolist())
        wanted = 2 if self.output in ("both", "vector") else 1
        if self.output == "auto" or len(sigmas) != wanted:
            raise ValueError(
                f"with sigma={self.sigma!r} name an output: value or slope take one sigma, both and vector take two"
            )
        return Bandwidths(self.output, tau, *((None, *sigmas) if self.output == "slope" else sigmas))

    def _table(self, X: Series, reset: bool) -> FloatArray:
        if self.metric == "ccsd" and isinstance(X, list | tuple) and _is_sequence_of_series(X):
            table = check_series(series_array(X))
            if reset:
                self.n_features_in_ = table.shape[1]
            return table
        finite = "allow-nan" if self.metric == "ccsd" else True
        table = validate_data(self, X, dtype=np.float64, ensure_all_finite=finite, reset=reset)
        return check_series(np.asarray(table))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.metric == "ccsd"
        tags.input_tags.pairwise = self.metric == "precomputed"
        return tags


def _is_sequence_of_series(X: Any) -> bool:
    """Arrays of any lengths, one a series; lists of numbers only where their lengths differ."""
    return all(isinstance(row, np.ndarray) and row.ndim == 1 for row in X) or len({np.size(row) for row in X}) > 1
