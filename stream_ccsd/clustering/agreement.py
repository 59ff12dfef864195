"""How far partitions of the same rows agree, whatever their clusters are called."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from stream_ccsd.numeric import FloatArray


def adjusted_rand(partitions: ArrayLike) -> FloatArray:
    """The adjusted Rand index (Hubert and Arabie) between all pairs of partitions, one a row of cluster numbers.

    1 is the same partition, 0 what chance gives; two partitions of which none tells any rows apart agree.

    >>> adjusted_rand([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]])
    array([[ 1. ,  1. , -0.5],
           [ 1. ,  1. , -0.5],
           [-0.5, -0.5,  1. ]])
    """
    table = np.asarray(partitions)
    count, n = table.shape
    k = int(table.max()) + 1
    # Sums of ones: exact in single precision for any number of rows that a partition is compared on.
    members = (table[:, None, :] == np.arange(k)[:, None]).reshape(count * k, n).astype(np.float32)
    together = np.empty((count, count))
    for row in range(count):  # all tables of one partition against the others at once; all of all would be too large
        counts = (members[row * k : (row + 1) * k] @ members.T).astype(np.float64)
        together[row] = (np.square(counts).reshape(k, count, k).sum(axis=(0, 2)) - n) / 2
    own = together.diagonal()
    chance = own[:, None] * own / max(n * (n - 1) / 2, 1.0)
    most = (own[:, None] + own) / 2
    same = most == chance
    index: FloatArray = np.where(same, 1.0, (together - chance) / np.where(same, 1.0, most - chance))
    return index
