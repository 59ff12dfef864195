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
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.score.divergence import ChangeLaw, LocalLaw, divergence_score, regime_at
from stream_ccsd.score.outcome import habit_density, habit_score, outcome_parts
from stream_ccsd.status import Status

# What became of an event.
SCORED, LATE, DUPLICATE, TOO_LATE = 0, 1, 2, 3
# Duplicates by id with another content, and those whose answer is no longer kept.
DIFFERENT, FORGOTTEN = 4, 5
STATUSES = (Status.SCORED, Status.LATE, Status.DUPLICATE, Status.TOO_LATE, Status.DUPLICATE, Status.DUPLICATE)

FUSED, OUTCOME, HABIT, DIVERGENCE = 0, 1, 2, 3
SCORE_NAMES = ("fused", "outcome", "habit", "divergence")

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
        ("outcome", "f8"),
        ("merchant_part", "f8"),
        ("category_part", "f8"),
        ("amount_part", "f8"),
        ("constant_part", "f8"),
        ("habit", "f8"),
        ("divergence", "f8"),
        ("outcome_rarity", "f8"),
        ("habit_rarity", "f8"),
        ("divergence_rarity", "f8"),
        ("score", "f8"),  # the alert score: rarity of the score that alerts are on
        ("previous_maximum", "f8"),
        ("maximum", "f8"),
        ("accumulated", "f8"),  # sum of the account's highest scores
        ("newest_time", "f8"),  # of the account, before the event
    ]
)


class Tails(NamedTuple):
    """Calibration of each score."""

    outcome: Tail
    habit: Tail
    divergence: Tail
    fused: Tail


class Kit(NamedTuple):
    """Everything an event is judged by: library, laws, rates and policy. Read only."""

    library: Index
    change_law: ChangeLaw
    laws: Laws
    habit_log_decay: FloatArray
    habit_strength: float
    tails: Tails
    policy: Policy
    with_divergence: bool
    alert_on: int
    grace: float
    lags: AnyArray  # ends of the earlier windows, 1 .. L


class Room(NamedTuple):
    """Working memory of one engine."""

    scratch: Scratch
    local: LocalLaw
    amounts: FloatArray
    categories: AnyArray
    merchants: AnyArray
    cap: FloatArray  # current alert interval, alerts in it

    @staticmethod
    def of(library: int, longest_history: int, local_history: int) -> Room:
        """Room for a library and histories of these sizes."""
        n = longest_history + 1
        return Room(
            Scratch.of_size(library),
            LocalLaw.of_size(local_history),
            np.empty(n),
            np.empty(n, np.uint32),
            np.empty(n, np.uint32),
            np.array([-np.inf, 0.0]),
        )


@structref.register
class _BenchType(types.StructRef):  # type: ignore[misc]
    def preprocess_fields(self, fields: Any) -> Any:
        """Literal types would make a kind of their own of every value."""
        return tuple((name, types.unliteral(kind)) for name, kind in fields)


class Bench(structref.StructRefProxy):  # type: ignore[misc]
    """Kit and room behind one reference: handing sixty arrays to compiled code anew costs more than a score."""

    def __new__(cls, kit: Kit, room: Room) -> Bench:
        """See :func:`make_bench`."""
        return make_bench(kit, room)


structref.define_boxing(_BenchType, Bench)
structref.define_constructor(Bench, _BenchType, ["kit", "room"])


@njit(cache=True)
def make_bench(kit: Kit, room: Room) -> Any:
    """Put kit and room behind one reference."""
    return Bench(kit, room)


@njit(cache=True, nogil=True)
def run(
    bench: Any,
    accounts: AnyArray,
    histories: AnyArray,
    events: AnyArray,
    count: int,
    outputs: AnyArray,
    evidence: AnyArray,
) -> None:
    """Process the first ``count`` events in order; ``row`` of each says which account record and history are its.

    ``bench`` comes from :func:`make_bench`. Evidence is filled in for alerts.
    """
    kit, room = bench.kit, bench.room
    for i in range(count):
        row = events[i].row
        _step(kit, room, accounts[row], histories[row], events[i], outputs[i], evidence[i])


@njit(cache=True, nogil=True)
def _step(kit: Kit, room: Room, account: Any, history: AnyArray, event: Any, out: Any, evidence: Any) -> None:
    out.newest_time = account.newest_time
    _score_outcome(kit, event, out)
    ago = _find(account, event.id)
    if ago >= 0:
        _answer_again(kit, account, event, ago, out, evidence)
        return
    if event.time < account.newest_time - kit.grace:
        out.status = TOO_LATE
        out.count = account.count
        return
    out.status = LATE if event.time < account.newest_time else SCORED
    held = _lay_out(room, account, history, event)
    _update_moments(account, event)
    amounts, categories, merchants = room.amounts[:held], room.categories[:held], room.merchants[:held]
    out.regime = regime_at(categories, merchants, held - 1) if held > 1 else -1
    likeness, weight = habit_density(kit.laws, kit.habit_log_decay, amounts, categories, merchants)
    density = np.exp(-(out.merchant_part + out.category_part + out.amount_part))
    out.habit = habit_score(kit.laws, density, likeness, weight, kit.habit_strength)
    out.divergence = np.nan
    found = local = 0
    if kit.with_divergence:
        deviation = np.sqrt(account.squares / account.count)
        out.divergence, found, local = divergence_score(
            kit.library,
            kit.change_law,
            amounts,
            categories,
            merchants,
            account.mean,
            deviation,
            kit.lags,
            room.scratch,
            room.local,
        )
    _rate(kit, out)
    out.previous_maximum = enter_score(account, out.score)
    out.decision = decide(kit.policy, account, out.score, event.time, room.cap)
    if out.decision == ALERTED:
        _gather_evidence(kit, room, account, event, found, local)
        _copy_evidence(account.evidence, evidence)
    _remember(account, history, event, out)
    _summarise(account, out)


