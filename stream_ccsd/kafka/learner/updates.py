"""Model updates into a folder of versions: those whose models are there are repeated, others are made and added."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from stream_ccsd.kafka.learner.watermark import UpdateBatch
from stream_ccsd.kafka.ops.metrics import LearnerMetrics
from stream_ccsd.learning.features import Features
from stream_ccsd.learning.label_buffer import DAYS_KEPT
from stream_ccsd.learning.learner import Learner
from stream_ccsd.learning.schedule import Schedule
from stream_ccsd.model.model import Model, ModelError, describe_model
from stream_ccsd.model.registry import Registry

log = logging.getLogger(__name__)


def first_model(folder: Path) -> Model:
    """The model that a folder of versions begins with: the oldest that no model update made.

    Raises
    ------
    ModelError
        If there is none.
    """
    versions = Registry(folder)
    for name in versions.names():
        if "lessons" not in describe_model(folder / name).get("facts", {}):
            return versions.load(name)
    raise ModelError(
        f"{folder} is no folder of versions with a model to begin with: fit one elsewhere ('stream-ccsd fit'), and "
        f"add it with 'stream-ccsd models add MODEL --in {folder}'"
    )


# A model that was learnt from fewer frauds than this share of those before it does not take its place.
_ENOUGH = 0.9
# Delays for which a transaction is remembered before weights are learnt from it (``learning/label_buffer.py``).
_DELAYS = 2.0


class UpdateFolder:
    """A learner and the folder its models go to. Nothing else is kept: what it knows follows from the topics.

    Topics may have lost what the newest model was learnt from, or been made anew. Then the learner goes on from that
    model, and adds another when it knows about as many frauds, or when all that the model knew is too old to count.
    """

    def __init__(self, folder: Path, first: Model, schedule: Schedule, metrics: LearnerMetrics) -> None:
        self.learner = Learner(first, schedule)
        self._versions, self._metrics = Registry(folder), metrics
        self._schedule = schedule
        self._compared: tuple[float, bool] | None = None  # a model of the folder, and whether all of it was read again
        self._warned = False
        self._repeated: float | None = None  # the model update before this one, if it was repeated
        self._refused: set[str] = set()  # versions that cannot be used: reported once
        known = self._versions.lessons()
        if known:
            log.info("lessons are repeated first", extra={"known": len(known), "until": max(known)})

    def hold(self, update: UpdateBatch) -> None:
        """Make a model update, or repeat it; takes a while."""
        begun, moment = time.perf_counter(), update.moment
        self.learner.see_rows(Features.of_records(update.scores, self.learner.model))
        self.learner.hear(update.verdicts)
        known = self._known()  # another learner may have been quicker
        # Only the last of them is what the next one begins with.
        last = moment in known and moment + self._schedule.every not in known
        model = self._load(known[moment]) if last else None
        if moment in known and (model is not None or not last):
            self.learner.remember(moment, model)
            self._repeated = moment
            if last:
                self._compare(moment)
            self._metrics.repeated.inc()
        else:
            self._learn(moment, update)
        self._tell(moment)
        self._metrics.seconds.observe(1000 * (time.perf_counter() - begun))

    def _known(self) -> dict[float, str]:
        """Versions that model updates made, without those that cannot be used."""
        return self._versions.lessons(self._refused)

    def _load(self, name: str) -> Model | None:
        """A version; None if it cannot be used, as if it were not there."""
        try:
            return self._versions.load(name)
        except Exception as error:  # whatever is wrong with it, learning goes on
            self._refused.add(name)
            self._metrics.refused.inc()
            reason = str(error) if isinstance(error, ModelError) else repr(error)
            log.error("a model of the folder is not used", extra={"model": name, "reason": reason})
            return None

    def _unread(self, moment: float) -> tuple[float, str, Model] | None:
        """The newest version of an earlier update, with its moment, if not all it was learnt from was read again."""
        while known := self._known():
            newest = max(known)
            if newest >= moment or self._compared == (newest, True):
                break
            if (model := self._load(known[newest])) is None:
                continue
            if newest == self._repeated:  # those after it are refused: it is the last that was read again
                self.learner.take_up(model)
                self._compare(newest)
                self._repeated = None
            else:
                return newest, known[newest], model
        return None

    def _compare(self, moment: float) -> None:
        """Whether what was read again is what the model of this moment was learnt from."""
        facts, kept = self.learner.model.facts["lessons"], self.learner.label_buffer.kept
        frauds = 0 if kept is None else int(kept.fraud.sum())
        others = 0 if kept is None else len(kept.fraud) - frauds
        self._compared = moment, (frauds, others) == (facts.get("frauds"), facts.get("others"))

    def _learn(self, moment: float, update: UpdateBatch) -> None:
        unread = self._unread(moment)
        newest = max(self._known(), default=None)
        if unread is not None:
            _, name, version = unread
            if not self._warned:
                self._warned = True
                log.warning(
                    "the topics do not hold what the newest model was learnt from: learning goes on from that model",
                    extra={"model": name, "learnt_at": newest},
                )
            self.learner.take_up(version)
        before = self.learner.model
        model = self.learner.learn(moment)
        self._metrics.lessons.inc()
        noted = {"moment": moment, "scores": len(update.scores), "verdicts": len(update.verdicts)}
        if model is before and not update.scores and not update.verdicts:
            pass  # a stream that jumps by years has thousands of these
        elif model is before:
            log.info("a lesson without anything to learn", extra=noted)
        elif newest is not None and moment < newest:
            # Somebody deleted models, or the model is updated at other moments now: what is newer stays the newest.
            log.warning("a lesson whose model is not in the folder, though later ones are", extra=noted)
        elif unread is not None and newest is not None and self._knows_less(moment, newest, model, before):
            self.learner.take_up(before)
            self._metrics.held_back.inc()
            frauds = {"frauds": model.facts["lessons"]["frauds"], "before": before.facts["lessons"].get("frauds")}
            log.warning("a model that knows less than the newest one, which stays in use", extra={**noted, **frauds})
        else:
            self._add(moment, model, noted)

    def _knows_less(self, moment: float, newest: float, model: Model, before: Model) -> bool:
        """Whether a model knows less than the one before it, as far as that would still count."""
        updates = (moment - newest - _DELAYS * self._schedule.delay) / self._schedule.every
        if updates * self.learner.label_buffer.days > DAYS_KEPT:
            return False
        frauds, wanted = (m.facts["lessons"].get("frauds", 0) for m in (model, before))
        return bool(frauds < _ENOUGH * wanted)

    def _add(self, moment: float, model: Model, noted: dict[str, Any]) -> None:
        name = self._versions.add_lesson(model, moment, self._refused)
        if name is None:
            log.warning("another learner is ahead: this model is not added", extra=noted)
            return
        if not name.endswith(model.version) and (others := self._load(name)) is not None:
            self.learner.take_up(others)  # another learner's, of the same moment: all go on from that one
        self._compared = moment, True
        facts = {key: model.facts["lessons"].get(key) for key in ("number", "frauds", "others", "weighed_by")}
        log.info("lesson", extra={**noted, "model": name, "in_use": self._is_in_use(name), **facts})

    def _is_in_use(self, name: str) -> bool | None:
        try:
            return self._versions.current() == name
        except ModelError:  # nobody can say which is pinned; workers refuse that, and say so
            return None

    def _tell(self, moment: float) -> None:
        label_buffer = self.learner.label_buffer
        self._metrics.moment.set(moment)
        self._metrics.waiting.set(label_buffer.waiting)
        self._metrics.disputed.set(label_buffer.disputed)
        self._metrics.model.info({"version": self.learner.model.version})
