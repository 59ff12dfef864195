"""Labelled series from files: the UCR archive's layouts of 2018 and 2015, and the ``.ts`` format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from stream_ccsd.clustering.outputs import series_array
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.numeric import AnyArray, FloatArray

Part = Literal["TRAIN", "TEST"]

# In the order they are looked for; the last is the archive of 2015, whose files carry no ending.
_ENDINGS = (".tsv", ".ts", ".txt", "")
_MISSING = {"?", "nan", "na", ""}


@dataclass(frozen=True, eq=False)
class Labelled:
    """Series ``(n, T)``, NaN where one has no value, and the class of each: whole numbers, else text."""

    series: FloatArray
    labels: AnyArray

    def __len__(self) -> int:
        return len(self.series)


def dataset_names(root: Path) -> list[str]:
    """Folders below ``root`` that hold both parts of a data set, in order of name."""
    folders = sorted(p.name for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
    return [name for name in folders if _find(root, name, "TRAIN") and _find(root, name, "TEST")]


def load_ucr(root: Path, name: str, part: Part) -> Labelled:
    """One part of a data set: ``root/Name/Name_PART`` with ``.tsv``, ``.ts``, ``.txt`` or no ending."""
    path = _find(root, name, part)
    if path is None:
        raise StreamCcsdError(
            f"no {part} part of {name} in {root}: expected {name}/{name}_{part}.tsv (or .ts, .txt); "
            "--data must name the folder that holds the data sets"
        )
    return read_series(path)


def read_series(path: Path) -> Labelled:
    """Labelled series of one file; unequal lengths and missing values (``NaN``, ``?``) are kept as NaN."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StreamCcsdError(f"cannot read {path}: {error}") from error
    split = _ts_rows if path.suffix == ".ts" else _label_first_rows
    rows, labels = [], []
    for number, label, fields in split(path, lines):
        rows.append(_numbers(path, number, fields))
        labels.append(label.strip())
    if not rows:
        raise StreamCcsdError(f"{path} holds no series")
    series = series_array(rows)
    while series.shape[1] > 1 and np.isnan(series[:, -1]).all():  # padding of all series alike
        series = series[:, :-1]
    empty = np.flatnonzero(np.isnan(series).all(axis=1))
    if len(empty):
        raise StreamCcsdError(f"{path}: series {int(empty[0]) + 1} has no value at all")
    return Labelled(series, _classes(labels))


def _find(root: Path, name: str, part: Part) -> Path | None:
    places = (root / name / f"{name}_{part}{ending}" for ending in _ENDINGS)
    return next((p for p in places if p.is_file()), None)


def _label_first_rows(path: Path, lines: list[str]) -> Iterator[tuple[int, str, list[str]]]:
    del path
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        # Tabs and commas part fields that may be empty; spaces come in runs.
        mark = next((m for m in ("\t", ",") if m in line), None)
        fields = line.split(mark)
        yield number, fields[0], fields[1:]


def _ts_rows(path: Path, lines: list[str]) -> Iterator[tuple[int, str, list[str]]]:
    in_data = False
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if not line or line.startswith(("#", "%")):
            continue
        if not in_data:
            word, _, rest = line.lower().partition(" ")
            if word == "@classlabel" and not rest.strip().startswith("true"):
                raise StreamCcsdError(f"{path}: line {number}: the series have no classes to compare clusters with")
            if word == "@timestamps" and rest.strip() == "true":
                raise StreamCcsdError(f"{path}: line {number}: series with time stamps are not read")
            in_data = word == "@data"
            continue
        parts = line.split(":")
        if len(parts) != 2:
            raise StreamCcsdError(
                f"{path}: line {number}: expected one dimension and a class, VALUES:CLASS, got {len(parts)} parts"
            )
        yield number, parts[1], parts[0].split(",")


def _numbers(path: Path, number: int, fields: list[str]) -> FloatArray:
    try:
        values = np.array([np.nan if f.strip().lower() in _MISSING else float(f) for f in fields])
    except ValueError as error:
        raise StreamCcsdError(f"{path}: line {number}: {error}") from error
    if np.isinf(values).any():
        raise StreamCcsdError(f"{path}: line {number}: a value is infinite")
    return values


def _classes(labels: list[str]) -> AnyArray:
    """``1.0000000e+00`` and ``1`` are one class. Numbers keep their order, which a seeded split depends on."""
    try:
        numbers = np.array([float(label) for label in labels])
    except ValueError:
        return np.array(labels)
    return numbers.astype(np.int64) if np.all(numbers == np.floor(numbers)) else np.array(labels)
