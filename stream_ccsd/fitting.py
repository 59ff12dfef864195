"""Learning what normal looks like, from transactions of accounts that are taken to be normal. No label is read."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numba import njit

from stream_ccsd.account import EVIDENCE, AccountCodec
from stream_ccsd.alert.threshold import threshold_by_budget
from stream_ccsd.calendar import Calendar
from stream_ccsd.codes import Codes
from stream_ccsd.divergence import median_bandwidth
from stream_ccsd.engine import added_score, compile_model
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.library.index import build_index
from stream_ccsd.library.laws import Laws, build_laws
from stream_ccsd.library.model import Model
from stream_ccsd.library.tails import Tail, fit_tail, rarities
from stream_ccsd.library.windows import AccountHistory, library_windows
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.progress import Progress
from stream_ccsd.sampling import shuffled
from stream_ccsd.score.outcome import habit_density, habit_log_decay, outcome_parts
from stream_ccsd.scores import COMPILED, FUSED, scores
from stream_ccsd.settings import Settings
from stream_ccsd.step import EVENT, OUTPUT, Workspace, make_machine, run
from stream_ccsd.transaction import Transaction, unsound

# Changes may lie this many bandwidths apart before features for them become absurd.
_WIDEST = 1e4

# Strengths of the normal law against an account's own that are tried, in transactions.
_STRENGTHS = 2.0 ** np.arange(-1, 15)


class FitError(StreamCcsdError):
    """There is not enough to learn from."""


def fit(
    transactions: Iterable[Transaction], settings: Settings | None = None, progress: Progress | None = None
) -> Model:
    """Build a model from transactions of normal accounts, in any order of accounts and in time order within each.

    A share of the accounts (``settings.holdout``) stays out of library and laws; tail rates, the strength of habits
    and hence the alert threshold are calibrated on it. With the same transactions, the order of the accounts changes
    nothing.

    Parameters
    ----------
    transactions
        Only of accounts taken to be normal: whatever is in here will not be noticed later.
    settings
        Defaults to the paper's values.
    progress
        Called with ``(done, total)`` calibrated transactions.

    Raises
    ------
    FitError
        With fewer than two accounts: one to learn from and one to calibrate on.
    """
    settings = settings or Settings()
    histories, codes, (first, last) = _collect(transactions)
    accounts = sorted(histories)
    held_out = set(shuffled(accounts, settings.seed)[: max(1, round(settings.holdout * len(accounts)))])
    learnt = [histories[a] for a in accounts if a not in held_out]
    if not learnt:
        raise FitError(f"holdout {settings.holdout} leaves no account to learn from: give more accounts")
    calibration = [histories[a] for a in accounts if a in held_out]

    windows = library_windows(learnt, settings)
    sigma_x = settings.sigma_x or _bandwidth(windows.z, settings)
    sigma_y = settings.sigma_y or _bandwidth(windows.change, settings)
    index = build_index(windows, settings, sigma_x)
    if len(windows) and np.abs(windows.change).max() > _WIDEST * sigma_y:
        raise FitError(f"sigma_y {sigma_y:g} is too narrow for changes up to {np.abs(windows.change).max():g}")
    _, amounts, categories, merchants = (np.concatenate([getattr(h, c) for h in learnt]) for c in _COLUMNS)
    laws = build_laws(amounts, categories, merchants, settings)
    strength = settings.habit_strength or _best_strength(laws, calibration, settings)
    model = Model(
        settings=settings,
        index=index,
        laws=laws,
        tails={name: fit_tail(np.empty(0), settings.tail_share) for name in (FUSED, *(s.name for s in COMPILED))},
        sigma_y=sigma_y,
        habit_strength=strength,
        threshold=threshold_by_budget(settings.alert_rate),
        fingerprint=_fingerprint(histories, accounts),
        facts={
            "accounts": len(learnt),
            "transactions": int(sum(len(h.amounts) for h in learnt)),
            "held_out_accounts": len(calibration),
            "held_out_transactions": int(sum(len(h.amounts) for h in calibration)),
            "library_windows": len(windows),
            "first_time": first,
            "last_time": last,
        },
        names=codes.names,
        accounts=tuple(accounts),
        calendar=Calendar.choose(settings.time_unit, settings.time_origin, (first, last)),
    )
    return replace(model, tails=_calibrate(model, calibration, progress))


def _bandwidth(points: FloatArray, settings: Settings) -> float:
    """The median rule; where most pairs are equal, over the pairs that differ; 1 where nothing differs at all."""
    for chosen in (points, np.unique(points, axis=0)):
        try:
            return median_bandwidth(chosen, seed=settings.seed)
        except ValueError:
            continue
    return 1.0


_COLUMNS = ("times", "amounts", "categories", "merchants")


def _collect(
    transactions: Iterable[Transaction],
) -> tuple[dict[str, AccountHistory], Codes, tuple[float, float]]:
    """Histories by account, codes of all names, and the times between which everything lies."""
    rows: dict[str, list[Transaction]] = {}
    names: set[str] = set()
    first, last = math.inf, -math.inf
    for transaction in transactions:
        fault = unsound(transaction)
        if fault:
            raise FitError(f"a model is fitted on transactions only; {_named(transaction)}: {fault}")
        rows.setdefault(transaction.account, []).append(transaction)
        names |= {transaction.category, transaction.merchant}
        first, last = min(first, transaction.time), max(last, transaction.time)
    if len(rows) < 2:
        raise FitError(f"a model needs transactions of at least 2 normal accounts, got {len(rows)}")
    code = Codes.of(names)
    histories = {}
    for account, entries in rows.items():
        entries.sort(key=lambda t: t.time)
        histories[account] = AccountHistory(
            np.array([t.time for t in entries]),
            np.array([t.amount for t in entries]),
            np.array([code(t.category) for t in entries], np.uint32),
            np.array([code(t.merchant) for t in entries], np.uint32),
        )
    return histories, code, (float(first), float(last))


def _named(transaction: Any) -> str:
    return f"transaction {getattr(transaction, 'id', None)!r} of account {getattr(transaction, 'account', None)!r}"


def _fingerprint(histories: dict[str, AccountHistory], accounts: list[str]) -> str:
    digest = hashlib.sha256()
    for account in accounts:
        digest.update(account.encode("utf-8", "surrogatepass") + b"\0")
        for column in _COLUMNS:
            digest.update(np.ascontiguousarray(getattr(histories[account], column)).tobytes())
    return digest.hexdigest()


def _best_strength(laws: Laws, calibration: list[AccountHistory], settings: Settings) -> float:
    """The strength under which held-out normal transactions are most likely: weak habits, strong normal law."""
    log_decay = habit_log_decay(settings)
    terms = [_habit_terms(laws, log_decay, h.amounts, h.categories, h.merchants) for h in calibration]
    density, likeness, weight = (np.concatenate(column) for column in zip(*terms, strict=True))
    cost = [-np.mean(np.log((likeness + s * density) / (weight + s))) for s in _STRENGTHS]
    return float(_STRENGTHS[int(np.argmin(cost))])


def _calibrate(model: Model, calibration: list[AccountHistory], progress: Progress | None) -> dict[str, Tail]:
    """Tail rates of every score, from the engine's own scores of the held-out accounts."""
    outputs, events = score_histories(model, calibration, progress)
    share = model.settings.tail_share
    tails = {s.name: fit_tail(outputs["scores"][:, i], share) for i, s in enumerate(COMPILED)}
    rarest = np.zeros(len(outputs))
    for i, score in enumerate(COMPILED):
        if score.joins_alert:
            rarest = np.maximum(rarest, rarities(tails[score.name], outputs["scores"][:, i]))
    tails[FUSED] = fit_tail(rarest, share)
    for score in scores():
        if score.compute is not None and score.rated:
            tails[score.name] = fit_tail(added_score(score, outputs, events), share)
    return tails


