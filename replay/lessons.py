"""Lessons of a replay: when they are held, what verdicts they hear, and which models come of them.

What a learner knows follows from recorded scores and verdicts, so nothing of it is stored: a resumed replay shows it
the scores again. Beside a state file are the models (``replay.db.models``) and a line a lesson (``replay.db.lessons``),
which says how many verdicts of the book it had heard: people may add some at any time, and a lesson that is repeated
after a kill must hear the same.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from replay.hearing import PendingVerdicts
from replay.verdicts import book_beside, open_beside
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.lessons.learner import Learner
from stream_ccsd.lessons.rows import Rows
from stream_ccsd.lessons.schedule import Schedule
from stream_ccsd.library.model import Model
from stream_ccsd.library.versions import Versions, is_versions
from stream_ccsd.transaction import Transaction
from stream_ccsd.verdict import Verdict
from stream_ccsd.writing import WriteError


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
        """When lessons are."""
        return Schedule(self.every, self.delay)

    def to_dict(self) -> dict[str, Any]:
        """Plain values: a resumed replay must agree with them."""
        return asdict(replace(self, verdicts=())) | {"verdicts": len(self.verdicts)}


class Lessons:
    """The lessons of one replay. ``model`` is the one that scores now."""

    def __init__(self, learning: Learning, model: Model, folder: Path, state: Path | None, resume: bool) -> None:
        self._learning, self._state = learning, state
        self._learner = Learner(model, learning.schedule, adapt=learning.adapt)
        self._versions = Versions(folder)
        self._pending = PendingVerdicts(learning.verdicts)
        self._heard = 0  # entries of the book
        self._loaded: dict[str, Model] = {}  # the one that was needed last
        self._log = _LessonLog(None if state is None else lessons_beside(state))
        self.held = 0
        if not resume:
            self._begin(folder)
        self.model = self._learner.model

    def _begin(self, folder: Path) -> None:
        """A replay that starts anew takes nothing from an older one of the same name."""
        if is_versions(folder):
            shutil.rmtree(folder, ignore_errors=True)
        self._log.clear()

    def recall(self, recorded: Iterator[pa.RecordBatch]) -> None:
        """Show the learner what was recorded before this process, and the lessons that were held meanwhile."""
        for scores in recorded:
            start = 0
            for i, time in enumerate(scores.column("time").to_pylist()):
                while (moment := self._learner.due(time)) is not None:
                    self.see(scores.slice(start, i - start))
                    start = i
                    self._recall_lesson(moment)
            self.see(scores.slice(start))

    def _recall_lesson(self, moment: float) -> None:
        said = self._log.at(moment)
        if said is None:
            raise StreamCcsdError(
                f"{self._log.path} does not know of the lesson at {moment!r}, which {self._state} was scored after: "
                "put the file back, or start anew with another --state"
            )
        self._hear(moment, said["heard"])
        self._learner.remember(moment, self._load(said["learnt"]))
        self.model, self.held = self._load(said["used"]), self.held + 1

    def _load(self, name: str | None) -> Model:
        if name is None:
            return self._learner.first
        if name not in self._loaded:
            self._loaded = {name: self._versions.load(name)}
        return self._loaded[name]

    def see(self, scores: pa.RecordBatch) -> None:
        """Scores that were recorded."""
        if not scores.num_rows:
            return
        self._learner.see_rows(Rows.of_batch(scores, self._learner.model))
        if self._learning.labels:
            columns = (scores.column(name).to_pylist() for name in ("id", "account", "time", "label"))
            for name, account, time, label in zip(*columns, strict=True):
                if label:
                    late = time + self._learning.delay
                    self._pending.add([Verdict(name, account, "fraud", "label", late, source="label")])

    def due(self, transaction: Transaction) -> float | None:
        """The moment of a lesson that comes before this transaction."""
        if transaction.time > self.model.latest_time:  # a mistake, which the engine refuses
            return None
        return self._learner.due(transaction.time)

    def hold(self, moment: float) -> Model:
        """Hold a lesson; returns the model that scores from now on: the new one, unless another is pinned."""
        known = self._log.at(moment)  # held before a kill, and nothing was recorded after it
        heard = self._hear(moment, None if known is None else known["heard"])
        before = self._learner.model
        learnt = self._learner.learn(moment)
        name = None if learnt is self._learner.first else self._log.newest_name
        if learnt is not before:
            account = learnt.facts.get("lessons", {}) | {"heard": heard}
            learnt = replace(learnt, facts=learnt.facts | {"lessons": account})
            self._learner.model = learnt
            name = self._versions.add(learnt)
        pinned = self._versions.choice().pinned
        used = name if pinned is None else pinned
        self.model = learnt if used == name else self._versions.load(used)
        if known is None:
            self._log.add({"moment": moment, "heard": heard, "learnt": name, "used": used})
        self.held += 1
        return self.model

    def _hear(self, moment: float, up_to: int | None) -> int:
        """Verdicts that are known by this moment; of the book, entries up to a number. Returns how many were heard."""
        book = None if self._state is None else open_beside(self._state)
        if book is not None:
            with book:
                for entry in book.entries(after=self._heard):
                    if up_to is not None and entry.sequence > up_to:
                        break
                    self._pending.add([entry.verdict])
                    self._heard = entry.sequence
        self._learner.hear(self._pending.audible(moment))
        return self._heard

    def summary(self) -> dict[str, Any]:
        """What came of it, for people and programs."""
        return {
            "held": self.held,
            "model": self.model.version,
            "models": str(self._versions.folder),
            "book": None if self._state is None else str(book_beside(self._state)),
            "last": self._learner.model.facts.get("lessons"),
        }


class _LessonLog:
    """A line a lesson: what it heard, and which model came of it."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lines: dict[float, dict[str, Any]] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    said = json.loads(line)
                except ValueError:  # cut off by a kill: that lesson is held again
                    break
                self._lines[said["moment"]] = said

    def at(self, moment: float) -> dict[str, Any] | None:
        return self._lines.get(moment)

    @property
    def newest_name(self) -> str | None:
        """Of the model that was learnt last."""
        return next(reversed(self._lines.values()))["learnt"] if self._lines else None

    def clear(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        self._lines = {}

    def add(self, said: dict[str, Any]) -> None:
        """Written before its model scores anything."""
        self._lines[said["moment"]] = said
        if self.path is None:
            return
        try:
            # The last line may be one that a kill cut off: it is written again as a whole.
            text = "".join(json.dumps(line) + "\n" for line in self._lines.values())
            temporary = self.path.with_name(self.path.name + ".new")
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except OSError as error:
            raise WriteError(self.path, error) from error


def lessons_beside(state: Path) -> Path:
    """Where the lessons of a replay are noted."""
    return state.with_name(state.name + ".lessons")


def models_beside(state: Path) -> Path:
    """Where the models are that its lessons made."""
    return state.with_name(state.name + ".models")
