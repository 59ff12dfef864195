"""Array types, the numeric thresholds of the divergence with their reasons, memory checks, and seeded choices.

Work that does not fit into memory is refused before it begins. Random choices depend on a seed and on what is chosen
from, never on the order it came in.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stream_ccsd.errors import StreamCcsdError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
AnyArray = NDArray[Any]

MACHINE_EPSILON = float(np.finfo(np.float64).eps)

# The ridge of the symmetric logarithm, relative to the median Gram term. The paper asks for "several orders of
# magnitude below"; ten of them put the ceiling of the divergence at log(1e10), about 23 nats.
RELATIVE_RIDGE = 1e-10

# A bandwidth below this share of the data's spread already picks the nearest point alone; smaller ones only
# overflow. Squared twice it is still a normal number.
SMALLEST_RELATIVE_BANDWIDTH = 1e-75

# Truncation of the Fourier series of the Gaussian: below half a unit in the last place of 1.
FEATURE_TOLERANCE = 1e-16

# More frequencies than this mean a bandwidth so narrow that the direct form is the better choice.
MAX_FREQUENCIES = 4096

# The accuracy of the fast pairwise form for each divergence, in nats. Pairs for which it is not certain are redone
# by the direct form.
PAIRWISE_TOLERANCE = 1e-10

# Working memory of the pairwise form beside its result, in bytes.
PAIRWISE_BLOCK_BYTES = 192 * 2**20

# Bandwidth rules use all pairs up to this many, then a seeded sample of as many.
BANDWIDTH_PAIRS = 200_000

_Parts = TypeVar("_Parts", bound=tuple[Any, ...])


def read_only(parts: _Parts) -> _Parts:
    """The same tuple, its arrays protected: as those of a mapped file are, so that compiled code sees one kind only."""
    for value in parts:
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return parts


def require_memory(size: int, what: str) -> None:
    """Refuse work that does not fit into the memory of this computer.

    Raises
    ------
    StreamCcsdError
        If it takes more than there is.
    """
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not every system says
        return
    if size > there:
        raise StreamCcsdError(
            f"{what} would take about {size / 2**30:,.0f} GiB of memory, and there are {there / 2**30:,.0f}: take fewer"
        )


def shuffled(accounts: Iterable[str], seed: int | np.random.Generator) -> list[str]:
    """Accounts in a random order: its beginning is a random share of them, the rest is the others.

    A generator in place of a seed makes several choices in a row.

    >>> shuffled(["c", "a", "b"], 0) == shuffled({"a", "b", "c"}, 0)
    True
    """
    ordered = sorted(accounts)
    return [ordered[i] for i in np.random.default_rng(seed).permutation(len(ordered)).tolist()]


def some_rows(rows: int, most: int, seed: int | np.random.Generator) -> IntArray:
    """At most ``most`` of the rows 0, 1, 2 …, chosen at random, in their order.

    >>> some_rows(3, 5, 0).tolist()
    [0, 1, 2]
    """
    return np.sort(np.random.default_rng(seed).permutation(rows)[:most])
