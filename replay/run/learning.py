"""Model updates of a replay: when they are due, which verdicts they learn from, and which models they make.

What a learner knows follows from recorded scores and verdicts, so nothing of it is stored: a resumed replay shows it
the scores again. Beside a state file are the models (``replay.db.models``) and a log of model updates
(``replay.db.lessons``). The log says how many verdicts each update learnt from, and which model scores after it. People
may add verdicts and pin models at any time, and an update that is repeated after a kill must learn from and use the
same.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from replay.cases.verdicts import PendingVerdicts, audit_log_beside, open_beside
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import WriteError
from stream_ccsd.learning.features import Features
from stream_ccsd.learning.learner import Learner, listening
from stream_ccsd.learning.schedule import Schedule
from stream_ccsd.model.model import Model
from stream_ccsd.model.registry import Registry, is_registry
from stream_ccsd.transaction import Transaction
from stream_ccsd.verdict import Verdict


@dataclass(frozen=True)
class Learning:
    """How a replay learns; lengths are in the stream's own time."""

    every: float
    delay: float
    labels: bool = False
    """Whether labels of the source become verdicts when the delay has passed: for evaluation."""
    verdicts: tuple[Verdict, ...] = ()
    """Others that are known beforehand; each is heard when its time has come."""
    adapt: bool = False
    """Whether laws of normal transactions follow the stream."""

    @property
    def schedule(self) -> Schedule:
        """When the model is updated."""
        return Schedule(self.every, self.delay)

    def to_dict(self) -> dict[str, Any]:
        """Plain values: a resumed replay must agree with them."""
        told = json.dumps([verdict.to_dict() for verdict in self.verdicts]).encode()
        known = f"{len(self.verdicts)} ({blake2b(told, digest_size=6).hexdigest()})" if self.verdicts else None
        return asdict(replace(self, verdicts=())) | {"verdicts": known}


class Beside(Protocol):
    """What follows a replay beside its model updates, as a drift monitor does."""

    def see(self, scores: pa.RecordBatch) -> Any:
        """Scores that were recorded."""

    def hear(self, frauds: list[bool]) -> None:
        """Verdicts on alerts that a model update was the first to learn of: whether each was fraud."""


