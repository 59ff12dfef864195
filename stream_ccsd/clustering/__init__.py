"""Clusters of series around medoids, by their divergence or by any distance given as a matrix.

``medoids`` finds k medoids in a distance matrix, and turns divergences into distances. ``bandwidths`` says what of a
series is compared (its value, its slope, or both), and makes the grid of bandwidths to choose from. ``selection``
chooses among them without labels. ``series`` clusters any number of series. ``estimator`` puts all of it behind
scikit-learn's ``fit`` and ``predict``.
"""

from stream_ccsd.clustering.bandwidths import Output, slope, standardised
from stream_ccsd.clustering.medoids import Clustering, k_medoids

__all__ = ["Clustering", "Output", "k_medoids", "slope", "standardised"]
