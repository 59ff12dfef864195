"""The conditional Cauchy-Schwarz divergence (C-CSD): how far two conditional laws ``p(y|x)`` and ``q(y|x)`` lie apart.

Each law is known from points ``(x_i, y_i)``. Around a reference point, a Gaussian on the conditions says which
points speak (``weights``); a kernel on the outputs says how alike two outputs are (``kernels``); three weighted sums
of that likeness, within p, within q and across, give the divergence (``estimator``). All pairs of many series become
one matrix product (``pairwise``) because the Gaussian is a short cosine sum (``fourier``).
"""

from stream_ccsd.divergence.embedding import cut_spectrum, effective_rank
from stream_ccsd.divergence.estimator import GramTerms, Sample, conditional_divergence, gram_terms
from stream_ccsd.divergence.fourier import FourierFeatures, TooManyFrequenciesError
from stream_ccsd.divergence.kernels import (
    OutputKernel,
    condition_weights,
    iqr_bandwidth,
    median_bandwidth,
    pair_weights,
    time_bandwidth,
)
from stream_ccsd.divergence.pairwise import PairwiseDivergence, pairwise_divergence

__all__ = [
    "FourierFeatures",
    "GramTerms",
    "OutputKernel",
    "PairwiseDivergence",
    "Sample",
    "TooManyFrequenciesError",
    "condition_weights",
    "conditional_divergence",
    "cut_spectrum",
    "effective_rank",
    "gram_terms",
    "iqr_bandwidth",
    "median_bandwidth",
    "pair_weights",
    "pairwise_divergence",
    "time_bandwidth",
]
