"""Events, compiled: account in, scores and decision out, account updated. The only code that changes an account.

An event is *entered* (evidence, and what the account remembers of it), its window is *searched* for in the library and
*compared* with what was found, and it is *settled* whether it is an alert. No step changes what an earlier one looks
at, so a block of events takes each step together, and neither the size of a batch nor that of a block changes a bit.
Steps are called from here, one after the other: one within the other, the compiler would work on them again and again.
"""

from __future__ import annotations

from stream_ccsd.step.comparing import compare, search
from stream_ccsd.step.deciding import settle
from stream_ccsd.step.entering import enter
from stream_ccsd.step.machine import CompiledModel, Machine, Workspace, make_machine

__all__ = ["CompiledModel", "Machine", "Workspace", "make_machine", "run"]


def run(machine: Machine, block: int, first: int, last: int, *, with_divergence: bool) -> None:
    """Process events of the batch in order; ``block`` of them at a time (:attr:`Workspace.block`)."""
    for start in range(first, last, block):
        end = min(start + block, last)
        enter(machine, start, end)
        if with_divergence:
            search(machine, end - start)
            compare(machine, start, end)
        settle(machine, start, end)
