"""What a replay is made of: its source and model, where it is recorded, and how it learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from replay.run.learning import Learning, models_beside
from replay.sources.source import Source
from stream_ccsd.model.model import Model


@dataclass(frozen=True)
class Setup:
    """Of one replay. With a ``state`` file it can be stopped in any way and resumed; without, it is all in memory."""

    source: Source
    model: Model
    out: Path
    state: Path | None = None
    resume: bool = False
    threshold: float | None = None
    states: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Of accounts that have a past, where the replay begins; a resumed one has them in its file."""
    drift: bool = True
    """Whether to say so when the stream changes."""
    learning: Learning | None = None
    """How it learns from verdicts, if it does."""
    model_place: Path | None = None
    """Where the model was loaded from or saved to, for whoever looks at the state file."""
    explore: float | None = None
    """Share of the alert budget for transactions drawn at random; the model's own where none is given."""

    @property
    def models(self) -> Path:
        """Where the models are that model updates make."""
        return self.out / "replay.models" if self.state is None else models_beside(self.state)
