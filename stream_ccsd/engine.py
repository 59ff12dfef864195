"""The engine: transactions in, scores and alerts out, one at a time or in batches, with all state per account.

What happens to an event:

===========  ==========================================================================================
scored       its time is at or after its account's newest: it is added to the account and scored
late         up to ``settings.grace`` behind: added in the order of arrival, scored and marked
too late     further behind: refused with the reason; nothing changes
too far      later than the model can still be in use (``Model.latest_time``): refused with the reason;
ahead        nothing changes, so that a mistaken date does not make what follows too late
duplicate    its id is among the account's newest: nothing changes, the answer is that of the first time
refused      it was made without a schema and is not valid: nothing changes, the others go on
damaged      its account's stored state cannot be read: nothing changes, the others go on
===========  ==========================================================================================
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any

import numpy as np

from stream_ccsd.account import (
    DIFFERENT,
    FORGOTTEN,
    PACKED_EVENT,
    STATUSES,
    TOO_LATE,
    AccountCodec,
    Accounts,
    Batch,
    StateError,
    answers,
)
from stream_ccsd.alerts.alert import Alert, make_alert
from stream_ccsd.alerts.policy import ALERTED, HELD_BACK, QUIET, build_policy, checked_threshold
from stream_ccsd.divergence.window_score import build_change_density
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.evidence.profile import decay_by_lag
from stream_ccsd.evidence.supervised import input_names, term_names, unsupervised
from stream_ccsd.model.calibration import rarities
from stream_ccsd.model.model import Model
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, read_only
from stream_ccsd.result import Result
from stream_ccsd.runtime.step import CompiledModel, Workspace, make_scoring_context, run
from stream_ccsd.scores import COMPILED, FUSED, Score, score_names, scores
from stream_ccsd.stores import AccountStates, account_states
from stream_ccsd.transaction import Status, Transaction, category_value, identity, misfit, number_value, unsound

# Events that are in working memory at once, whatever the size of a batch.
_CHUNK = 2000
_CAP = struct.Struct("<ddI")
# Inputs of model updates are cut off here: up to this value, 32 bits hold four digits.
_FARTHEST = 500.0
_Refused = tuple[Status, str]


class Engine:
    """Scores a stream of transactions against a model. Threads may share one: they take turns.

    Parameters
    ----------
    model
        From :func:`~stream_ccsd.fitting.fit` or :meth:`Model.load`.
    states
        Where packed account states are kept: a dict, anything like one, or a store of another kind.
    threshold
        Alert score from which on an account is alerted; by default the model's.
    explore
        Share of the alert budget that goes, besides, to transactions drawn at random; by default the model's.
    """

    def __init__(
        self,
        model: Model,
        states: AccountStates | MutableMapping[str, bytes] | None = None,
        threshold: float | None = None,
        explore: float | None = None,
    ) -> None:
        settings = model.settings
        if settings.standardise != "causal":
            raise StreamCcsdError("this model is standardised over whole histories, which a stream does not have")
        self.model = model
        self.states: AccountStates | MutableMapping[str, bytes] = {} if states is None else states
        self._store = account_states(self.states)
        self.threshold = model.threshold if threshold is None else checked_threshold(threshold)
        self._turn = threading.Lock()
        self._version, self._code, self._latest = model.version, model.codes, model.latest_time
        self._stored: dict[str, bytes | None] = {}  # states of a batch as they were before it
        self._true: dict[str, bytes | None] = {}  # the same of batches that the store failed to take
        self._declared = settings.declared
        self._categories = [f.name for f in self._declared if f.kind == "category"]
        self._numbers = [f.name for f in self._declared if f.kind == "number"]
        self._terms = term_names(self._declared)
        self._inputs = input_names(self._declared) if model.learnt is not None else None
        named = len(self._categories)
        self._codec = AccountCodec(*model.state_sizes)
        self._work = Workspace.of(model.index, self._codec.longest_history, settings.local_history, named)
        self._compiled = compile_model(model, self.threshold, explore)
        self._added = [score for score in scores() if score.compute is not None]
        self._names = score_names()
        self._make_space(1)
        cap = self._store.read_alert_cap() if settings.alert_cap else None
        if cap is not None:
            self._work.cap[:] = _unpack_cap(cap)

    def process(self, transaction: Transaction) -> Result:
        """Score one transaction and update its account."""
        return self.process_many((transaction,))[0]

    def process_many(self, transactions: Iterable[Transaction]) -> list[Result]:
        """Score transactions in the given order: the same results, to the bit, as one at a time.

        States are written back once, after the last transaction; if anything fails before, none is changed. Should the
        store itself fail half-way, this engine goes on from the states as they were: the same batch can be tried again.
        """
        batch = transactions if isinstance(transactions, Sequence) else list(transactions)
        with self._turn:
            return self._process(batch)

    def _process(self, batch: Sequence[Transaction]) -> list[Result]:
        changed: dict[str, bytes] = {}
        cap = self._work.cap.copy()
        results: list[Result] = []
        self._stored.clear()
        try:
            for start in range(0, len(batch), _CHUNK):
                results += self._run(batch[start : start + _CHUNK], changed)
            if changed:
                self._write(changed)
        except BaseException:
            self._work.cap[:] = cap
            raise
        return results

    def _write(self, changed: dict[str, bytes]) -> None:
        try:
            self._store.write(changed, _pack_cap(self._work.cap) if self.model.settings.alert_cap else None)
        except BaseException:
            # Some of them may be written: what counts is what they were before.
            self._true.update(self._stored)
            raise
        for account in self._true.keys() & changed.keys():
            del self._true[account]

    def _read(self, account: str) -> bytes | None:
        data = self._true[account] if account in self._true else self._store.read(account)
        self._stored[account] = data
        return data

    def _run(self, batch: Sequence[Transaction], changed: dict[str, bytes]) -> list[Result]:
        """One chunk of a batch; ``changed`` holds the states that are not stored yet."""
        refusals = self._load(batch, changed)
        good = [t for i, t in enumerate(batch) if i not in refusals] if refusals else batch
        run(self._context, self._work.block, 0, len(good), with_divergence=self.model.settings.divergence)
        for account, row in self._rows.items():
            changed[account] = self._codec.pack(self._slab, row)
        results = self._answers(good)
        if not refusals:
            return results
        rest = iter(results)
        return [
            Result(t, refusals[i][0], model=self._version, reason=refusals[i][1]) if i in refusals else next(rest)
            for i, t in enumerate(batch)
        ]

    def _make_space(self, batch: int) -> None:
        slab = self._slab = self._codec.slab(batch)
        inputs = len(self._inputs) if self._inputs else 0
        self._batch = Batch.of(batch, len(self._terms), len(self._categories), len(self._numbers), inputs)
        accounts = Accounts(slab.records, slab.histories, slab.named, slab.views)
        self._context = make_scoring_context(self._compiled, self._work, accounts, self._batch)

    def _load(self, batch: Sequence[Transaction], changed: dict[str, bytes]) -> dict[int, _Refused]:
        """Bring the accounts of a batch into working memory; returns which events are refused, and why."""
        if len(self._batch.events) < len(batch):
            self._make_space(len(batch))
        events = self._batch.events.data
        rows: dict[str, int] = {}
        hashes: list[int] = []  # of the accounts, by row
        damaged: dict[str, _Refused] = {}
        refusals: dict[int, _Refused] = {}
        count = 0
        for position, transaction in enumerate(batch):
            fault = unsound(transaction) or (self._declared and misfit(transaction, self._declared))
            if fault:
                refusals[position] = Status.REFUSED, fault
                continue
            if transaction.time > self._latest:
                refusals[position] = Status.TOO_FAR_AHEAD, self._far_ahead(transaction)
                continue
            account = transaction.account
            row = rows.get(account)
            if row is None:
                if account in damaged:
                    refusals[position] = damaged[account]
                    continue
                row = len(rows)
                try:
                    data = changed.get(account) or self._read(account)
                    if data is None:
                        self._codec.clear(self._slab, row)
                    else:
                        self._codec.unpack(data, self._slab, row)
                except StateError as error:
                    reason = f"the stored state of account {account!r} cannot be used: {error}"
                    damaged[account] = Status.DAMAGED, reason
                    refusals[position] = damaged[account]
                    continue
                rows[account] = row
                if self._inputs:
                    hashes.append(identity(account))
            if self._declared:
                self._batch.names[count] = [self._code(category_value(transaction, f)) for f in self._categories]
                self._batch.numbers[count] = [number_value(transaction, f) for f in self._numbers]
            PACKED_EVENT.pack_into(
                events,
                count * PACKED_EVENT.size,
                row,
                transaction.time,
                transaction.amount,
                self._code(transaction.category),
                self._code(transaction.merchant),
                identity(transaction.id),
                hashes[row] if self._inputs else 0,
            )
            count += 1
        self._rows = rows
        return refusals

    def _far_ahead(self, transaction: Transaction) -> str:
        return (
            f"time {transaction.time!r} is later than {self.model.calendar.show(self._latest)}, the latest this model "
            "takes: is it a mistake? Otherwise fit with a larger horizon"
        )

    def _answers(self, good: Sequence[Transaction]) -> list[Result]:
        table = self._batch.outputs[: len(good)]
        added = self._added_values(table, self._batch.events[: len(good)]) if self._added else None
        terms = self._batch.terms[: len(good)].copy()
        inputs = _rounded(self._batch.inputs[: len(good)]) if self._inputs else None
        results = []
        for i, (transaction, answer) in enumerate(zip(good, answers(table), strict=True)):
            status, note = STATUSES[answer.status], None
            decision = answer.decision
            if answer.status == FORGOTTEN:
                forgotten = "a copy of an earlier transaction whose answer is no longer kept"
                results.append(Result(transaction, status, model=self._version, reason=forgotten))
                continue
            if answer.status == TOO_LATE:
                reason = self._too_late(transaction, answer.newest_time)
                results.append(Result(transaction, status, model=self._version, reason=reason))
                continue
            if answer.status == DIFFERENT:
                decision, note = QUIET, "another transaction had this id: its answer is repeated, without its alert"
            if added is not None:
                answer.scores.extend(added[0][i])
                answer.rarities.extend(added[1][i])
            scores = dict(zip(self._names, answer.scores, strict=True))
            copy = status is Status.DUPLICATE
            results.append(
                Result(
                    transaction,
                    status,
                    scores=scores,
                    rarities=dict(zip(self._names, answer.rarities, strict=True)),
                    score=answer.score,
                    maximum=answer.maximum,
                    accumulated=None if copy else answer.accumulated,
                    term_values=None if copy else terms[i],
                    term_names=self._terms,
                    inputs=None if inputs is None or copy else inputs[i],
                    waits=max(0, self.model.settings.window + 1 - answer.transactions),
                    model=self._version,
                    alert=self._alert(transaction, i, scores) if decision == ALERTED else None,
                    held_back=decision == HELD_BACK,
                    reason=note,
                )
            )
        return results

    def _added_values(self, outputs: AnyArray, events: AnyArray) -> tuple[_Table, _Table]:
        """Values and rarities of scores from outside, a row a transaction; None where there is nothing to compare."""
        values = [added_score(score, outputs, events) for score in self._added]
        rates = [self._rarities(score, column) for score, column in zip(self._added, values, strict=True)]
        missing = np.isnan(np.column_stack(values))
        return _plain(np.column_stack(values), missing), _plain(np.column_stack(rates), missing)

    def _rarities(self, score: Score, values: FloatArray) -> FloatArray:
        tail = self.model.tails.get(score.name)
        return np.full(len(values), np.nan) if tail is None else rarities(tail, values)

    def _too_late(self, transaction: Transaction, newest: float) -> str:
        calendar = self.model.calendar
        return (
            f"time {calendar.show(transaction.time)} lies {calendar.length(newest - transaction.time)} behind "
            f"the account's newest ({calendar.show(newest)}), more than the grace of "
            f"{calendar.length(self.model.settings.grace)}"
        )

    def _alert(self, transaction: Transaction, i: int, scores: dict[str, float | None]) -> Alert:
        return make_alert(self.model, transaction, self._batch, i, scores, self.threshold)


_Table = list[list[float | None]]


def _plain(values: AnyArray, missing: AnyArray) -> _Table:
    """Rows of Python's own numbers."""
    rows: _Table = values.tolist()
    for i, j in zip(*np.nonzero(missing | np.isnan(values)), strict=True):
        rows[i][j] = None
    return rows


