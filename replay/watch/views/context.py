"""What views are made of: everything that is known of a stream at the moment of one request.

:class:`ViewContext` is that moment. :class:`ModelCache` loads models when a page first draws them, and keeps some.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay.cases.cases import Analyst, Cases, EffectiveVerdicts, Suppression
from replay.run.hooks import BEGUN_BEHIND
from replay.run.learning import models_beside
from replay.state.file import model_beside
from replay.watch.live.background import Background, ChallengerComparison
from replay.watch.live.follower import Follower, StateReader
from replay.watch.live.open_cases import OpenCases
from stream_ccsd.calendar import Calendar
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.learning.learner import listening
from stream_ccsd.model.model import Model
from stream_ccsd.model.registry import Registry, is_registry, model_place
from stream_ccsd.stores import Record
from stream_ccsd.verdict import EffectiveVerdict

log = logging.getLogger(__name__)

_KEPT = 3


class ModelCache:
    """Where the models of a state file are: its own, those of model updates, and the one that it was begun with.

    Those of workers on Kafka are where somebody says (``models``): a model, or the folder of versions that they follow.
    """

    def __init__(self, state: Path, models: Path | None = None) -> None:
        self._state, self._models = state, models
        self._loaded: OrderedDict[str, Model | None] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def versions(self) -> Registry:
        """Models that model updates made."""
        named = self._models is not None and is_registry(self._models)
        return Registry(self._models if named and self._models else models_beside(self._state))

    def model(self, version: str, noted: str | None) -> Model | None:
        """A model by its version; None where it is nowhere to be found."""
        with self._lock:
            if version not in self._loaded:
                self._loaded[version] = self._find(version, noted)
                while len(self._loaded) > _KEPT:
                    self._loaded.popitem(last=False)
            return self._loaded[version]

    def _find(self, version: str, noted: str | None) -> Model | None:
        places = [self.versions.folder / name for name in self.versions.names() if name.endswith(version)]
        places += [model_beside(self._state), *(Path(place) for place in (noted, self._models) if place is not None)]
        for place in places:
            try:
                if not place.exists():
                    continue
                model = Model.load(model_place(place))
            except (StreamCcsdError, OSError) as error:
                log.warning("%s", error)
                continue
            if version in (model.version, listening(model).version):  # one that learns is called another version
                return model
        return None

    def described(self, limit: int) -> list[dict[str, Any]]:
        """The newest versions, the newest first."""
        return self.versions.describe(limit)[::-1]


Query = Mapping[str, str]


@dataclass(frozen=True)
class ViewContext:
    """A stream, its audit log, and who asks."""

    reader: StateReader
    follower: Follower
    desk: Cases
    model_cache: ModelCache
    open_cases: OpenCases
    rivalry: ChallengerComparison
    inspection: Background[dict[str, Any]]
    reviewing: Background[dict[str, Any]]
    calendar: Calendar
    person: Analyst

    @property
    def path(self) -> Path:
        """The state file."""
        return self.reader.path

    @contextmanager
    def looking(self) -> Iterator[EffectiveVerdicts]:
        """The live index does not change meanwhile."""
        with self.follower.lock, self.desk.reading() as effective:
            yield effective

    @property
    def threshold(self) -> float:
        """The budget that holds: the newest that was set, else the replay's own."""
        notes = self.follower.notes
        begun = notes.get(BEGUN_BEHIND, 0)  # an audit log may hold budgets of an older replay
        for entry in reversed(self.desk.refresh().budgets):
            if entry.sequence > begun:
                return float(entry.said.body["to"])
        return float(notes.get("threshold") or self.reader.facts["threshold"])

    def when(self, time: float | None) -> str | None:
        """A time of the stream for people."""
        return None if time is None else self.calendar.show(time)

    def days(self, number: float) -> float:
        """So many days in the stream's own time; where it has no unit, so many of its units."""
        length = self.calendar.of_days(number)
        return number if length is None else length

    def active(self, effective: EffectiveVerdicts) -> list[Suppression]:
        """Suppressions that nobody lifted."""
        return [each for each in effective.suppressions.values() if each.lifted is None]

    def shown(self, row: Record, effective: EffectiveVerdicts, hidden: bool = False) -> Record:
        """An alert in short as every list of them shows it."""
        stands = effective.stands.get((row["account"], row["transaction"]))
        own = {name: value for name, value in row.items() if name not in ("terms", "best_term", "model")}
        return own | {"when": self.when(row["time"])} | verdict_of(stands) | {"suppressed": hidden}


def verdict_of(stands: EffectiveVerdict | None) -> dict[str, Any]:
    """What counts of the verdicts on an alert."""
    if stands is None:
        return {"verdict": None, "disputed": False}
    return {"verdict": stands.verdict.verdict, "disputed": stands.disputed}


def number(query: Query, name: str) -> float | None:
    """A number of a query; None where it is not given.

    Raises
    ------
    StreamCcsdError
        If it is no number.
    """
    text = query.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e300:
        raise StreamCcsdError(f"{name}: expected a number, got {text[:40]!r}")
    return value


def whole(query: Query, name: str, default: int) -> int:
    """A whole number of a query, not below 0."""
    value = number(query, name)
    return default if value is None else int(min(max(0.0, value), 2.0**53))
