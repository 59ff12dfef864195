"""The compiled steps of an event, one after the other. Only this code changes an account.

First the profile is updated and evidence is computed. Then the event's window is searched for in the library and
compared with what was found. Last it is decided whether it is an alert. No step changes what an earlier one reads, so
a block of events takes each step together, and neither the size of a batch nor that of a block changes a bit. All steps
are called from here: nested in each other, the compiler would compile them again and again.
"""

from __future__ import annotations

from stream_ccsd.runtime.comparison import compare, search
from stream_ccsd.runtime.context import CompiledModel, ScoringContext, Workspace, make_scoring_context
from stream_ccsd.runtime.decision import settle
from stream_ccsd.runtime.profile_update import enter

__all__ = ["CompiledModel", "ScoringContext", "Workspace", "make_scoring_context", "run"]


def run(context: ScoringContext, block: int, first: int, last: int, *, with_divergence: bool) -> None:
    """Process events of the batch in order; ``block`` of them at a time (:attr:`Workspace.block`)."""
    for start in range(first, last, block):
        end = min(start + block, last)
        enter(context, start, end)
        if with_divergence:
            search(context, end - start)
            compare(context, start, end)
        settle(context, start, end)