@njit(cache=True, nogil=True)
def _score_outcome(kit: Kit, event: Any, out: Any) -> None:
    merchant, category, amount, constant, _ = outcome_parts(kit.laws, event.amount, event.category, event.merchant)
    out.merchant_part, out.category_part, out.amount_part, out.constant_part = merchant, category, amount, constant
    out.outcome = merchant + category + amount + constant


@njit(cache=True, nogil=True)
def _rate(kit: Kit, out: Any) -> None:
    """Rarities of all scores, and the alert score."""
    out.outcome_rarity = rarity(kit.tails.outcome, out.outcome)
    out.habit_rarity = rarity(kit.tails.habit, out.habit)
    out.divergence_rarity = rarity(kit.tails.divergence, out.divergence)
    if kit.alert_on == FUSED:
        out.score = rarity(kit.tails.fused, max(out.outcome_rarity, out.habit_rarity))
    elif kit.alert_on == OUTCOME:
        out.score = out.outcome_rarity
    elif kit.alert_on == HABIT:
        out.score = out.habit_rarity
    else:
        out.score = out.divergence_rarity


@njit(cache=True, nogil=True)
def _lay_out(room: Room, account: Any, history: AnyArray, event: Any) -> int:
    """The account's history and the new transaction as contiguous columns; returns their length."""
    for i in range(account.held):
        entry = history[i]
        room.amounts[i], room.categories[i], room.merchants[i] = entry.amount, entry.category, entry.merchant
    held = account.held
    room.amounts[held], room.categories[held], room.merchants[held] = event.amount, event.category, event.merchant
    return held + 1


@njit(cache=True, nogil=True)
def _update_moments(account: Any, event: Any) -> None:
    account.count += 1
    delta = event.amount - account.mean
    account.mean += delta / account.count
    account.squares += delta * (event.amount - account.mean)


@njit(cache=True, nogil=True)
def _remember(account: Any, history: AnyArray, event: Any, out: Any) -> None:
    """Append the transaction and its answer, dropping the oldest where there is no room."""
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
    answer.outcome, answer.habit, answer.divergence = out.outcome, out.habit, out.divergence
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
def _answer_again(kit: Kit, account: Any, event: Any, ago: int, out: Any, evidence: Any) -> None:
    """A duplicate changes nothing and is answered as it was the first time, as far back as answers are kept."""
    _summarise(account, out)
    if ago >= ANSWERS:
        out.status = FORGOTTEN
        return
    answer = account.answers[(account.count - 1 - ago) % ANSWERS]
    out.status = DUPLICATE if out.outcome == answer.outcome else DIFFERENT
    out.outcome, out.habit, out.divergence = answer.outcome, answer.habit, answer.divergence
    out.previous_maximum, out.maximum = answer.previous_maximum, answer.maximum
    out.decision, out.regime = answer.decision, answer.regime
    _rate(kit, out)
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
def _gather_evidence(kit: Kit, room: Room, account: Any, event: Any, found: int, local: int) -> None:
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
    shares = np.zeros(len(kit.library.log_prior))
    reach = room.local.y[:local].max()
    for j in range(found):
        row = room.scratch.rows[j]
        shares[np.searchsorted(kit.library.start, row, side="right") - 1] += room.scratch.log_weights[j]
        reach = max(reach, kit.library.y[row])
    for i in range(min(REGIMES, len(shares))):
        group = np.argmax(shares)
        evidence.regime_share[i] = shares[group]
        evidence.regime_category[i] = kit.library.category[group]
        evidence.regime_merchant[i] = kit.library.merchant[group]
        shares[group] = -1.0
    evidence.reach = reach
    sigma = kit.change_law.sigma_y
    norm = 1.0 / (sigma * np.sqrt(2.0 * np.pi))
    for g in range(DENSITY_POINTS):
        at = reach * g / (DENSITY_POINTS - 1)
        density = 0.0
        for i in range(local):
            density += room.local.weights[i] * norm * np.exp(-0.5 * ((at - room.local.y[i]) / sigma) ** 2)
        evidence.local_density[g] = density
        density = 0.0
        for j in range(found):
            y = kit.library.y[room.scratch.rows[j]]
            density += room.scratch.log_weights[j] * norm * np.exp(-0.5 * ((at - y) / sigma) ** 2)
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
