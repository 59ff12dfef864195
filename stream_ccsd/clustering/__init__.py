"""Clusters of series around medoids, by their divergence or by any distance given as a matrix.

``medoids`` finds k medoids in a distance matrix; ``geometry`` makes distances of divergences; ``outputs`` says what
of a series is compared (its value, its slope, or both); ``bandwidths`` are the grid to choose among, and
``selection`` chooses without labels, by how partitions agree (``agreement``); ``series`` clusters any number of them;
``estimator`` puts all that behind scikit-learn's fit and predict.
"""

from stream_ccsd.clustering.bandwidths import Output, slope, standardised
from stream_ccsd.clustering.medoids import Clustering, k_medoids

__all__ = ["Clustering", "Output", "k_medoids", "slope", "standardised"]
