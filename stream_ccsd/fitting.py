"""Fitting a model on transactions of accounts that are taken to be normal. No label is read."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stream_ccsd.account import OUTPUT, VIEW, AccountCodec, Accounts, Batch
from stream_ccsd.alerts.policy import threshold_by_budget
from stream_ccsd.calendar import Calendar
from stream_ccsd.divergence import median_bandwidth
from stream_ccsd.divergence.search.index import build_index
from stream_ccsd.divergence.search.windows import WIDEST_CHANGE, AccountHistory, library_windows
from stream_ccsd.engine import added_score, compile_model
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.evidence.densities import CELL, Densities
from stream_ccsd.evidence.estimation import Axes, Choices, ClockDensities, Observations, build_densities
from stream_ccsd.evidence.profile import decay_by_lag, views_of
from stream_ccsd.evidence.smoothing import choose
from stream_ccsd.evidence.supervised import term_names
from stream_ccsd.evidence.terms import evidence_of
from stream_ccsd.fields import OWN, density_terms
from stream_ccsd.files import Progress
from stream_ccsd.model.calibration import Tail, fit_tail
from stream_ccsd.model.codes import Codes
from stream_ccsd.model.model import Model, state_sizes_of
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, IntArray, shuffled
from stream_ccsd.runtime.step import Workspace, make_scoring_context, run
from stream_ccsd.scores import COMPILED, DIVERGENCE, FUSED, scores
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import Transaction, category_value, misfit, number_value, unsound

# Strength at which amounts are those of the category, whatever the merchant.
_NO_MERCHANT = 1e9

# The largest share of the alert budget for takeover: most fraud shows in single transactions.
_MOST_FOR_TAKEOVER = 0.2

# How often transactions that may be fraud are weighted again, by densities in which they count for less.
_ROUNDS = 5


class FitError(StreamCcsdError):
    """There are too few transactions or accounts to fit on."""


def fit(
    transactions: Iterable[Transaction], settings: Settings | None = None, progress: Progress | None = None
) -> Model:
    """Build a model from transactions of normal accounts, in any order of accounts and in time order within each.

    Everything is chosen and calibrated without an account's own transactions: accounts are dealt into folds, and each
    fold is scored by densities of the others. The order of the accounts changes nothing.

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
    histories, codes, (first, last) = _collect(transactions, settings)
    accounts = sorted(histories)
    order = shuffled(accounts, settings.seed)
    held_out = set(order[: max(1, round(settings.holdout * len(accounts)))])
    in_library = [histories[a] for a in accounts if a not in held_out]
    if not in_library:
        raise FitError(f"holdout {settings.holdout} leaves no account to learn from: give more accounts")

    windows = library_windows(in_library, settings)
    sigma_x = settings.sigma_x or _bandwidth(windows.z, settings)
    sigma_y = settings.sigma_y or _bandwidth(windows.change, settings)
    index = build_index(windows, settings, sigma_x)
    if len(windows) and np.abs(windows.change).max() > WIDEST_CHANGE * sigma_y:
        raise FitError(f"sigma_y {sigma_y:g} is too narrow for changes up to {np.abs(windows.change).max():g}")
    calendar = Calendar.choose(settings.time_unit, settings.time_origin, (first, last))
    folds = {account: place % min(settings.folds, len(order)) for place, account in enumerate(order)}
    data = _TrainingData.of([histories[a] for a in accounts], [folds[a] for a in accounts], settings, calendar, codes)
    total = len(data.seen.cell)
    model = Model(
        settings=settings,
        index=index,
        laws=data.densities(),
        tails={name: fit_tail(np.empty(0), settings.tail_share) for name in (s.name for s in COMPILED)},
        sigma_y=sigma_y,
        takeover_share=_takeover_share(data.chosen, settings),
        threshold=threshold_by_budget(settings.alert_rate),
        fingerprint=_fingerprint(histories, accounts),
        facts={
            "accounts": len(accounts),
            "transactions": total,
            "held_out_accounts": len(held_out),
            "library_windows": len(windows),
            "first_time": first,
            "last_time": last,
            "gains": {name: round(float(gain), 4) for name, gain in data.chosen.gains.items()},
        },
        names=codes.names,
        accounts=tuple(accounts),
        calendar=calendar,
    )
    in_folds = [np.flatnonzero([folds[a] == fold for a in accounts]) for fold in sorted(set(folds.values()))]
    held_out_places = np.flatnonzero([a in held_out for a in accounts])
    return replace(model, tails=_calibrate(model, data, in_folds, held_out_places, progress))


def _bandwidth(points: FloatArray, settings: Settings) -> float:
    """The median rule; where most pairs are equal, over the pairs that differ; 1 where nothing differs at all."""
    for chosen in (points, np.unique(points, axis=0)):
        try:
            return median_bandwidth(chosen, seed=settings.seed)
        except ValueError:
            continue
    return 1.0


_EVENT_COLUMNS = {"time": "times", "amount": "amounts", "category": "categories", "merchant": "merchants"}
_COLUMNS = ("times", "amounts", "categories", "merchants", "names", "numbers")


