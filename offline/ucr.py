"""The UCR archive's files: one series a line, its label first, tab-separated."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.numeric import FloatArray


def load_ucr(root: Path, name: str, split: Literal["TRAIN", "TEST"]) -> tuple[FloatArray, Any]:
    """Series ``(n, T)`` and labels ``(n,)`` of one split in the 2018 layout, ``root/Name/Name_SPLIT.tsv``."""
    path = root / name / f"{name}_{split}.tsv"
    try:
        table = np.loadtxt(path, delimiter="\t", ndmin=2)
    except OSError as error:
        raise StreamCcsdError(f"no UCR data at {path}: --data must name the folder that holds {name}/") from error
    except ValueError as error:
        raise StreamCcsdError(f"{path} is not a tab-separated table of numbers: {error}") from error
    return table[:, 1:], table[:, 0].astype(int)


def z_scored(series: FloatArray) -> FloatArray:
    """Each series with mean 0 and deviation 1; a constant one becomes 0."""
    deviation = series.std(axis=1, keepdims=True)
    return (series - series.mean(axis=1, keepdims=True)) / np.where(deviation > 0, deviation, 1.0)