class ModelUpdates:
    """The model updates of one replay. ``model`` is the one that scores now."""

    def __init__(self, learning: Learning, model: Model, folder: Path, state: Path | None) -> None:
        self._learning, self._state = learning, state
        self._learner = Learner(model, learning.schedule, adapt=learning.adapt)
        self._versions = Registry(folder)
        self._pending = PendingVerdicts(learning.verdicts)
        self._heard = 0  # entries of the audit log
        self._newest: str | None = None  # the version that was learnt last, and the one that scores
        self._used: str | None = None
        self._loaded: dict[str, Model] = {}  # the one that was needed last
        self._log = _LessonLog(None if state is None else updates_beside(state))
        self.held = 0
        self.model = self._learner.model

    def recall(self, recorded: Iterator[pa.RecordBatch], beside: Beside | None = None) -> None:
        """Show the learner what was recorded before this process, and the model updates that were made meanwhile.

        ``beside`` gets the same in the same order as when it happened.
        """

        def see(scores: pa.RecordBatch) -> None:
            self.see(scores)
            if beside is not None and scores.num_rows:
                beside.see(scores)

        for scores in recorded:
            start = 0
            for i, time in enumerate(scores.column("time").to_pylist()):
                while (moment := self._learner.due(time)) is not None:
                    see(scores.slice(start, i - start))
                    start = i
                    self._recall_update(moment)
                    if beside is not None:
                        beside.hear(self.judged)
            see(scores.slice(start))
        if self.held:
            self._learner.take_up(self._load(self._newest))
            self.model = self._load(self._used)

    def _recall_update(self, moment: float) -> None:
        noted = self._log.at(moment) or {}
        self._hear(moment, noted.get("heard", self._heard))
        if "used" not in noted:
            if noted or self._learner.label_buffer.has_news(moment):
                raise StreamCcsdError(
                    f"{self._log.path} does not know of the lesson at {moment!r}, which {self._state} was scored "
                    "after: put the file back, or start anew with another --state"
                )
            self._learner.remember(moment)
            return
        self._learner.remember(moment)
        self._newest, self._used, self.held = noted["learnt"], noted["used"], self.held + 1
        if self._learning.adapt:  # what rows say of new names depends on those that the model knew
            self._learner.take_up(self._load(self._newest))

    def _load(self, name: str | None) -> Model:
        if name is None:
            return self._learner.first
        if name not in self._loaded:
            self._loaded = {name: listening(self._versions.load(name))}
        return self._loaded[name]

    def see(self, scores: pa.RecordBatch) -> None:
        """Scores that were recorded."""
        if not scores.num_rows:
            return
        self._learner.see_rows(Features.of_batch(scores, self._learner.model))
        if self._learning.labels:
            columns = (scores.column(name).to_pylist() for name in ("id", "account", "time", "label"))
            for name, account, time, label in zip(*columns, strict=True):
                if label:
                    late = time + self._learning.delay
                    self._pending.add([Verdict(name, account, "fraud", "label", late, source="label")])

    @property
    def judged(self) -> list[bool]:
        """Verdicts on alerts that the last model update was the first to learn of: whether each was fraud."""
        return self._learner.label_buffer.judged

    def due(self, transaction: Transaction) -> float | None:
        """The moment of a model update that comes before this transaction."""
        if transaction.time > self.model.latest_time:  # a mistake, which the engine refuses
            return None
        return self._learner.due(transaction.time)

    def hold(self, moment: float) -> Model:
        """Update the model; returns the one that scores from now on: the new one, unless another is pinned."""
        known = self._log.at(moment) or {}  # begun before a kill, and nothing was recorded after it
        heard = self._hear(moment, known.get("heard"))
        if not known and not self._learner.label_buffer.has_news(moment):
            self._learner.remember(moment)  # an empty moment: there is no model update, and no note of one
            return self.model
        if not known:  # before there is a model: should it be made again, it learns from the same
            self._log.add({"moment": moment, "heard": heard})
        before = self._learner.model
        learnt = self._learner.learn(moment)
        if learnt is not before:
            if "lessons" in learnt.facts:  # else it has only followed the stream
                learnt = replace(learnt, facts=learnt.facts | {"lessons": learnt.facts["lessons"] | {"heard": heard}})
            self._learner.model = learnt
            self._newest = self._versions.add(learnt)
        if "used" in known:
            self._used = known["used"]
        else:
            self._used = self._versions.choice().pinned or self._newest
            self._log.add({"moment": moment, "heard": heard, "learnt": self._newest, "used": self._used})
        self.model = learnt if self._used == self._newest else self._load(self._used)
        self.held += 1
        return self.model

    def _hear(self, moment: float, up_to: int | None) -> int:
        """Take in verdicts known by this moment; of the audit log, entries up to a number. Returns how many."""
        audit_log = None if self._state is None else open_beside(self._state)
        if audit_log is not None:
            with audit_log:
                for entry in audit_log.entries(after=self._heard):
                    if up_to is not None and entry.sequence > up_to:
                        break
                    self._pending.add([entry.verdict])
                    self._heard = entry.sequence
        if up_to is not None and self._heard < up_to:
            raise StreamCcsdError(
                f"the lesson at {moment!r} heard {up_to:,} verdicts of which {self._heard:,} are there: put "
                f"{audit_log_beside(self._state or Path())} back, or start anew with another --state"
            )
        self._learner.hear(self._pending.audible(moment))
        return self._heard

    def summary(self) -> dict[str, Any]:
        """What came of it, for people and programs."""
        return {
            "held": self.held,
            "model": self.model.version,
            "models": str(self._versions.folder),
            "book": None if self._state is None else str(audit_log_beside(self._state)),
            "last": self._learner.model.facts.get("lessons"),
            "adapted": self._learner.model.facts.get("adapted"),
        }


class _LessonLog:
    """Two lines a model update, each written before what follows from it: what it learns from, then its models."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lines: dict[float, dict[str, Any]] = {}
        self._whole = 0  # bytes: a line behind them was cut off by a kill
        if path is not None and path.exists():
            for line in path.read_bytes().splitlines(keepends=True):
                if not line.endswith(b"\n"):
                    break
                self._keep(line)

    def _keep(self, line: bytes) -> None:
        try:
            noted = json.loads(line)
            self._lines[noted["moment"]] = noted
        except (ValueError, KeyError, TypeError) as error:
            raise StreamCcsdError(
                f"{self.path} is damaged at byte {self._whole:,}: put it back as it was, or start anew with another "
                "--state"
            ) from error
        self._whole += len(line)

    def at(self, moment: float) -> dict[str, Any] | None:
        return self._lines.get(moment)

    def add(self, noted: dict[str, Any]) -> None:
        line = json.dumps(noted).encode() + b"\n"
        self._lines[noted["moment"]] = noted
        if self.path is None:
            return
        try:
            with self.path.open("ab") as file:
                file.truncate(self._whole)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise WriteError(self.path, error) from error
        self._whole += len(line)


def forget_updates(folder: Path, state: Path | None) -> None:
    """A replay that starts anew takes nothing from an older one of the same name."""
    try:
        if is_registry(folder):
            shutil.rmtree(folder)
        if state is not None:
            updates_beside(state).unlink(missing_ok=True)
    except OSError as error:
        raise WriteError(folder, error) from error


def updates_beside(state: Path) -> Path:
    """Where the model updates of a replay are noted."""
    return state.with_name(state.name + ".lessons")


def models_beside(state: Path) -> Path:
    """Where the models are that its model updates made."""
    return state.with_name(state.name + ".models")