def _rounded(inputs: FloatArray) -> FloatArray:
    """As records hold them: four digits, so that model updates from records are the same as from the stream."""
    rounded: AnyArray = np.round(np.clip(inputs, -_FARTHEST, _FARTHEST), 4)
    return rounded


def added_score(score: Score, outputs: AnyArray, events: AnyArray) -> FloatArray:
    """A score from outside, for every row.

    Raises
    ------
    StreamCcsdError
        If its function fails, or does not give a number a row.
    """
    assert score.compute is not None
    try:
        values = np.asarray(score.compute(outputs, events), dtype=float)
    except Exception as error:
        raise StreamCcsdError(f"the score {score.name!r} cannot be computed: {error!r}") from error
    if values.shape != (len(outputs),):
        raise StreamCcsdError(
            f"the score {score.name!r} gave {values.shape}, expected a number for each of {len(outputs)}"
        )
    return values


def compile_model(model: Model, threshold: float | None = None, explore: float | None = None) -> CompiledModel:
    """The model as compiled code takes it."""
    settings = model.settings
    on = settings.alert_on
    joining = [i for i, s in enumerate(COMPILED) if (s.joins_alert if on == FUSED else s.name == on)]
    return CompiledModel(
        library=model.index,
        change_law=build_change_density(model.index, settings, model.sigma_y),
        laws=model.laws,
        learnt=model.learnt or read_only(unsupervised(settings.declared, listening=False)),
        decay=decay_by_lag(settings),
        missing=np.uint32(model.codes("")),
        takeover_cap=float(settings.takeover_cap),
        takeover_drift=float(settings.takeover_drift),
        tails=tuple(model.tails[s.name] for s in COMPILED),
        policy=build_policy(settings, model.threshold if threshold is None else threshold, explore),
        joining=np.array(joining),
        offsets=model.budget_offsets(),
        grace=float(settings.grace),
        lags=np.arange(1, settings.local_history + 1),
    )


def _pack_cap(cap: AnyArray) -> bytes:
    return _CAP.pack(*cap, zlib.crc32(cap.tobytes()))


def _unpack_cap(data: bytes) -> Any:
    try:
        *values, checksum = _CAP.unpack(data)
    except struct.error as error:
        raise StateError(f"the stored count of alerts cannot be read: {error}") from error
    if zlib.crc32(np.array(values).tobytes()) != checksum:
        raise StateError("the stored count of alerts is damaged: its checksum does not match")
    return values
