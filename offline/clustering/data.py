"""Data sets to cluster: from the archive, or the Cylinder-Bell-Funnel problem made on the spot."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from offline.bench.peers import peer
from offline.published import TABLE_1
from offline.ucr import Labelled, Part, load_ucr
from stream_ccsd.clustering.outputs import standardised
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.numeric import AnyArray, IntArray


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training part to choose settings on and a test part to be judged by, every series standardised."""

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
