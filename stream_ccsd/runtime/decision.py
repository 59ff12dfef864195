"""Last step of an event: how rare the scores are, whether that is an alert, and what the account keeps of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from stream_ccsd.account import ANSWERS, DENSITY_POINTS, FORGOTTEN, REGIMES, TOO_LATE, VIEW, Accounts, Batch
from stream_ccsd.alerts.policy import ALERTED, QUIET, decide, enter_score, explores
from stream_ccsd.divergence.search.index import Index
from stream_ccsd.model.calibration import Tail, rarity
from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.numerics.compiling import compiled, inner


@compiled()
def settle(context: Any, first: int, last: int) -> None:
    """Decide on the events of a block, in order, after they were compared."""
    tails, joining, offsets = context.tails, context.joining, context.offsets
    accounts, batch, pending = context.accounts, context.batch, context.pending
    for i in range(first, last):
        event, out = batch.events[i], batch.outputs[i]
        account = accounts.records[event.row]
        if out.status == TOO_LATE:
            continue
        if pending.ago[i - first] >= 0:
            _summarise(account, out)
            if out.status != FORGOTTEN:
                _answer_again(accounts, batch, i, (out.count - 1 - pending.ago[i - first]) % ANSWERS)
                _rate(tails, joining, offsets, out)
            continue
        _rate(tails, joining, offsets, out)
        out.previous_maximum = enter_score(account, out.score)
        out.decision = decide(context.policy, account, out.score, event.time, context.cap)
        if out.decision == QUIET and explores(context.policy, event.id):
            out.decision = ALERTED
        _summarise(account, out)
        _remember_answer(account, out)
        if out.decision == ALERTED:
            _note_background(context, i, i - first)


@inner()
def _rate(tails: tuple[Tail, ...], joining: AnyArray, offsets: FloatArray, out: Any) -> None:
    """Rarities of all scores, and the alert score: shares of the budget add up, so it keeps to the budget."""
    for i in range(len(out.scores)):
        out.rarities[i] = rarity(tails[i], out.scores[i])
    rarest = 0.0
    for i in joining:
        rarest = max(rarest, out.rarities[i] - offsets[i])
    out.score = rarest


@inner()
def _summarise(account: Any, out: Any) -> None:
    out.maximum = account.top[0]
    out.accumulated = 0.0
    for value in account.top:
        if value > 0.0:
            out.accumulated += value


@inner()
def _remember_answer(account: Any, out: Any) -> None:
    answer = account.answers[(out.count - 1) % ANSWERS]
    for j in range(len(out.scores)):
        answer.scores[j] = out.scores[j]
    answer.previous_maximum, answer.maximum = out.previous_maximum, out.maximum
    answer.decision, answer.regime = out.decision, out.regime


@inner()
def _answer_again(accounts: Accounts, batch: Batch, i: int, place: int) -> None:
    """A duplicate changes nothing and is answered as it was the first time."""
    event, out, background = batch.events[i], batch.outputs[i], batch.backgrounds[i]
    account = accounts.records[event.row]
    answer = account.answers[place]
    for j in range(len(out.scores)):
        out.scores[j] = answer.scores[j]
    out.previous_maximum, out.maximum = answer.previous_maximum, answer.maximum
    out.decision, out.regime = answer.decision, answer.regime
    if out.decision == ALERTED and account.background.id == event.id:
        _copy_background(accounts, batch, i)
    elif out.decision == ALERTED:
        background.id = 0
        background.reach = 0.0
        for j in range(REGIMES):
            background.regime_share[j] = 0.0


@inner()
def _note_background(context: Any, i: int, place: int) -> None:
    """Why an event is an alert, into its account and its answer."""
    accounts, batch, pending = context.accounts, context.batch, context.pending
    event, seen = batch.events[i], pending.seen[place]
    background = accounts.records[event.row].background
    background.id, background.run = event.id, pending.run[place]
    for j in range(VIEW):
        background.seen[j] = seen[j]
    for j in range(batch.names.shape[1]):
        accounts.views[event.row, j] = seen[VIEW + j]
    rows, shares = pending.rows[place, : pending.found[place]], pending.weights[place, : pending.found[place]]
    y, own = pending.local_y[place, : pending.local[place]], pending.local_weights[place, : pending.local[place]]
    _draw_densities(context.library, context.change_law.sigma_y, rows, shares, y, own, background)
    _copy_background(accounts, batch, i)


@inner()
def _draw_densities(
    library: Index, sigma: float, rows: AnyArray, shares: FloatArray, y: FloatArray, own: FloatArray, background: Any
) -> None:
    """The regimes with the most weight among the neighbours, and both densities over abs(Δz)."""
    background.reach = background.peak = 0.0
    for i in range(REGIMES):
        background.regime_share[i] = 0.0
    for g in range(DENSITY_POINTS):
        background.local_density[g] = background.global_density[g] = 0
    if len(rows) == 0:
        return
    reach = 0.0
    for value in y:
        reach = max(reach, value)
    for row in rows:
        reach = max(reach, library.y[row])
    background.reach = reach
    _heaviest_regimes(library, rows, shares, background)
    norm = 1.0 / (sigma * np.sqrt(2.0 * np.pi))
    densities = np.zeros((2, DENSITY_POINTS))
    for g in range(DENSITY_POINTS):
        at = reach * g / (DENSITY_POINTS - 1)
        for i in range(len(y)):
            densities[0, g] += own[i] * norm * np.exp(-0.5 * ((at - y[i]) / sigma) ** 2)
        for j in range(len(rows)):
            densities[1, g] += shares[j] * norm * np.exp(-0.5 * ((at - library.y[rows[j]]) / sigma) ** 2)
        background.peak = max(background.peak, densities[0, g], densities[1, g])
    if background.peak > 0.0:
        for g in range(DENSITY_POINTS):
            background.local_density[g] = int(np.rint(255.0 * densities[0, g] / background.peak))
            background.global_density[g] = int(np.rint(255.0 * densities[1, g] / background.peak))


@inner()
def _heaviest_regimes(library: Index, rows: AnyArray, weights: FloatArray, background: Any) -> None:
    """The pairs with the largest shares of the neighbours' weight; of equal ones those that come first in the library.

    Neighbours of one pair follow each other, so only pairs that have some are looked at.
    """
    groups, shares = np.empty(len(rows) + REGIMES, np.int64), np.zeros(len(rows) + REGIMES)
    runs = 0
    for j in range(len(rows)):
        group = library.blocks.group[rows[j]]
        if runs == 0 or group != groups[runs - 1]:
            groups[runs] = group
            runs += 1
        shares[runs - 1] += weights[j]
    wanted, group = min(REGIMES, len(library.log_prior)), 0
    while runs < wanted:  # the first pairs without neighbours fill up
        if not np.any(groups[:runs] == group):
            groups[runs] = group
            runs += 1
        group += 1
    for i in range(wanted):
        best = 0
        for run in range(1, runs):
            if shares[run] > shares[best] or (shares[run] == shares[best] and groups[run] < groups[best]):
                best = run
        background.regime_share[i] = shares[best]
        background.regime_category[i] = library.category[groups[best]]
        background.regime_merchant[i] = library.merchant[groups[best]]
        shares[best] = -1.0


@inner()
def _copy_background(accounts: Accounts, batch: Batch, i: int) -> None:
    row = batch.events[i].row
    source, target = accounts.records[row].background, batch.backgrounds[i]
    target.id, target.run, target.reach, target.peak = source.id, source.run, source.reach, source.peak
    for j in range(VIEW):
        target.seen[j] = source.seen[j]
    for j in range(batch.names.shape[1]):
        batch.views[i, j] = accounts.views[row, j]
    for j in range(REGIMES):
        target.regime_share[j] = source.regime_share[j]
        target.regime_category[j] = source.regime_category[j]
        target.regime_merchant[j] = source.regime_merchant[j]
    for g in range(DENSITY_POINTS):
        target.local_density[g] = source.local_density[g]
        target.global_density[g] = source.global_density[g]
