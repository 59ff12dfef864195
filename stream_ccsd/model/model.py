"""A fitted model: everything the engine compares with, as a directory.

``model.json`` is for people and checks: settings, bandwidths, threshold, calibration, fingerprint, and the sizes and
hashes of the other files. These are Arrow files: ``windows.arrow``, ``laws.arrow`` (the densities), ``names.arrow``,
``accounts.arrow`` (the accounts it was fitted on) and, after learning, ``learnt.arrow``. What was loaded is kept in
memory, because a mapped file can be changed or cut short under a running process by anybody who may write it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from stream_ccsd.account import StateSizes
from stream_ccsd.calendar import Calendar
from stream_ccsd.divergence.search.index import Index, complete_index
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.evidence.densities import Densities
from stream_ccsd.evidence.supervised import Supervised
from stream_ccsd.model.calibration import Tail
from stream_ccsd.model.checks import (
    ACCOUNTS,
    LAWS,
    LEARNT,
    NAMES,
    WINDOWS,
    ContentsError,
    check_description,
    check_index,
    check_laws,
    check_learnt,
    check_tail,
    read_accounts,
    read_names,
    read_part,
)
from stream_ccsd.model.codes import Codes
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, read_only
from stream_ccsd.scores import COMPILED, FUSED, TAKEOVER
from stream_ccsd.settings import Settings, SettingsError

FORMAT = "stream-ccsd model"
FORMAT_VERSION = 5
_FILES = (WINDOWS, LAWS, NAMES, ACCOUNTS)
# Errors of numpy, Arrow and Python for unexpected contents; none of them is a fault of this code.
_FAULTS = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, OSError, pa.ArrowException)
# How long a model is good for, unless settings say otherwise: in days, or in times the span of its transactions.
_DAYS, _SPANS = 3652.0, 1000.0


class ModelError(StreamCcsdError):
    """A model directory cannot be used; says which file and why."""


@dataclass(frozen=True, eq=False)
class Model:
    """A fitted model, its settings, and where it came from."""

    settings: Settings
    index: Index
    laws: Densities
    tails: dict[str, Tail]
    sigma_y: float
    takeover_share: float  # of the alert budget
    threshold: float
    fingerprint: str
    facts: dict[str, Any] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict, repr=False)
    accounts: tuple[str, ...] = field(default=(), repr=False)  # all it was fitted or calibrated on
    calendar: Calendar = field(default_factory=Calendar)
    learnt: Supervised | None = None  # from verdicts; None: it neither learns nor records inputs to learn from

    def __post_init__(self) -> None:
        """Make arrays read only: compiled code would be compiled again for arrays that are not."""
        for parts in (self.laws, *self.tails.values(), *(() if self.learnt is None else (self.learnt,))):
            read_only(parts)

    @cached_property
    def version(self) -> str:
        """A short name that changes with anything that can change a score or an alert."""
        described = json.dumps(self._description(), sort_keys=True).encode()
        return hashlib.blake2b(described, digest_size=6).hexdigest()

    @cached_property
    def codes(self) -> Codes:
        """Categories and merchants as the model's arrays hold them."""
        return Codes(self.names)

    @property
    def state_sizes(self) -> StateSizes:
        """Of the account states that go with it."""
        return state_sizes_of(self.settings)

    def budget_offsets(self) -> FloatArray:
        """Of each score, -log of its share of the alert budget, where alerts are on the rarest of several."""
        offsets = np.zeros(len(COMPILED))
        if self.settings.alert_on == FUSED:
            # The others that join share what takeover leaves in equal parts: together they have the budget, no more.
            others = [place for place, score in enumerate(COMPILED) if score.joins_alert and place != TAKEOVER]
            shares = {place: (1.0 - self.takeover_share) / len(others) for place in others}
            for place, share in (shares | {TAKEOVER: self.takeover_share}).items():
                offsets[place] = -math.log(max(share, 1e-300))
        return offsets

    @property
    def latest_time(self) -> float:
        """The latest time of an event of a stream that this model is for: a later one is a mistake.

        One mistaken time would make all that follows too late. By default ten years after the newest transaction it was
        fitted on; where time has no unit, a thousand times as long after it as those lie apart, or as far from it as it
        is from 0, whichever is later.
        """
        first, last = self.facts.get("first_time"), self.facts.get("last_time")
        if first is None or last is None:
            return math.inf
        if self.settings.horizon is not None:
            return float(last + self.settings.horizon)
        years = self.calendar.of_days(_DAYS)
        reach = max(_SPANS * (last - first), abs(last)) if years is None else years
        return float(last + reach) if reach else math.inf

    def name(self, code: int) -> str:
        """The text behind a category or merchant code, as far as the model has seen it."""
        return self.names.get(int(code), f"unknown ({int(code):08x})")

    def save(self, directory: str | Path, like: Path | None = None) -> Path:
        """Write the model; a directory that exists is replaced only once the new one is complete.

        Files that are the same to the byte as those of the model ``like`` are hard links to them: each model update
        makes a model, and most of it stays as it was fitted.

        Raises
        ------
        ModelError
            If the place is taken by something that is not a model, or cannot be written.
        """
        target = Path(directory).resolve()  # of a link, the place it leads to: the link stays
        if target.exists() and not (target / "model.json").is_file():
            raise ModelError(f"{target} exists and is not a model: name another place")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as temporary:
                fresh = Path(temporary) / "model"
                fresh.mkdir()
                files = {}
                for name, table in self._tables().items():
                    with (fresh / name).open("wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                        writer.write_table(table, max_chunksize=max(1, len(table)))
                    digest = _sha256(fresh / name)
                    files[name] = {"bytes": (fresh / name).stat().st_size, "sha256": digest}
                    if like is not None:
                        _share(fresh / name, like / name, digest)
                description = {**self._description(), "version": self.version, "files": files}
                (fresh / "model.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
                _swap(fresh, target, Path(temporary) / "old")
        except OSError as error:
            raise ModelError(f"cannot write the model to {target}: {error.strerror or error}") from error
        return target

    @classmethod
    def load(cls, directory: str | Path) -> Model:
        """Read a model that :meth:`save` wrote.

        Raises
        ------
        ModelError
            If a file is missing, cut short, altered or foreign, of another version, or does not hold what it must,
            whatever its hash (``model.checks``). The error names the file, and what in it is wrong.
        """
        place = Path(directory)
        description = describe_model(place)
        wanted = _FILES if description.get("learnt") is None else (*_FILES, LEARNT)
        files = {name: _verified(place / name, description["files"].get(name)) for name in wanted}
        try:
            model = cls._of(files, description)
            unchanged = model.version == description.get("version")
        except ContentsError as error:
            raise _incomplete(place, str(error)) from error
        except (*_FAULTS, SettingsError) as error:
            raise _incomplete(place, repr(error)) from error
        if not unchanged:
            raise ModelError(
                f"{place / 'model.json'} was altered after the model was saved: its version does not match"
            )
        return model

    @classmethod
    def _of(cls, files: dict[str, pa.Buffer], description: dict[str, Any]) -> Model:
        """The model of these files; every array and number is checked before anything is made of it."""
        settings, calendar = Settings.from_dict(description["settings"]), Calendar.from_dict(description["calendar"])
        index = read_part(WINDOWS, files[WINDOWS], description["index"])
        check_index(index, settings, description["sigma_y"])
        laws = read_part(LAWS, files[LAWS], description["laws"])
        check_laws(laws, settings, calendar)
        learnt = None
        if LEARNT in files:
            taught = read_part(LEARNT, files[LEARNT], description["learnt"])
            check_learnt(taught, settings)
            learnt = Supervised(**taught)
        return cls(
            settings=settings,
            index=complete_index(**index),
            laws=Densities(**laws),
            tails=_tails(description["tails"]),
            sigma_y=description["sigma_y"],
            takeover_share=description["takeover_share"],
            threshold=description["threshold"],
            fingerprint=description["fingerprint"],
            facts=description["facts"],
            names=read_names(files[NAMES]),
            accounts=read_accounts(files[ACCOUNTS]),
            calendar=calendar,
            learnt=learnt,
        )

    def _description(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "fingerprint": self.fingerprint,
            "settings": self.settings.to_dict(),
            "sigma_x": self.index.sigma_x,
            "sigma_y": self.sigma_y,
            "takeover_share": self.takeover_share,
            "threshold": self.threshold,
            "facts": self.facts,
            "calendar": self.calendar.to_dict(),
            "tails": {name: _plain(tail) for name, tail in self.tails.items()},
            "index": _scalars(self.index),
            "laws": _scalars(self.laws),
            "learnt": None if self.learnt is None else {**_scalars(self.learnt), "digest": _digest(self.learnt)},
        }

    def _tables(self) -> dict[str, pa.Table]:
        codes = sorted(self.names)
        names = {"code": pa.array(codes, pa.uint32()), "name": _bytes(self.names[c] for c in codes)}
        tables = {
            WINDOWS: _to_table(self.index),
            LAWS: _to_table(self.laws),
            NAMES: pa.table(names),
            ACCOUNTS: pa.table({"account": _bytes(self.accounts)}),
        }
        return tables if self.learnt is None else {**tables, LEARNT: _to_table(self.learnt)}


def state_sizes_of(settings: Settings) -> StateSizes:
    """Of account states under these settings."""
    named = sum(field.kind == "category" for field in settings.declared)
    return StateSizes(settings.window, settings.local_history, named)


def _bytes(texts: Iterable[str]) -> pa.Array:
    """As bytes, because texts made by hand may hold what is no UTF-8: so they come back as they were."""
    return pa.array([text.encode("utf-8", "surrogatepass") for text in texts], pa.binary())


def describe_model(place: Path) -> dict[str, Any]:
    """The contents of a model's ``model.json``, without loading the rest.

    Raises
    ------
    ModelError
        If there is none, or it is not one of this version.
    """
    path = place / "model.json"
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"no model at {place}: there is no model.json. Make one with `fit`.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise ModelError(f"{path} does not describe a {FORMAT}")
    if description.get("format_version") != FORMAT_VERSION:
        found = description.get("format_version")
        raise ModelError(f"{path} has format version {found}, this program reads {FORMAT_VERSION}. Fit it again.")
    if not isinstance(description.get("files"), dict):
        raise ModelError(f"{path} is incomplete: it lists no files")
    try:
        check_description(description)
    except ContentsError as error:
        raise _incomplete(place, str(error)) from error
    return description


def _incomplete(place: Path, fault: str) -> ModelError:
    return ModelError(f"{place} is not a complete model of this version: {fault}. Fit it again.")


def _swap(fresh: Path, target: Path, old: Path) -> None:
    """Put the fresh directory in the target's place; if that fails, the old one is back where it was."""
    if not target.exists():
        os.replace(fresh, target)
        return
    os.replace(target, old)
    try:
        os.replace(fresh, target)
    except OSError:
        os.replace(old, target)
        raise


def _verified(path: Path, expected: Any) -> pa.Buffer:
    """The bytes of a file, read once, so that the bytes that were checked are those that are used."""
    if not isinstance(expected, dict):
        raise ModelError(f"{path.parent / 'model.json'} says nothing of {path.name}")
    if not path.is_file():
        raise ModelError(f"the model is incomplete: {path} is missing")
    try:
        with pa.OSFile(str(path)) as file:
            content = file.read_buffer()
    except (OSError, pa.ArrowException) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if content.size != expected.get("bytes"):
        raise ModelError(
            f"{path} has {content.size} bytes, model.json says {expected.get('bytes')}: it is cut short or foreign"
        )
    if hashlib.sha256(content).hexdigest() != expected.get("sha256"):
        raise ModelError(f"{path} is damaged or foreign: its hash is not the one in model.json")
    return content


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _share(fresh: Path, older: Path, sha256: str) -> None:
    """Make a file another name of an older one, if that has its bytes now, whatever its model.json says."""
    second = fresh.with_name(f".{fresh.name}.link")
    try:
        if older.stat().st_size == fresh.stat().st_size and _sha256(older) == sha256:
            os.link(older, second)
            os.replace(second, fresh)
    except OSError:  # none there, or no links in this place: it stays a copy
        second.unlink(missing_ok=True)


def _to_table(part: NamedTuple) -> pa.Table:
    """Arrays of one NamedTuple as columns of a table with one row: each cell a list, so lengths may differ."""
    columns = {}
    for name, value in part._asdict().items():
        if isinstance(value, np.ndarray):
            flat = pa.array(np.ascontiguousarray(value).ravel())
            columns[name] = pa.LargeListArray.from_arrays(pa.array([0, len(flat)], pa.int64()), flat)
    return pa.table(columns)


def _scalars(part: NamedTuple) -> dict[str, Any]:
    """What is no array, and the shapes of those; a part within the part follows from the rest and is not kept."""
    items = part._asdict().items()
    return {
        "values": {name: value for name, value in items if not isinstance(value, (np.ndarray, tuple))},
        "shapes": {name: list(value.shape) for name, value in items if isinstance(value, np.ndarray)},
    }


def _digest(part: NamedTuple) -> str:
    """A hash of all its arrays. Densities follow from the fit, which has a fingerprint; what was learnt does not."""
    digest = hashlib.blake2b(digest_size=16)
    for value in part:
        if isinstance(value, np.ndarray):
            digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def _plain(tail: Tail) -> dict[str, Any]:
    return {n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in tail._asdict().items()}


def _tails(described: dict[str, Any]) -> dict[str, Tail]:
    """Of every score the model was fitted with; the built-in ones must be there."""
    tails = {name: _tail(name, values) for name, values in described.items()}
    missing = {score.name for score in COMPILED} - tails.keys()
    if missing:
        raise KeyError(", ".join(sorted(missing)))
    return tails


def _tail(name: str, values: dict[str, Any]) -> Tail:
    knots: AnyArray = np.array(values["knots"], dtype=float)
    scalars = (float(values[scalar]) for scalar in ("beyond", "shape", "scale"))
    tail = read_only(Tail(knots, np.array(values["rarity"], dtype=float), *scalars))
    check_tail(name, tail)
    return tail
