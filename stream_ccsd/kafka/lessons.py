"""Lessons into a folder of model versions: those that it has are repeated, the others held and added."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from stream_ccsd.kafka.agenda import Lesson
from stream_ccsd.kafka.metrics import LearnerMetrics
from stream_ccsd.lessons.learner import Learner
from stream_ccsd.lessons.rows import Rows
from stream_ccsd.lessons.schedule import Schedule
from stream_ccsd.library.model import Model, ModelError, describe_model
from stream_ccsd.library.versions import Versions

log = logging.getLogger(__name__)


def first_model(folder: Path) -> Model:
    """The model that a folder of versions begins with: the oldest that no lesson has made.

    Raises
    ------
    ModelError
        If there is none.
    """
    versions = Versions(folder)
    for name in versions.names():
        if "lessons" not in describe_model(folder / name).get("facts", {}):
            return versions.load(name)
    raise ModelError(
        f"{folder} is no folder of versions with a model to begin with: fit one elsewhere ('stream-ccsd fit'), and "
        f"add it with 'stream-ccsd models add MODEL --in {folder}'"
    )


class Folder:
    """A learner and the folder its models go to. Nothing else is kept: what it knows follows from the topics."""

    def __init__(self, folder: Path, first: Model, schedule: Schedule, metrics: LearnerMetrics) -> None:
        self.learner = Learner(first, schedule)
        self._versions, self._metrics = Versions(folder), metrics
        self._known = _lessons_in(self._versions)
        self._newest = max(self._known, default=None)
        self._every = schedule.every
        if self._known:
            log.info("lessons are repeated first", extra={"known": len(self._known), "until": self._newest})

    def hold(self, lesson: Lesson) -> None:
        """Hold a lesson, or repeat it; takes a while."""
        begun, moment = time.perf_counter(), lesson.moment
        self.learner.see_rows(Rows.of_records(lesson.scores, self.learner.model))
        self.learner.hear(lesson.verdicts)
        known = self._known.get(moment)
        if known is not None:
            # Only the last of them is what the next one begins with.
            last = moment + self._every not in self._known
            self.learner.remember(moment, self._versions.load(known) if last else self.learner.model)
            self._metrics.repeated.inc()
        else:
            self._learn(moment, lesson)
        self._tell(moment)
        self._metrics.seconds.observe(1000 * (time.perf_counter() - begun))

    def _learn(self, moment: float, lesson: Lesson) -> None:
        before = self.learner.model
        model = self.learner.learn(moment)
        self._metrics.lessons.inc()
        said = {"moment": moment, "scores": len(lesson.scores), "verdicts": len(lesson.verdicts)}
        if model is before and not lesson.scores and not lesson.verdicts:
            pass  # a stream that jumps by years has thousands of these
        elif model is before:
            log.info("a lesson without anything to learn", extra=said)
        elif self._newest is not None and moment < self._newest:
            # Somebody tidied up, or lessons are held at other moments than before: what is newer stays the newest.
            log.warning("a lesson whose model is not in the folder, though later ones are", extra=said)
        else:
            name = self._versions.add(model)
            facts = {key: model.facts["lessons"].get(key) for key in ("number", "frauds", "others", "weighed_by")}
            log.info("lesson", extra={**said, "model": name, "in_use": self._versions.current() == name, **facts})

    def _tell(self, moment: float) -> None:
        book = self.learner.notebook
        self._metrics.moment.set(moment)
        self._metrics.waiting.set(book.waiting)
        self._metrics.disputed.set(book.disputed)
        self._metrics.model.info({"version": self.learner.model.version})


def _lessons_in(versions: Versions) -> dict[float, str]:
    """Names of versions that lessons have made, by moment; the first of each counts."""
    found: dict[float, str] = {}
    for name in versions.names():
        lessons = describe_model(versions.folder / name).get("facts", {}).get("lessons") or {}
        if isinstance(lessons.get("moment"), float | int):
            found.setdefault(float(lessons["moment"]), name)
    return found
