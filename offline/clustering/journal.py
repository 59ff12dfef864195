"""What is finished of an evaluation, kept as it comes, so that a second run goes on where the first stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import offline.clustering
import stream_ccsd.clustering
import stream_ccsd.divergence
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.writing import write_whole

# Of the entries' form.
_VERSION = 1

# Others' code that figures come from.
_LIBRARIES = ("aeon", "dtaidistance", "numba", "numpy", "scikit-learn", "scipy")


class Journal:
    """One small JSON file a finished piece of work, named by everything that it depends on; None keeps nothing.

    That is the data, what was asked, and the code: its text, and the versions of the libraries it calls. So whoever
    changes any of them never sees a figure from before.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = None if folder is None else folder / "clustering"
        self.found = 0  # pieces that an earlier run had finished

    def entry(
        self, about: dict[str, Any], work: Callable[[], dict[str, Any]], wanted: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """What is kept about this, if it has all that is wanted; else it is worked out, and kept."""
        if self.folder is None:
            return work()
        place = self.folder / f"{_digest([_VERSION, _code(), about])}.json"
        kept = _read(place)
        if kept is not None and wanted(kept):
            self.found += 1
            return kept
        made = work()
        with suppress(OSError, StreamCcsdError):  # what cannot be kept is still a result
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(place, json.dumps(made))
        return made


def _read(place: Path) -> dict[str, Any] | None:
    """None for what is not there, or was damaged: it is worked out again."""
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


@cache
def _code() -> list[str]:
    """What the figures are made by."""
    text = hashlib.sha256()
    for package in (stream_ccsd.divergence, stream_ccsd.clustering, offline.clustering):
        for source in sorted(Path(str(package.__file__)).parent.glob("*.py")):
            text.update(source.name.encode() + b"\0" + source.read_bytes())
    return [text.hexdigest(), *(f"{name} {_version(name)}" for name in _LIBRARIES)]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
