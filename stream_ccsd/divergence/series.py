"""Many series as one table: of equal or unequal lengths, with one or several values a time, and missing values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from stream_ccsd.numerics.arrays import AnyArray, FloatArray


@dataclass(frozen=True, eq=False)
class SeriesTable:
    """``n`` series on one time grid: values ``(n, T, d)``, and which points were observed ``(n, T)``."""

    values: FloatArray
    observed: AnyArray

    @classmethod
    def of(cls, series: ArrayLike | Sequence[ArrayLike]) -> SeriesTable:
        """From an array ``(n, T)`` or ``(n, T, d)``, or a sequence of series of unequal lengths.

        Shorter series end early: their missing points carry no weight, as a NaN anywhere else.

        Raises
        ------
        ValueError
            If there is no series, a value is infinite, or a series has no complete point; it is named.
        """
        if isinstance(series, np.ndarray):
            table = np.asarray(series, dtype=np.float64)
        else:
            rows = [np.asarray(row, dtype=np.float64) for row in series]  # type: ignore[union-attr]
            if not rows:
                raise ValueError("there is no series to compare")
            if len({row.shape[1:] for row in rows}) > 1 or rows[0].ndim == 0:
                raise ValueError("all series must have the same number of values a time")
            table = padded_rows(rows)
        if table.ndim == 2:
            table = table[:, :, None]
        if table.ndim != 3 or 0 in table.shape:
            raise ValueError(f"expected (series, time) or (series, time, dimension), got shape {table.shape}")
        if np.isinf(table).any():
            raise ValueError(f"series {int(np.argwhere(np.isinf(table))[0][0])} holds an infinite value")
        observed: AnyArray = np.logical_not(np.isnan(table).any(axis=2))
        if not observed.any(axis=1).all():
            raise ValueError(f"series {int(np.argmin(observed.any(axis=1)))} has no complete point")
        return cls(np.where(observed[:, :, None], table, 0.0), observed)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def length(self) -> int:
        """Points of the time grid."""
        return int(self.values.shape[1])

    @property
    def dimensions(self) -> int:
        """Values a time."""
        return int(self.values.shape[2])

    @property
    def complete(self) -> bool:
        """Whether no value is missing."""
        return bool(self.observed.all())

    def points(self) -> FloatArray:
        """All observed points of all series, one under the other."""
        rows: FloatArray = self.values[self.observed]
        return rows

    def padded(self, length: int) -> SeriesTable:
        """The same series on a longer grid."""
        extra = length - self.length
        return SeriesTable(
            np.pad(self.values, ((0, 0), (0, extra), (0, 0))), np.pad(self.observed, ((0, 0), (0, extra)))
        )


def padded_rows(rows: Sequence[FloatArray]) -> FloatArray:
    """Series of unequal lengths as one array, NaN behind the end of the shorter ones."""
    table = np.full((len(rows), max(len(row) for row in rows), *rows[0].shape[1:]), np.nan)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return table
