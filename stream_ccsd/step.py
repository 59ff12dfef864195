"""One event after the other, compiled: account in, scores and decision out, account updated.

The only code that changes an account. A batch is a loop over single events, so the size of a batch cannot change a bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.experimental import structref

from stream_ccsd.account import ANSWERS, DENSITY_POINTS, LATELY, RECENT, REGIMES, USUAL, VIEW
from stream_ccsd.alert.policy import ALERTED, QUIET, Policy, decide, enter_score, explores
from stream_ccsd.batch import DIFFERENT, DUPLICATE, FORGOTTEN, LATE, SCORED, TOO_LATE, Accounts, Batch
from stream_ccsd.library.index import Index, Scratch
from stream_ccsd.library.laws import Laws, residual
from stream_ccsd.library.learnt import Learnt
from stream_ccsd.library.tails import Tail, rarity
from stream_ccsd.library.windows import enter_amount
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.score.divergence import ChangeLaw, LocalLaw, divergence_score, regime_at
from stream_ccsd.score.evidence import evidence_terms
from stream_ccsd.score.habits import look_at_lately, look_back, remember, take_in
from stream_ccsd.score.weighing import weigh
from stream_ccsd.scores import DIVERGENCE, EVIDENCE, TAKEOVER


class CompiledModel(NamedTuple):
    """Everything an event is judged by: library, laws, rates and policy. Read only."""

    library: Index
    change_law: ChangeLaw
    laws: Laws
    learnt: Learnt
    decay: FloatArray  # of the account's own transactions, by lag
    missing: Any  # the code of a declared category that is not there
    takeover_cap: float
    takeover_drift: float
    tails: tuple[Tail, ...]  # of each score
    policy: Policy
    with_divergence: bool
    joining: AnyArray  # scores that the alert score is the rarest of
    offsets: FloatArray  # of each score: -log of its share of the alert budget
    grace: float
    lags: AnyArray  # ends of the earlier windows, 1 .. L


class Workspace(NamedTuple):
    """Working memory of one engine."""

    scratch: Scratch
    local: LocalLaw
    amounts: FloatArray
    categories: AnyArray
    merchants: AnyArray
    seen: FloatArray  # the view of the event at hand
    lately: FloatArray  # and what its account did in the last days
    cap: FloatArray  # current alert interval, alerts in it

    @staticmethod
    def of(library: int, longest_history: int, local_history: int, named: int) -> Workspace:
        """Room for a library, histories and declared categories of these numbers."""
        n = longest_history + 1
        return Workspace(
            Scratch.of_size(library),
            LocalLaw.of_size(local_history),
            np.empty(n),
            np.empty(n, np.uint32),
            np.empty(n, np.uint32),
            np.empty(VIEW + named),
            np.empty(2 * len(LATELY)),
            np.array([-np.inf, 0.0]),
        )


@structref.register
class _MachineType(types.StructRef):  # type: ignore[misc]
    def preprocess_fields(self, fields: Any) -> Any:
        """Literal types would make a kind of their own of every value."""
        return tuple((name, types.unliteral(kind)) for name, kind in fields)


class Machine(structref.StructRefProxy):  # type: ignore[misc]
    """Model and working memory behind one reference: handing over seventy arrays anew costs more than a score."""

    def __new__(cls, model: CompiledModel, workspace: Workspace, accounts: Accounts, batch: Batch) -> Machine:
        """See :func:`make_machine`."""
        return make_machine(model, workspace, accounts, batch)


structref.define_boxing(_MachineType, Machine)
structref.define_constructor(Machine, _MachineType, ["model", "workspace", "accounts", "batch"])


@njit(cache=True)
def make_machine(model: CompiledModel, workspace: Workspace, accounts: Accounts, batch: Batch) -> Any:
    """Put everything that compiled code works on behind one reference."""
    return Machine(model, workspace, accounts, batch)


@njit(cache=True, nogil=True)
def run(machine: Any, first: int, last: int) -> None:
    """Process events of the batch in order; ``row`` of each says which account is its."""
    model, workspace, accounts, batch = machine.model, machine.workspace, machine.accounts, machine.batch
    for i in range(first, last):
        _step(model, workspace, accounts, batch, i)


@njit(cache=True, nogil=True)
def _step(model: CompiledModel, workspace: Workspace, accounts: Accounts, batch: Batch, i: int) -> None:
    event, out = batch.events[i], batch.outputs[i]
    account, history = accounts.records[event.row], accounts.histories[event.row]
    out.newest_time = account.newest_time
    ago = _find(account, event.id)
    if ago >= 0:
        _answer_again(model, accounts, batch, i, ago)
        return
    if event.time < account.newest_time - model.grace:
        out.status = TOO_LATE
        out.count = account.count
        return
    out.status = LATE if event.time < account.newest_time else SCORED
    _score_outcome(model, workspace, accounts, batch, i)
    held = _lay_out(workspace, account, history, event)
    _update_moments(account, event)
    amounts, categories, merchants = workspace.amounts[:held], workspace.categories[:held], workspace.merchants[:held]
    out.regime = regime_at(categories, merchants, held - 1) if held > 1 else -1
    out.scores[DIVERGENCE] = np.nan
    found = local = 0
    if model.with_divergence:
        deviation = np.sqrt(account.squares / account.count)
        out.scores[DIVERGENCE], found, local = divergence_score(
            model.library,
            model.change_law,
            amounts,
            categories,
            merchants,
            account.mean,
            deviation,
            model.lags,
            workspace.scratch,
            workspace.local,
        )
    _rate(model, out)
    out.previous_maximum = enter_score(account, out.score)
    out.decision = decide(model.policy, account, out.score, event.time, workspace.cap)
    if out.decision == QUIET and explores(model.policy, event.id):
        out.decision = ALERTED
    if out.decision == ALERTED:
        _gather_background(model, workspace, account, event, found, local)
        for j in range(batch.names.shape[1]):
            accounts.views[event.row, j] = workspace.seen[VIEW + j]
        _copy_background(accounts, batch, i)
    distance = residual(model.laws, event.amount, event.category)
    take_in(model.laws, model.decay, account, event.time, distance, workspace.seen)
    remember(account, history, accounts.named[event.row], event, batch.names[i])
    _remember_answer(account, event, out)
    _summarise(account, out)


@njit(cache=True, nogil=True)
def _score_outcome(model: CompiledModel, workspace: Workspace, accounts: Accounts, batch: Batch, i: int) -> None:
    """Evidence of the transaction, and what the account's newest ones add up to."""
    event, out, names = batch.events[i], batch.outputs[i], batch.names[i]
    account = accounts.records[event.row]
    history, named = accounts.histories[event.row], accounts.named[event.row]
    look_back(model.laws, model.decay, account, history, named, event, names, workspace.seen)
    out.scores[EVIDENCE], other = evidence_terms(
        model.laws, event, names, batch.numbers[i], workspace.seen, model.missing, batch.terms[i]
    )
    account.takeover = max(0.0, account.takeover + min(other, model.takeover_cap) - model.takeover_drift)
    account.run = account.run + 1 if account.takeover > 0.0 else 0
    out.scores[TAKEOVER] = account.takeover
    if model.learnt.listening:
        beyond = residual(model.laws, event.amount, event.category) - workspace.seen[USUAL]
        look_at_lately(model.laws, account, event.time, workspace.lately)
        out.scores[EVIDENCE] = weigh(
            model.learnt,
            model.laws,
            event,
            names,
            batch.numbers[i],
            workspace.seen,
            workspace.lately,
            beyond,
            account.takeover,
            batch.terms[i],
            batch.inputs[i],
        )


