"""The model registry: a folder of model versions, each a model directory of its own, one of them in use.

The newest version is in use unless somebody pinned another. ``current.json`` holds what was pinned, by whom and when. A
version is a folder that is there as a whole or not at all, and never changes. So a process that is killed never leaves
a registry without a model, or with half of one, and readers need no lock.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import re
import shutil
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stream_ccsd.files import write_whole
from stream_ccsd.model.model import Model, ModelError, describe_model
from stream_ccsd.transaction import MAX_NUMBER

POINTER = "current.json"
_FORMAT = "stream-ccsd versions"
_FORMAT_VERSION = 1
_NAME = re.compile(r"(\d{4,})-([0-9a-f]+)")
_UNFINISHED = re.compile(rf"\.{_NAME.pattern}\..*")  # as a model is written before it has its name


@dataclass(frozen=True)
class VersionChoice:
    """The pinned version or None, and the history of such choices, in order."""

    pinned: str | None = None
    history: tuple[dict[str, Any], ...] = ()


class Registry:
    """Model versions in a folder, the oldest first; a folder that is not there yet holds none."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._moments: dict[str, float | None] = {}  # versions never change

    def names(self) -> list[str]:
        """All versions that are whole, the oldest first: ``0007-<version>``, in the order they were added.

        A model directory of another name counts as older than those; a name that begins with a dot is not whole.
        """
        try:
            found = [place.name for place in self.folder.iterdir() if os.path.isfile(place / "model.json")]
        except (FileNotFoundError, NotADirectoryError, ValueError):  # the latter of a name with a zero byte
            return []
        except OSError as error:
            raise ModelError(
                f"the model versions in {self.folder} cannot be read: {error.strerror or error}"
            ) from error
        return sorted((name for name in found if not name.startswith(".")), key=lambda name: (_number(name), name))

    def current(self) -> str | None:
        """The version in use: the pinned one, else the newest; None where there is none.

        Raises
        ------
        ModelError
            If the pinned one is not there any more, or it is unknown which it was.
        """
        pinned, names = self.choice().pinned, self.names()
        if pinned is None:
            return names[-1] if names else None
        if pinned not in names:
            raise ModelError(
                f"{self.folder} has {pinned!r} pinned, which is not there: put it back, or choose another with "
                "'stream-ccsd models pin' or 'unpin'"
            )
        return pinned

    def choice(self) -> VersionChoice:
        """The pinned version, and the history of choices.

        Raises
        ------
        ModelError
            If ``current.json`` is damaged, because the pinned version must not be guessed.
        """
        path = self.folder / POINTER
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            if (said["format"], said["format_version"]) != (_FORMAT, _FORMAT_VERSION):
                raise ValueError("it is of another format")
            pinned, history = said["pinned"], said["history"]
            if not isinstance(pinned, str | None) or not all(isinstance(entry, dict) for entry in history):
                raise TypeError("it does not say what is pinned")
            return VersionChoice(pinned, tuple(history))
        except (FileNotFoundError, NotADirectoryError):
            return VersionChoice()
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ModelError(
                f"{path} cannot be read ({error}): it says which model version is pinned. Put it right, or remove it "
                "to use the newest"
            ) from error

    def place(self, name: str | None = None) -> Path:
        """The model directory of a version, by default of the current one."""
        chosen = self.current() if name is None else self.find(name)
        if chosen is None:
            raise ModelError(f"{self.folder} holds no model version: add one with 'stream-ccsd models add MODEL'")
        return self.folder / chosen

    def load(self, name: str | None = None) -> Model:
        """A version, by default the current one."""
        return Model.load(self.place(name))

    def find(self, text: str) -> str:
        """The name of a version that a person calls by its name, its number or the model's own version.

        Raises
        ------
        ModelError
            If there is none, or more than one.
        """
        names = self.names()
        if text in names:
            return text
        number = int(text) if re.fullmatch(r"\d{1,9}", text) else None
        found = [name for name in names if (number is not None and _number(name) == number) or _version(name) == text]
        if len(found) != 1:
            known = ", ".join(names[-5:]) or "none"
            what = "more than one version" if found else "no version"
            raise ModelError(f"{self.folder} has {what} {text!r}: the newest are {known}")
        return found[0]

    def add(self, model: Model) -> str:
        """Put a model into the folder, as its newest version; returns its name. One that is there stays as it is.

        It is in use from then on, unless another one is pinned.

        Raises
        ------
        ModelError
            If it cannot be written.
        """
        with self._alone():
            return self._add(model)

    def add_lesson(self, model: Model, moment: float, refused: Container[str] = ()) -> str | None:
        """Add the model of a model update, unless one of its time or of a later one is there.

        So the version in use never goes back by itself, however many learners there are. Returns the name of the
        version of that time, whichever learner made it; None if there are later ones only. Versions that are
        ``refused``, because they cannot be used, count as if they were not there.
        """
        with self._alone():
            held = self.lessons(refused)
            if held and moment <= max(held):
                return held.get(moment)
            return self._add(model, refused)

    def lessons(self, refused: Container[str] = ()) -> dict[float, str]:
        """Names of versions that model updates have made, by time; the first of each counts that is not ``refused``."""
        found: dict[float, str] = {}
        for name in self.names():
            if name in refused:
                continue
            if name not in self._moments:
                try:
                    self._moments[name] = self._described_moment(name)
                except ModelError:  # it counts for nothing, and may yet be repaired
                    continue
            moment = self._moments[name]
            if moment is not None:
                found.setdefault(moment, name)
        return found

    def _add(self, model: Model, refused: Container[str] = ()) -> str:
        names = self.names()
        same = (name for name in names if name not in refused and self._described_version(name) == model.version)
        known = next(filter(self._is_described, same), None)
        if known is not None:
            return known
        number = max((_number(name) for name in names), default=0) + 1
        name = f"{number:04d}-{model.version}"
        model.save(self.folder / name, like=self.folder / names[-1] if names else None)
        return name

    def pin(self, name: str, who: str | None = None) -> str:
        """Use this version until it is unpinned, whatever is added; returns its name."""
        with self._alone():
            chosen = self.find(name)
            self._decide("pin", chosen, who)
            return chosen

    def unpin(self, who: str | None = None) -> str | None:
        """Use the newest version again, and those that will be added; returns its name."""
        with self._alone():
            if self.choice().pinned is not None:
                self._decide("unpin", None, who)
            return self.current()

    def rollback(self, who: str | None = None) -> str:
        """Pin the version before the current one, so that what is added next does not undo it; returns its name."""
        with self._alone():
            names, current = self.names(), self.current()
            if current is None or names.index(current) == 0:
                raise ModelError(
                    f"{self.folder} holds no version before {current or 'the first'}: nothing to go back to"
                )
            chosen = names[names.index(current) - 1]
            self._decide("rollback", chosen, who)
            return chosen

    def describe(self, newest: int | None = None) -> list[dict[str, Any]]:
        """Every version, or the newest ones, with what it was made from and measured at.

        For one that cannot be read, the problem is given.
        """
        current, pinned = self.current(), self.choice().pinned
        found = []
        for name in self.names()[-newest if newest else 0 :]:
            row: dict[str, Any] = {"name": name, "current": name == current, "pinned": name == pinned}
            try:
                said = describe_model(self.folder / name)
                facts = said.get("facts", {})
                made = {key: value for key, value in facts.items() if key not in ("measured", "lessons")}
                row |= {"version": said.get("version"), "fingerprint": said.get("fingerprint")}
                row |= {"threshold": said.get("threshold"), "fields": said.get("settings", {}).get("fields", [])}
                row |= {"made_from": made, "measured": facts.get("measured"), "lessons": facts.get("lessons")}
            except (ModelError, AttributeError) as error:
                row["problem"] = str(error)
            found.append(row)
        return found

    def _described_version(self, name: str) -> str | None:
        """By its name, where that says it: a learner's folder holds hundreds, whose descriptions are long."""
        known = _version(name)
        try:
            return known or describe_model(self.folder / name).get("version")
        except ModelError:
            return None

    def _is_described(self, name: str) -> bool:
        try:
            return describe_model(self.folder / name).get("version") is not None
        except ModelError:
            return False

    def _described_moment(self, name: str) -> float | None:
        facts = describe_model(self.folder / name).get("facts")
        lessons = facts.get("lessons") if isinstance(facts, dict) else None
        moment = lessons.get("moment") if isinstance(lessons, dict) else None
        return float(moment) if isinstance(moment, float | int) and abs(moment) <= MAX_NUMBER else None

    def _decide(self, what: str, name: str | None, who: str | None) -> None:
        before = self.choice()
        entry = {
            "what": what,
            "name": name,
            "before": before.pinned,
            "who": who or _somebody(),
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        said = {
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "pinned": name,
            "history": [*before.history, entry],
        }
        write_whole(self.folder / POINTER, json.dumps(said, indent=2) + "\n")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time changes the folder; the system forgets the lock of one that is killed."""
        if os.path.exists(self.folder / "model.json"):
            raise ModelError(f"{self.folder} is a model itself, not a folder of model versions: name another folder")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / ".lock").open("w")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ModelError(f"the folder {self.folder} cannot be written to: {reason}") from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in self.folder.iterdir():
                if _UNFINISHED.fullmatch(left.name):  # left by a killed process: no other is adding now
                    shutil.rmtree(left, ignore_errors=True)
            yield


def is_registry(folder: str | Path) -> bool:
    """Whether this is a folder of versions rather than a model."""
    place = Path(folder)
    if os.path.exists(place / "model.json"):
        return False
    return os.path.exists(place / POINTER) or bool(Registry(place).names())


def model_place(folder: str | Path) -> Path:
    """The folder of the model: the given one, or its current version where it is a registry."""
    return Registry(folder).place() if is_registry(folder) else Path(folder)


def load_model(folder: str | Path) -> Model:
    """Load a model, or the current one of a folder of versions.

    Raises
    ------
    ModelError
        If there is none, or it cannot be used.
    """
    return Model.load(model_place(folder))


def _number(name: str) -> int:
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else 0


def _version(name: str) -> str | None:
    match = _NAME.fullmatch(name)
    return match[2] if match else None


def _somebody() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "unknown"
