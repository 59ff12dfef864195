"""One event after the other, compiled: account in, scores and decision out, account updated.

The only code that changes an account. A batch is a loop over single events, so the size of a batch cannot change a bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.experimental import structref

from stream_ccsd.account import ANSWERS, DENSITY_POINTS, RECENT, REGIMES
from stream_ccsd.alert.policy import ALERTED, Policy, decide, enter_score
from stream_ccsd.library.index import Index, Scratch
from stream_ccsd.library.laws import Laws
from stream_ccsd.library.tails import Tail, rarity
from stream_ccsd.library.windows import enter_amount
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.score.divergence import ChangeLaw, LocalLaw, divergence_score, regime_at
from stream_ccsd.score.outcome import habit_density, habit_score, outcome_parts
from stream_ccsd.scores import COMPILED, DIVERGENCE, HABIT, OUTCOME
from stream_ccsd.status import Status

# What became of an event.
SCORED, LATE, DUPLICATE, TOO_LATE = 0, 1, 2, 3
# Duplicates by id with another content, and those whose answer is no longer kept.
DIFFERENT, FORGOTTEN = 4, 5
STATUSES = (Status.SCORED, Status.LATE, Status.DUPLICATE, Status.TOO_LATE, Status.DUPLICATE, Status.DUPLICATE)

# An event as compiled code takes it, and its answer.
EVENT = np.dtype(
    [("row", "i8"), ("time", "f8"), ("amount", "f8"), ("category", "u4"), ("merchant", "u4"), ("id", "u8")]
)
OUTPUT = np.dtype(
    [
        ("status", "i8"),
        ("decision", "i8"),
        ("regime", "i8"),  # change flags of the transaction, -1 for an account's first
        ("count", "i8"),  # transactions of the account so far
        ("scores", "f8", (len(COMPILED),)),  # NaN where there is nothing to compare yet
        ("rarities", "f8", (len(COMPILED),)),  # of each, among normal transactions
        ("merchant_part", "f8"),
        ("category_part", "f8"),
        ("amount_part", "f8"),
        ("constant_part", "f8"),
        ("score", "f8"),  # the alert score: rarity of the score that alerts are on
        ("previous_maximum", "f8"),
        ("maximum", "f8"),
        ("accumulated", "f8"),  # sum of the account's highest scores
        ("newest_time", "f8"),  # of the account, before the event
    ]
)


class CompiledModel(NamedTuple):
    """Everything an event is judged by: library, laws, rates and policy. Read only."""

    library: Index
    change_law: ChangeLaw
    laws: Laws
    habit_log_decay: FloatArray
    habit_strength: float
    tails: tuple[Tail, ...]  # of each score
    fused_tail: Tail
    policy: Policy
    with_divergence: bool
    joining: AnyArray  # scores that the alert score is the rarest of
    fused: bool  # whether that is rated again, or is one score's own rarity
    grace: float
    lags: AnyArray  # ends of the earlier windows, 1 .. L


class Workspace(NamedTuple):
    """Working memory of one engine."""

    scratch: Scratch
    local: LocalLaw
    amounts: FloatArray
    categories: AnyArray
    merchants: AnyArray
    cap: FloatArray  # current alert interval, alerts in it

    @staticmethod
    def of(library: int, longest_history: int, local_history: int) -> Workspace:
        """Room for a library and histories of these sizes."""
        n = longest_history + 1
        return Workspace(
            Scratch.of_size(library),
            LocalLaw.of_size(local_history),
            np.empty(n),
            np.empty(n, np.uint32),
            np.empty(n, np.uint32),
            np.array([-np.inf, 0.0]),
        )


@structref.register
class _MachineType(types.StructRef):  # type: ignore[misc]
    def preprocess_fields(self, fields: Any) -> Any:
        """Literal types would make a kind of their own of every value."""
        return tuple((name, types.unliteral(kind)) for name, kind in fields)


class Machine(structref.StructRefProxy):  # type: ignore[misc]
    """Model and workspace behind one reference: handing sixty arrays to compiled code anew costs more than a score."""

    def __new__(cls, model: CompiledModel, workspace: Workspace) -> Machine:
        """See :func:`make_machine`."""
        return make_machine(model, workspace)


structref.define_boxing(_MachineType, Machine)
structref.define_constructor(Machine, _MachineType, ["model", "workspace"])


@njit(cache=True)
def make_machine(model: CompiledModel, workspace: Workspace) -> Any:
    """Put model and workspace behind one reference."""
    return Machine(model, workspace)


@njit(cache=True, nogil=True)
def run(
    machine: Any,
    accounts: AnyArray,
    histories: AnyArray,
    events: AnyArray,
    count: int,
    outputs: AnyArray,
    evidence: AnyArray,
) -> None:
    """Process the first ``count`` events in order; ``row`` of each says which account record and history are its.

    ``machine`` comes from :func:`make_machine`. Evidence is filled in for alerts.
    """
    model, workspace = machine.model, machine.workspace
    for i in range(count):
        row = events[i].row
        _step(model, workspace, accounts[row], histories[row], events[i], outputs[i], evidence[i])


@njit(cache=True, nogil=True)
def _step(
    model: CompiledModel, workspace: Workspace, account: Any, history: AnyArray, event: Any, out: Any, evidence: Any
) -> None:
    out.newest_time = account.newest_time
    _score_outcome(model, event, out)
    ago = _find(account, event.id)
    if ago >= 0:
        _answer_again(model, account, event, ago, out, evidence)
        return
    if event.time < account.newest_time - model.grace:
        out.status = TOO_LATE
        out.count = account.count
        return
    out.status = LATE if event.time < account.newest_time else SCORED
    held = _lay_out(workspace, account, history, event)
    _update_moments(account, event)
    amounts, categories, merchants = workspace.amounts[:held], workspace.categories[:held], workspace.merchants[:held]
    out.regime = regime_at(categories, merchants, held - 1) if held > 1 else -1
    likeness, weight = habit_density(model.laws, model.habit_log_decay, amounts, categories, merchants)
    density = np.exp(-(out.merchant_part + out.category_part + out.amount_part))
    out.scores[HABIT] = habit_score(model.laws, density, likeness, weight, model.habit_strength)
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
    if out.decision == ALERTED:
        _gather_evidence(model, workspace, account, event, found, local)
        _copy_evidence(account.evidence, evidence)
    _remember(account, history, event, out)
    _summarise(account, out)


@njit(cache=True, nogil=True)
def _score_outcome(model: CompiledModel, event: Any, out: Any) -> None:
    merchant, category, amount, constant, _ = outcome_parts(model.laws, event.amount, event.category, event.merchant)
    out.merchant_part, out.category_part, out.amount_part, out.constant_part = merchant, category, amount, constant
    out.scores[OUTCOME] = merchant + category + amount + constant


@njit(cache=True, nogil=True)
def _rate(model: CompiledModel, out: Any) -> None:
    """Rarities of all scores, and the alert score."""
    for i in range(len(out.scores)):
        out.rarities[i] = rarity(model.tails[i], out.scores[i])
    rarest = 0.0
    for i in model.joining:
        rarest = max(rarest, out.rarities[i])
    out.score = rarity(model.fused_tail, rarest) if model.fused else rarest


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
def _remember(account: Any, history: AnyArray, event: Any, out: Any) -> None:
    """Append the transaction and its answer, dropping the oldest where there is no workspace."""
    if account.held == len(history):
        for i in range(account.held - 1):
            history[i].amount = history[i + 1].amount
            history[i].category = history[i + 1].category
            history[i].merchant = history[i + 1].merchant
        account.held -= 1
    entry = history[account.held]
    entry.amount, entry.category, entry.merchant = event.amount, event.category, event.merchant
    account.held += 1
    number = account.count - 1
    account.ids[number % RECENT] = event.id
    answer = account.answers[number % ANSWERS]
    for i in range(len(out.scores)):
        answer.scores[i] = out.scores[i]
    answer.previous_maximum, answer.maximum = out.previous_maximum, account.top[0]
    answer.decision, answer.regime = out.decision, out.regime
    account.newest_time = max(account.newest_time, event.time)


@njit(cache=True, nogil=True)
def _find(account: Any, identity: int) -> int:
    """How many transactions ago this id was entered, 0 for the newest; -1 if it is not among those remembered."""
    for ago in range(min(account.count, RECENT)):
        if account.ids[(account.count - 1 - ago) % RECENT] == identity:
            return ago
    return -1


@njit(cache=True, nogil=True)
def _answer_again(model: CompiledModel, account: Any, event: Any, ago: int, out: Any, evidence: Any) -> None:
    """A duplicate changes nothing and is answered as it was the first time, as far back as answers are kept."""
    _summarise(account, out)
    if ago >= ANSWERS:
        out.status = FORGOTTEN
        return
    answer = account.answers[(account.count - 1 - ago) % ANSWERS]
    out.status = DUPLICATE if out.scores[OUTCOME] == answer.scores[OUTCOME] else DIFFERENT
    for i in range(len(out.scores)):
        out.scores[i] = answer.scores[i]
    out.previous_maximum, out.maximum = answer.previous_maximum, answer.maximum
    out.decision, out.regime = answer.decision, answer.regime
    _rate(model, out)
    if out.decision == ALERTED and account.evidence.id == event.id:
        _copy_evidence(account.evidence, evidence)
    elif out.decision == ALERTED:
        evidence.reach = 0.0
        for i in range(REGIMES):
            evidence.regime_share[i] = 0.0


@njit(cache=True, nogil=True)
def _summarise(account: Any, out: Any) -> None:
    out.count, out.maximum = account.count, account.top[0]
    out.accumulated = 0.0
    for value in account.top:
        if value > 0.0:
            out.accumulated += value


@njit(cache=True, nogil=True)
def _gather_evidence(
    model: CompiledModel, workspace: Workspace, account: Any, event: Any, found: int, local: int
) -> None:
    """The heaviest regimes among the neighbours and both densities over abs(Δz), into the account."""
    evidence = account.evidence
    evidence.id = event.id
    evidence.reach = 0.0
    for i in range(REGIMES):
        evidence.regime_share[i] = 0.0
    for g in range(DENSITY_POINTS):
        evidence.local_density[g] = evidence.global_density[g] = 0.0
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
        evidence.regime_share[i] = shares[group]
        evidence.regime_category[i] = model.library.category[group]
        evidence.regime_merchant[i] = model.library.merchant[group]
        shares[group] = -1.0
    evidence.reach = reach
    sigma = model.change_law.sigma_y
    norm = 1.0 / (sigma * np.sqrt(2.0 * np.pi))
    for g in range(DENSITY_POINTS):
        at = reach * g / (DENSITY_POINTS - 1)
        density = 0.0
        for i in range(local):
            density += workspace.local.weights[i] * norm * np.exp(-0.5 * ((at - workspace.local.y[i]) / sigma) ** 2)
        evidence.local_density[g] = density
        density = 0.0
        for j in range(found):
            y = model.library.y[workspace.scratch.rows[j]]
            density += workspace.scratch.log_weights[j] * norm * np.exp(-0.5 * ((at - y) / sigma) ** 2)
        evidence.global_density[g] = density


@njit(cache=True, nogil=True)
def _copy_evidence(source: Any, target: Any) -> None:
    target.id, target.reach = source.id, source.reach
    for i in range(REGIMES):
        target.regime_share[i] = source.regime_share[i]
        target.regime_category[i] = source.regime_category[i]
        target.regime_merchant[i] = source.regime_merchant[i]
    for g in range(DENSITY_POINTS):
        target.local_density[g] = source.local_density[g]
        target.global_density[g] = source.global_density[g]