@njit(cache=True, nogil=True)
def _rate(model: CompiledModel, out: Any) -> None:
    """Rarities of all scores, and the alert score: shares of the budget add up, so it holds what the budget says."""
    for i in range(len(out.scores)):
        out.rarities[i] = rarity(model.tails[i], out.scores[i])
    rarest = 0.0
    for i in model.joining:
        rarest = max(rarest, out.rarities[i] - model.offsets[i])
    out.score = rarest


@njit(cache=True, nogil=True)
def _lay_out(workspace: Workspace, account: Any, history: AnyArray, event: Any) -> int:
    """The account's history and the new transaction as contiguous columns; returns their length."""
    amounts, categories, merchants = workspace.amounts, workspace.categories, workspace.merchants
    for i in range(account.held):
        entry = history[i]
        amounts[i], categories[i], merchants[i] = entry.amount, entry.category, entry.merchant
    held = account.held
    amounts[held], categories[held], merchants[held] = event.amount, event.category, event.merchant
    return held + 1


@njit(cache=True, nogil=True)
def _update_moments(account: Any, event: Any) -> None:
    account.count, account.mean, account.squares = enter_amount(
        account.count, account.mean, account.squares, event.amount
    )


@njit(cache=True, nogil=True)
def _remember_answer(account: Any, event: Any, out: Any) -> None:
    number = account.count - 1
    account.ids[number % RECENT] = event.id
    answer = account.answers[number % ANSWERS]
    for j in range(len(out.scores)):
        answer.scores[j] = out.scores[j]
    answer.previous_maximum, answer.maximum = out.previous_maximum, account.top[0]
    answer.decision, answer.regime = out.decision, out.regime