def score_histories(
    model: Model, histories: list[AccountHistory], progress: Progress | None = None
) -> tuple[AnyArray, AnyArray]:
    """The engine's answers to whole histories, account after account, as one table of outputs, and their events."""
    settings = model.settings
    codec = AccountCodec(settings.window, settings.local_history)
    workspace = Workspace.of(len(model.index.z), codec.longest_history, settings.local_history)
    machine = make_machine(compile_model(model), workspace)
    total = sum(len(h.amounts) for h in histories)
    outputs, events = np.zeros(total, OUTPUT), np.zeros(total, EVENT)
    done = 0
    slab = codec.slab(1)
    for history in histories:
        codec.clear(slab, 0)
        n = len(history.amounts)
        own = events[done : done + n]
        own["time"], own["amount"] = history.times, history.amounts
        own["category"], own["merchant"] = history.categories, history.merchants
        own["id"] = np.arange(n)
        evidence = np.empty(n, EVIDENCE)
        run(machine, slab.records, slab.histories, own, n, outputs[done : done + n], evidence)
        done += n
        if progress:
            progress(done, total)
    return outputs, events


@njit(cache=True, nogil=True)
def _habit_terms(
    laws: Laws, log_decay: FloatArray, amounts: FloatArray, categories: AnyArray, merchants: AnyArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    n = len(amounts)
    density, likeness, weight = np.empty(n), np.empty(n), np.empty(n)
    for t in range(n):
        density[t] = outcome_parts(laws, amounts[t], categories[t], merchants[t])[4]
        first = max(0, t + 1 - len(log_decay))
        likeness[t], weight[t] = habit_density(
            laws, log_decay, amounts[first : t + 1], categories[first : t + 1], merchants[first : t + 1]
        )
    return density, likeness, weight
