"""Models behind a stream, for what a page draws of them: loaded when they are first needed, some kept."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from replay.lessons import models_beside
from replay.state import model_beside
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.lessons.learner import listening
from stream_ccsd.library.model import Model
from stream_ccsd.library.versions import Versions, is_versions, model_place

log = logging.getLogger(__name__)

_KEPT = 3


class Shelf:
    """Where the models of a state file are: its own, those of lessons, and the one that it was begun with.

    Those of workers on Kafka are where somebody says (``models``): a model, or the folder of versions that they follow.
    """

    def __init__(self, state: Path, models: Path | None = None) -> None:
        self._state, self._models = state, models
        self._loaded: OrderedDict[str, Model | None] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def versions(self) -> Versions:
        """Models that lessons made."""
        named = self._models is not None and is_versions(self._models)
        return Versions(self._models if named and self._models else models_beside(self._state))

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
