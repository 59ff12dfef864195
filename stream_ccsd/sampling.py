"""Random choices that depend on a seed and on what is chosen from, never on the order it came in."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stream_ccsd.numeric import IntArray


def shuffled(accounts: Iterable[str], seed: int | np.random.Generator) -> list[str]:
    """Accounts in a random order: its beginning is a random share of them, the rest is the others.

    A generator in place of a seed makes several choices in a row.

    >>> shuffled(["c", "a", "b"], 0) == shuffled({"a", "b", "c"}, 0)
    True
    """
    ordered = sorted(accounts)
    return [ordered[i] for i in np.random.default_rng(seed).permutation(len(ordered)).tolist()]


def some_rows(rows: int, most: int, seed: int | np.random.Generator) -> IntArray:
    """At most so many of the rows 0, 1, 2 …, chosen at random, in their order.

    >>> some_rows(3, 5, 0).tolist()
    [0, 1, 2]
    """
    return np.sort(np.random.default_rng(seed).permutation(rows)[:most])
