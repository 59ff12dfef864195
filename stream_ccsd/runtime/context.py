"""The scoring context: the model, working memory, accounts and a batch, which compiled steps reach by one reference."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.experimental import structref

from stream_ccsd.account import LATELY, VIEW, Accounts, Batch
from stream_ccsd.alerts.policy import Policy
from stream_ccsd.divergence.search.index import Index, Scratch
from stream_ccsd.divergence.window_score import ChangeDensity
from stream_ccsd.evidence.densities import Densities
from stream_ccsd.evidence.supervised import Supervised
from stream_ccsd.model.calibration import Tail
from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.numerics.compiling import compiled

# Events of a block, whose windows are searched for together; fewer where so many neighbours would fill the memory.
_BLOCK, _NEIGHBOURS = 128, 2**20


class CompiledModel(NamedTuple):
    """Everything an event is scored by: library, densities, rates and policy. Read only."""

    library: Index
    change_law: ChangeDensity
    laws: Densities
    learnt: Supervised
    decay: FloatArray  # of the account's own transactions, by lag
    missing: Any  # the code of a declared category that is not there
    takeover_cap: float
    takeover_drift: float
    tails: tuple[Tail, ...]  # of each score
    policy: Policy
    joining: AnyArray  # scores that the alert score is the rarest of
    offsets: FloatArray  # of each score: -log of its share of the alert budget
    grace: float
    lags: AnyArray  # ends of the earlier windows, 1 .. L


class Pending(NamedTuple):
    """Events of a block between the steps, a row each, with their accounts as they were at the first step."""

    amounts: FloatArray  # the account's history with the event, oldest first
    categories: AnyArray
    merchants: AnyArray
    held: AnyArray  # length of that history; 0 for an event that was not added
    mean: FloatArray
    deviation: FloatArray
    seen: FloatArray  # the view
    run: AnyArray  # transactions since the takeover score was 0
    ago: AnyArray  # of a duplicate: how many transactions ago it was added
    found: AnyArray  # library windows that the divergence comes from, 0 where there is none
    rows: AnyArray  # these
    weights: FloatArray  # logarithms when they are found, then shares
    local: AnyArray  # the account's own windows that the divergence comes from, 0 where there is none
    local_y: FloatArray
    local_weights: FloatArray


class Workspace(NamedTuple):
    """Working memory of one engine."""

    pending: Pending
    scratch: Scratch
    local_regime: AnyArray  # of the account's own windows
    lately: FloatArray  # what the account of the current event did in the last days
    cap: FloatArray  # current alert interval, alerts in it

    @staticmethod
    def of(library: Index, longest_history: int, local_history: int, named: int) -> Workspace:
        """Working memory for a library, histories and declared categories of these sizes."""
        neighbours = library.neighbours
        block = max(1, min(_BLOCK, _NEIGHBOURS // max(neighbours, 1)))
        history = block, longest_history + 1
        pending = Pending(
            amounts=np.empty(history),
            categories=np.empty(history, np.uint32),
            merchants=np.empty(history, np.uint32),
            held=np.zeros(block, np.int64),
            mean=np.empty(block),
            deviation=np.empty(block),
            seen=np.empty((block, VIEW + named)),
            run=np.empty(block, np.int64),
            ago=np.empty(block, np.int64),
            found=np.empty(block, np.int64),
            rows=np.empty((block, neighbours), np.int64),
            weights=np.empty((block, neighbours)),
            local=np.empty(block, np.int64),
            local_y=np.empty((block, local_history)),
            local_weights=np.empty((block, local_history)),
        )
        lately, cap = np.empty(2 * len(LATELY)), np.array([-np.inf, 0.0])
        return Workspace(pending, Scratch.of(library), np.empty(local_history, np.int8), lately, cap)

    @property
    def block(self) -> int:
        """How many events take each step together."""
        return len(self.pending.held)


@structref.register
class _ContextType(types.StructRef):  # type: ignore[misc]
    def preprocess_fields(self, fields: Any) -> Any:
        """Literal types would make a type of their own of every value."""
        return tuple((name, types.unliteral(kind)) for name, kind in fields)


_FIELDS = [*CompiledModel._fields, *Workspace._fields, "accounts", "batch"]


class ScoringContext(structref.StructRefProxy):  # type: ignore[misc]
    """One reference for everything, because handing over seventy arrays each time costs more than a score.

    Each part is a field, so that a step reads those it needs. Whole models as arguments took the compiler longest.
    """

    def __new__(cls, *parts: Any) -> ScoringContext:
        """See :func:`make_scoring_context`."""
        return make_scoring_context(*parts)


structref.define_boxing(_ContextType, ScoringContext)
structref.define_constructor(ScoringContext, _ContextType, _FIELDS)


@compiled()
def make_scoring_context(model: CompiledModel, workspace: Workspace, accounts: Accounts, batch: Batch) -> Any:
    """Put everything that compiled code works on behind one reference."""
    return ScoringContext(
        model.library,
        model.change_law,
        model.laws,
        model.learnt,
        model.decay,
        model.missing,
        model.takeover_cap,
        model.takeover_drift,
        model.tails,
        model.policy,
        model.joining,
        model.offsets,
        model.grace,
        model.lags,
        workspace.pending,
        workspace.scratch,
        workspace.local_regime,
        workspace.lately,
        workspace.cap,
        accounts,
        batch,
    )
