"""First step of an event: duplicates and late ones are found, evidence is computed, the account profile is updated.

Nothing here depends on a score, so all events of a block can take this step before their windows are compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stream_ccsd.account import ANSWERS, DIFFERENT, DUPLICATE, FORGOTTEN, LATE, RECENT, SCORED, TOO_LATE, USUAL
from stream_ccsd.divergence.search.windows import enter_amount
from stream_ccsd.divergence.window_score import regime_at
from stream_ccsd.evidence.densities import residual
from stream_ccsd.evidence.profile import look_at_lately, look_back, remember, take_in
from stream_ccsd.evidence.supervised import weigh
from stream_ccsd.evidence.terms import evidence_terms
from stream_ccsd.numerics.arrays import AnyArray
from stream_ccsd.numerics.compiling import compiled, inner
from stream_ccsd.runtime.context import Pending
from stream_ccsd.scores import DIVERGENCE, EVIDENCE, TAKEOVER


@compiled()
def enter(context: Any, first: int, last: int) -> None:
    """Take the first step for events of the batch, at most a block, in order; ``row`` is the account of each."""
    densities, supervised, decay, pending, accounts, batch = (
        context.laws,
        context.learnt,
        context.decay,
        context.pending,
        context.accounts,
        context.batch,
    )
    for i in range(first, last):
        place, event, out, names = i - first, batch.events[i], batch.outputs[i], batch.names[i]
        account, history, named = accounts.records[event.row], accounts.histories[event.row], accounts.named[event.row]
        pending.held[place] = pending.found[place] = pending.local[place] = 0
        pending.ago[place] = ago = _find(account, event.id)
        out.newest_time, out.count = account.newest_time, account.count
        if ago >= 0:
            out.status = _status_of_copy(account, history, named, event, names, ago)
            continue
        if event.time < account.newest_time - context.grace:
            out.status = TOO_LATE
            continue
        out.status = LATE if event.time < account.newest_time else SCORED
        seen, distance = pending.seen[place], residual(densities, event.amount, event.category)
        look_back(densities, decay, account, history, named, event, names, seen)
        out.scores[EVIDENCE], other = evidence_terms(
            densities, event, names, batch.numbers[i], seen, context.missing, batch.terms[i]
        )
        account.takeover = max(0.0, account.takeover + min(other, context.takeover_cap) - context.takeover_drift)
        account.run = account.run + 1 if account.takeover > 0.0 else 0
        out.scores[TAKEOVER], out.scores[DIVERGENCE] = account.takeover, np.nan
        if supervised.listening:
            look_at_lately(densities, account, event.time, context.lately)
            out.scores[EVIDENCE] = weigh(
                supervised,
                densities,
                event,
                names,
                batch.numbers[i],
                seen,
                context.lately,
                distance - seen[USUAL],
                account.takeover,
                batch.terms[i],
                batch.inputs[i],
            )
        held = _lay_out(pending, place, account, history, event)
        out.regime = regime_at(pending.categories[place], pending.merchants[place], held - 1) if held > 1 else -1
        account.count, account.mean, account.squares = enter_amount(
            account.count, account.mean, account.squares, event.amount
        )
        out.count = account.count
        pending.mean[place], pending.deviation[place] = account.mean, np.sqrt(account.squares / account.count)
        pending.run[place] = account.run
        take_in(densities, decay, account, event.time, distance, seen)
        remember(account, history, named, event, names)
        account.ids[(account.count - 1) % RECENT] = event.id


@inner()
def _lay_out(pending: Pending, place: int, account: Any, history: AnyArray, event: Any) -> int:
    """The account's history and the new transaction as contiguous columns; returns their length."""
    amounts, categories, merchants = pending.amounts[place], pending.categories[place], pending.merchants[place]
    held = account.held
    for i in range(held):
        entry = history[i]
        amounts[i], categories[i], merchants[i] = entry.amount, entry.category, entry.merchant
    amounts[held], categories[held], merchants[held] = event.amount, event.category, event.merchant
    pending.held[place] = held + 1
    return held + 1


@inner()
def _find(account: Any, identity: int) -> int:
    """How many transactions ago this id was added, 0 for the newest; -1 if it is not among those kept."""
    for ago in range(min(account.count, RECENT)):
        if account.ids[(account.count - 1 - ago) % RECENT] == identity:
            return ago
    return -1


@inner()
def _status_of_copy(account: Any, history: AnyArray, named: AnyArray, event: Any, names: AnyArray, ago: int) -> int:
    """A transaction whose id is known: the same again, another one, or one whose answer is no longer kept."""
    if ago >= ANSWERS:
        return FORGOTTEN
    if ago < account.held:
        entry = history[account.held - 1 - ago]
        if (entry.amount, entry.category, entry.merchant) != (event.amount, event.category, event.merchant):
            return DIFFERENT
    kept = min(account.held, named.shape[1])
    for f in range(named.shape[0]):
        if ago < kept and named[f, kept - 1 - ago] != names[f]:
            return DIFFERENT
    return DUPLICATE