def _collect(
    transactions: Iterable[Transaction], settings: Settings
) -> tuple[dict[str, AccountHistory], Codes, tuple[float, float]]:
    """Histories by account, codes of all names, and the times between which everything lies."""
    rows: dict[str, list[Transaction]] = {}
    names: set[str] = set()
    first, last = math.inf, -math.inf
    declared = settings.declared
    categories = [f.name for f in declared if f.kind == "category"]
    numbers = [f.name for f in declared if f.kind == "number"]
    for transaction in transactions:
        fault = unsound(transaction) or misfit(transaction, declared)
        if fault:
            raise FitError(f"a model is fitted on transactions only; {_named(transaction)}: {fault}")
        rows.setdefault(transaction.account, []).append(transaction)
        names |= {transaction.category, transaction.merchant}
        names.update(category_value(transaction, name) for name in categories)
        first, last = min(first, transaction.time), max(last, transaction.time)
    if len(rows) < 2:
        raise FitError(f"a model needs transactions of at least 2 normal accounts, got {len(rows)}")
    code = Codes.of(names)
    histories = {}
    for account, entries in rows.items():
        entries.sort(key=lambda t: t.time)
        count = len(entries)
        histories[account] = AccountHistory(
            np.array([t.time for t in entries]),
            np.array([t.amount for t in entries]),
            np.array([code(t.category) for t in entries], np.uint32),
            np.array([code(t.merchant) for t in entries], np.uint32),
            np.array([[code(category_value(t, f)) for t in entries] for f in categories], np.uint32).reshape(-1, count),
            np.array([[number_value(t, f) for t in entries] for f in numbers], float).reshape(-1, count),
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


@dataclass(frozen=True, eq=False)
class _TrainingData:
    """The transactions of a fit, their weights, and what was chosen."""

    histories: list[AccountHistory]
    batch: Batch  # all of their events
    seen: Observations
    weight: FloatArray
    chosen: Choices
    axes: Axes
    clock: ClockDensities
    settings: Settings

    @classmethod
    def of(
        cls, histories: list[AccountHistory], fold: list[int], settings: Settings, calendar: Calendar, codes: Codes
    ) -> _TrainingData:
        """Observe everything and choose; where there may be fraud in it, weight and choose again."""
        if settings.contamination > 0.0 and settings.merchant_strength is None:
            # The amounts of a merchant at whom mostly fraud happens would explain themselves.
            settings = replace(settings, merchant_strength=_NO_MERCHANT)
        batch = _events(histories, settings)
        seen = _observe(histories, np.repeat(fold, [len(h.amounts) for h in histories]), settings, batch)
        axes = Axes.of(seen)
        blank, weight = Choices(0.1, 1.0, 1.0, 1.0), np.ones(len(seen.cell))
        data = cls(histories, batch, seen, weight, blank, axes, _clock(calendar), settings)
        data = replace(data, seen=replace(seen, view=data._views()))
        data = data._choose()
        if settings.contamination > 0.0:
            for _ in range(_ROUNDS):
                data = replace(data, weight=data._reweighted(codes("")))
            data = data._choose()
        return data

    def densities(self, without_fold: int | None = None) -> Densities:
        """Densities of all transactions, or of those of the other folds."""
        weight = self.weight if without_fold is None else self.weight * (self.seen.fold != without_fold)
        terms = density_terms(self.settings.declared)
        return build_densities(self.seen, weight, self.chosen, self.axes, self.settings, self.clock, terms)

    def _choose(self) -> _TrainingData:
        return replace(self, chosen=choose(self.seen, self.weight, self.settings, self.axes))

    def _views(self) -> FloatArray:
        codec = AccountCodec(*state_sizes_of(self.settings))
        decay, densities, slab = decay_by_lag(self.settings), self.densities(), codec.slab(1)
        views = np.empty((len(self.seen.cell), VIEW + len(self.seen.names)))
        done = 0
        for history in self.histories:
            codec.clear(slab, 0)
            own = slice(done, done := done + len(history.amounts))
            events, names = self.batch.events[own], self.batch.names[own]
            views_of(densities, decay, slab.records[0], slab.histories[0], slab.named[0], events, names, views[own])
        return views

    def _reweighted(self, missing: int) -> FloatArray:
        """The oddest transactions hardly count: as likely as not to be fraud at the share that may be."""
        batch = self.batch
        evidence = evidence_of(
            self.densities(), batch.events, batch.names, batch.numbers, self.seen.view, np.uint32(missing), batch.terms
        )
        line = np.quantile(evidence, 1.0 - self.settings.contamination)
        weight: FloatArray = 1.0 / (1.0 + np.exp(np.minimum(evidence - line, 700.0)))
        return weight


def _clock(calendar: Calendar) -> ClockDensities:
    """How to get hour and weekday of a time, where it has a unit; without an origin, time 0 is a Monday's midnight."""
    day = calendar.of_days(1.0)
    if day is None:
        return ClockDensities()
    if calendar.origin is None:
        return ClockDensities(day)
    origin = calendar.origin
    midnight = origin.replace(hour=0, minute=0, second=0, microsecond=0)
    return ClockDensities(day, (origin - midnight).total_seconds() / 86400.0, float(origin.weekday()))


def _events(histories: list[AccountHistory], settings: Settings) -> Batch:
    """All transactions as events, account after account, each account in row 0."""
    total, declared = sum(len(h.amounts) for h in histories), settings.declared
    named = sum(f.kind == "category" for f in declared)
    batch = Batch.of(total, len(term_names(declared)), named, len(declared) - named)
    events = batch.events
    for name, column in _EVENT_COLUMNS.items():
        events[name] = np.concatenate([getattr(h, column) for h in histories])
    events["id"] = np.concatenate([np.arange(len(h.amounts)) for h in histories])
    batch.names[:] = np.concatenate([h.names.T.reshape(len(h.amounts), -1) for h in histories])
    batch.numbers[:] = np.concatenate([h.numbers.T.reshape(len(h.amounts), -1) for h in histories])
    return batch


def _observe(histories: list[AccountHistory], fold: IntArray, settings: Settings, batch: Batch) -> Observations:
    """The same as columns for the densities."""
    events = batch.events
    category, merchant = events["category"].astype(np.uint64), events["merchant"].astype(np.uint64)
    categories, category_place = np.unique(category, return_inverse=True)
    pairs, pair_place = np.unique((category << np.uint64(32)) | merchant, return_inverse=True)
    log_amount = np.log1p(events["amount"])
    gaps = [np.append(np.nan, np.maximum(np.diff(h.times), 0.0)) for h in histories]
    return Observations(
        fold=fold,
        cell=np.rint(log_amount / CELL).astype(np.int64),
        log_amount=log_amount,
        gap=np.concatenate(gaps),
        category=category_place,
        pair=pair_place,
        categories=categories,
        pairs=pairs,
        names=np.ascontiguousarray(batch.names.T),
        numbers=np.ascontiguousarray(batch.numbers.T),
        fields=settings.declared,
    )


def _takeover_share(chosen: Choices, settings: Settings) -> float:
    """Of the alert budget: the more, the more of an account's behaviour its own past explains."""
    if settings.takeover_share is not None:
        return settings.takeover_share
    gain = sum(max(0.0, gain) for name, gain in chosen.gains.items() if name.endswith(OWN))
    # Where fraud is among what evidence is rated on, its rates are cautious, and takeover must not outrank it for that.
    most = _MOST_FOR_TAKEOVER if settings.contamination == 0.0 else _MOST_FOR_TAKEOVER / 20.0
    return float(most * -np.expm1(-gain))


def _calibrate(
    model: Model, data: _TrainingData, folds: list[IntArray], held_out: IntArray, progress: Progress | None
) -> dict[str, Tail]:
    """Tail rates of every score, by densities without the fold; of the divergence by accounts not in the library."""
    sizes = [len(h.amounts) for h in data.histories]
    start = np.append(0, np.cumsum(sizes))
    outputs, total = np.zeros(start[-1], OUTPUT), int(start[-1])
    done = 0

    def rows_of(places: IntArray) -> IntArray:
        return np.concatenate([np.arange(start[p], start[p + 1]) for p in places])

    def tick(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(min(done, total), total)

    quick = replace(model, settings=replace(model.settings, divergence=False, alert_on=FUSED))
    for fold, places in enumerate(folds):
        left_out = replace(quick, laws=data.densities(without_fold=fold))
        outputs[rows_of(places)] = score_histories(left_out, [data.histories[p] for p in places], tick)[0]
    if model.settings.divergence:
        slow = score_histories(model, [data.histories[p] for p in held_out])[0]
        outputs["scores"][rows_of(held_out), DIVERGENCE] = slow["scores"][:, DIVERGENCE]
    share = model.settings.tail_share
    whose = np.repeat(np.arange(len(sizes)), sizes)
    tails = {s.name: fit_tail(outputs["scores"][:, i], share, whose) for i, s in enumerate(COMPILED)}
    for score in scores():
        if score.compute is not None and score.rated:
            tails[score.name] = fit_tail(added_score(score, outputs, data.batch.events), share, whose)
    return tails


def score_histories(
    model: Model, histories: list[AccountHistory], tick: Callable[[int], None] | None = None
) -> tuple[AnyArray, AnyArray]:
    """The engine's answers to whole histories, account after account, as one table of outputs, and their events."""
    settings = model.settings
    codec = AccountCodec(*model.state_sizes)
    workspace = Workspace.of(model.index, codec.longest_history, settings.local_history, codec.sizes.named)
    batch = _events(histories, settings)
    slab = codec.slab(1)
    accounts = Accounts(slab.records, slab.histories, slab.named, slab.views)
    context = make_scoring_context(compile_model(model), workspace, accounts, batch)
    done = 0
    for history in histories:
        codec.clear(slab, 0)
        run(context, workspace.block, done, done + len(history.amounts), with_divergence=settings.divergence)
        done += len(history.amounts)
        if tick:
            tick(len(history.amounts))
    return batch.outputs, batch.events
