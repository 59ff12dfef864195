"""Data sets to cluster: from the UCR archive, or the Cylinder-Bell-Funnel problem made on the spot.

Files have the archive's layout of 2018 or 2015, or the ``.ts`` format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from offline.peers import peer
from offline.published import TABLE_1
from stream_ccsd.clustering.bandwidths import series_array, standardised
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, IntArray

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


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training part to choose settings on and a test part to be scored on, every series standardised."""

    name: str
    train: Labelled
    test: Labelled
    cap: int | None = None  # series a part, if there were more

    @property
    def classes(self) -> int:
        """Number of clusters asked for: the classes of the training part."""
        return len(np.unique(self.train.labels))

    def capped(self, limit: int | None) -> Dataset:
        """At most ``limit`` series a part, classes in proportion.

        The draw is scikit-learn's stratified split with seed 42, as the paper's samples show. Where that refuses, as it
        does for a class with one member, it is one of ours, in which every class keeps a member.
        """
        if limit is None or max(len(self.train), len(self.test)) <= limit:
            return self
        return replace(self, train=_capped(self.train, limit), test=_capped(self.test, limit), cap=limit)

    def paper_capped(self) -> Dataset:
        """The sets that the paper capped, capped as there; others as they are."""
        return self.capped(TABLE_1[self.name].cap if self.name in TABLE_1 else None)

    @property
    def fingerprint(self) -> str:
        """Of everything in it, for caches."""
        digest = hashlib.sha256()
        for part in (self.train, self.test):
            digest.update(np.ascontiguousarray(part.series).tobytes())
            digest.update("\n".join(part.labels.astype(str)).encode())
        return digest.hexdigest()[:16]


def load_dataset(root: Path, name: str) -> Dataset:
    """Both parts from the archive, each series standardised by itself."""
    train, test = (_standardised(load_ucr(root, name, part)) for part in _PARTS)
    return Dataset(name, train, test)


_PARTS: tuple[Part, Part] = ("TRAIN", "TEST")


@dataclass(frozen=True)
class ArchiveSource:
    """A data set of the archive that is loaded when it is its turn; its name is known before."""

    root: Path
    name: str

    def __call__(self) -> Dataset:
        """Load it."""
        return load_dataset(self.root, self.name)


def cylinder_bell_funnel(
    train: int = 30, test: int = 300, length: int = 128, seed: int = 0, name: str = "CBF (generated)"
) -> Dataset:
    """Saito's problem: a plateau, a rise or a fall, at a random time for a random while, in unit noise.

    >>> made = cylinder_bell_funnel(train=6, test=9)
    >>> made.classes, made.test.series.shape
    (3, (9, 128))
    """
    rng = np.random.default_rng(seed)
    parts = []
    for size in (train, test):
        kinds = np.arange(size) % 3
        t = np.arange(length)[None, :]
        begin = rng.integers(length // 8, length // 4, size=(size, 1))
        end = begin + rng.integers(length // 4, 3 * length // 4, size=(size, 1))
        inside = ((t >= begin) & (t <= end)).astype(float)
        rise = np.clip((t - begin) / (end - begin), 0.0, 1.0)
        shape = np.choose(kinds[:, None], [np.ones_like(rise), rise, 1.0 - rise])
        height = 6.0 + rng.normal(size=(size, 1))
        series = height * inside * shape + rng.normal(size=(size, length))
        labels = np.array(["cylinder", "bell", "funnel"])[kinds]
        parts.append(_standardised(Labelled(series, labels)))
    return Dataset(name, parts[0], parts[1])


def _standardised(part: Labelled) -> Labelled:
    return replace(part, series=standardised(part.series))


def _capped(part: Labelled, limit: int) -> Labelled:
    if len(part) <= limit:
        return part
    try:
        kept, _ = peer("sklearn.model_selection").train_test_split(
            range(len(part)), train_size=limit, stratify=part.labels, random_state=42
        )
    except ValueError:
        kept = proportional_rows(part.labels, limit)
    return replace(part, series=part.series[kept], labels=part.labels[kept])


def proportional_rows(labels: AnyArray, limit: int, seed: int = 42) -> IntArray:
    """So many rows, in their order, with classes in proportion but at least one of each, however small it is.

    >>> labels = np.array(["rare", *["usual"] * 9])
    >>> labels[proportional_rows(labels, 4)].tolist()
    ['rare', 'usual', 'usual', 'usual']
    """
    _, members, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if limit < len(sizes):
        raise StreamCcsdError(f"cannot take {limit} series of {len(sizes)} classes: each keeps at least one")
    shares = limit * sizes / len(labels)
    taken = np.maximum(np.floor(shares).astype(np.int64), 1)
    while taken.sum() > limit:  # what was rounded up to one member is taken from the class furthest above its share
        taken[np.argmax(np.where(taken > 1, taken - shares, -np.inf))] -= 1
    while taken.sum() < limit:
        taken[np.argmax(np.where(taken < sizes, shares - taken, -np.inf))] += 1
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(np.flatnonzero(members == kind))[:count] for kind, count in enumerate(taken)]
    return np.sort(np.concatenate(drawn))