@njit(cache=True, nogil=True)
def _find(account: Any, identity: int) -> int:
    """How many transactions ago this id was entered, 0 for the newest; -1 if it is not among those remembered."""
    for ago in range(min(account.count, RECENT)):
        if account.ids[(account.count - 1 - ago) % RECENT] == identity:
            return ago
    return -1


@njit(cache=True, nogil=True)
def _answer_again(model: CompiledModel, accounts: Accounts, batch: Batch, i: int, ago: int) -> None:
    """A duplicate changes nothing and is answered as it was the first time, as far back as answers are kept."""
    event, out, background = batch.events[i], batch.outputs[i], batch.backgrounds[i]
    account, history = accounts.records[event.row], accounts.histories[event.row]
    _summarise(account, out)
    if ago >= ANSWERS:
        out.status = FORGOTTEN
        return
    answer = account.answers[(account.count - 1 - ago) % ANSWERS]
    out.status = DUPLICATE
    if ago < account.held:
        entry = history[account.held - 1 - ago]
        if (entry.amount, entry.category, entry.merchant) != (event.amount, event.category, event.merchant):
            out.status = DIFFERENT
    named = accounts.named[event.row]
    kept = min(account.held, named.shape[1])
    for f in range(named.shape[0]):
        if ago < kept and named[f, kept - 1 - ago] != batch.names[i, f]:
            out.status = DIFFERENT
    for j in range(len(out.scores)):
        out.scores[j] = answer.scores[j]
    out.previous_maximum, out.maximum = answer.previous_maximum, answer.maximum
    out.decision, out.regime = answer.decision, answer.regime
    _rate(model, out)
    if out.decision == ALERTED and account.background.id == event.id:
        _copy_background(accounts, batch, i)
    elif out.decision == ALERTED:
        background.id = 0
        background.reach = 0.0
        for j in range(REGIMES):
            background.regime_share[j] = 0.0


@njit(cache=True, nogil=True)
def _summarise(account: Any, out: Any) -> None:
    out.count, out.maximum = account.count, account.top[0]
    out.accumulated = 0.0
    for value in account.top:
        if value > 0.0:
            out.accumulated += value


@njit(cache=True, nogil=True)
def _gather_background(
    model: CompiledModel, workspace: Workspace, account: Any, event: Any, found: int, local: int
) -> None:
    """The view, the heaviest regimes among the neighbours and both densities over abs(Δz), into the account."""
    background = account.background
    background.id, background.run = event.id, account.run
    for i in range(VIEW):
        background.seen[i] = workspace.seen[i]
    background.reach = background.peak = 0.0
    for i in range(REGIMES):
        background.regime_share[i] = 0.0
    for g in range(DENSITY_POINTS):
        background.local_density[g] = background.global_density[g] = 0
    if found == 0:
        return
    shares = np.zeros(len(model.library.log_prior))
    reach = workspace.local.y[:local].max()
    for j in range(found):
        row = workspace.scratch.rows[j]
        shares[np.searchsorted(model.library.start, row, side="right") - 1] += workspace.scratch.log_weights[j]
        reach = max(reach, model.library.y[row])
    for i in range(min(REGIMES, len(shares))):
        group = np.argmax(shares)
        background.regime_share[i] = shares[group]
        background.regime_category[i] = model.library.category[group]
        background.regime_merchant[i] = model.library.merchant[group]
        shares[group] = -1.0
    background.reach = reach
    sigma = model.change_law.sigma_y
    norm = 1.0 / (sigma * np.sqrt(2.0 * np.pi))
    densities = np.zeros((2, DENSITY_POINTS))
    for g in range(DENSITY_POINTS):
        at = reach * g / (DENSITY_POINTS - 1)
        for i in range(local):
            densities[0, g] += (
                workspace.local.weights[i] * norm * np.exp(-0.5 * ((at - workspace.local.y[i]) / sigma) ** 2)
            )
        for j in range(found):
            y = model.library.y[workspace.scratch.rows[j]]
            densities[1, g] += workspace.scratch.log_weights[j] * norm * np.exp(-0.5 * ((at - y) / sigma) ** 2)
    background.peak = densities.max()
    if background.peak > 0.0:
        for g in range(DENSITY_POINTS):
            background.local_density[g] = int(np.rint(255.0 * densities[0, g] / background.peak))
            background.global_density[g] = int(np.rint(255.0 * densities[1, g] / background.peak))


@njit(cache=True, nogil=True)
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
