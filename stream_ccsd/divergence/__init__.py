"""The conditional Cauchy-Schwarz divergence (C-CSD) between two conditional distributions ``p(y|x)`` and ``q(y|x)``.

Each distribution is known from points ``(x_i, y_i)``. A Gaussian on the conditions weights the points around a
reference point, and a kernel on the outputs says how similar two outputs are (``kernels``). Three weighted sums of that
similarity, within p, within q and across, give the divergence (``estimator``). All pairs of many series become one
matrix product (``pairwise``), because the Gaussian is a short cosine sum (``fourier``).
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
