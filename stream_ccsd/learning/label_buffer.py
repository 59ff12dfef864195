"""The label buffer: transactions whose outcome is not known yet, their verdicts, and what was learnt from.

A transaction is counted once: as fraud or normal as soon as a verdict says so, or as normal when the delay has passed
without one. A verdict that is overruled is taken back. What is disputed or unsure is left out until it is settled.

Counts fade with the age of a transaction, not with the age of its verdict: a fraud that a chargeback reports after a
month says little about where fraud happens now. Verdicts that come as soon as any do (``_PROMPTLY``) count in full.

Nothing here depends on what models made of it. A label buffer follows from scored transactions and verdicts alone, so
it can be built again from recorded scores after a process was killed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from stream_ccsd.evidence.densities import Densities
from stream_ccsd.evidence.supervised import BIN, BINS, HALF_LIVES, OWN_INPUTS, input_names, rated_fields
from stream_ccsd.fields import Field
from stream_ccsd.learning.features import Features, transaction_key
from stream_ccsd.learning.fraud_rates import FraudDensity, FraudRates, fraud_densities, likelihoods
from stream_ccsd.learning.reviewers import FraudQuota
from stream_ccsd.learning.schedule import Schedule
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, IntArray
from stream_ccsd.verdict import EffectiveVerdict, Verdict

DAYS_KEPT = 60.0
"""Days for which transactions are kept to learn weights from."""
NORMALS = 400.0
"""Normal transactions of a day that are kept for that, at least; those with a verdict are kept besides."""
NORMALS_A_FRAUD = 10.0
"""Normal transactions kept for each fraud, where that is more."""
_CLEANED_EVERY = 16  # updates between two removals of verdicts that are no longer needed
# Transactions wait for a verdict for so many delays: one that comes after the delay still counts.
_REMEMBERED = 2.0
# Share of frauds that are known promptly, at the least, and how fast an opinion of how soon that is changes.
_PROMPTLY, _LEARNS = 0.2, 0.1
_COMPARED = 35.0  # half-life, in days, of the likelihoods that half-lives are compared by
# The state of a transaction in the buffer.
_OPEN, _SILENT, _JUDGED_NORMAL, _FRAUD, _LEFT_OUT = range(5)
_LABELS = {"normal": _JUDGED_NORMAL, "fraud": _FRAUD, None: _LEFT_OUT}


@dataclass(frozen=True, eq=False)
class LearningSample:
    """Transactions that weights are learnt from."""

    rows: Features
    state: AnyArray
    entered: IntArray  # in which update
    weight: FloatArray  # transactions that it represents
    stale: FloatArray  # days that its outcome came later than prompt verdicts do
    sampled: AnyArray  # among the sample that represents all normal ones

    @property
    def fraud(self) -> AnyArray:
        """Which of them are fraud."""
        return np.asarray(self.state == _FRAUD)

    def take(self, which: AnyArray) -> LearningSample:
        """Some of them."""
        stale, sampled = self.stale[which], self.sampled[which]
        return LearningSample(
            self.rows.take(which), self.state[which], self.entered[which], self.weight[which], stale, sampled
        )

    @staticmethod
    def concatenate(parts: list[LearningSample]) -> LearningSample:
        """One after the other; at least one part."""
        columns = ([getattr(p, name) for p in parts] for name in ("state", "entered", "weight", "stale", "sampled"))
        return LearningSample(Features.concatenate([p.rows for p in parts]), *(np.concatenate(c) for c in columns))


class LabelBuffer:
    """See the module. Times are the stream's."""

    def __init__(self, densities: Densities, fields: tuple[Field, ...], schedule: Schedule) -> None:
        self.schedule = schedule
        self.lessons = 0
        # Where time has no unit, the time between two updates counts as a day.
        self.days = schedule.every / densities.day if densities.day > 0.0 else 1.0
        self._fading: FloatArray = 0.5 ** (self.days / np.array(HALF_LIVES))
        self.records = [FraudRates(name == "account") for name in rated_fields(fields)]
        self.base: FloatArray = np.zeros((2, len(HALF_LIVES)))
        self.law: list[FraudDensity] = fraud_densities(densities)
        self.choices: FloatArray = np.zeros((len(self.records), len(HALF_LIVES)))  # likelihoods of half-lives
        self.kept: LearningSample | None = None
        self.silent: Features | None = None  # what this update took to be normal
        self.too_late = 0  # verdicts on transactions that were forgotten
        self.judged: list[bool] = []  # of alerts whose first verdict came with this update: whether each was fraud
        self._names = input_names(fields)
        self._new: list[Features] = []
        self._pool: Features | None = None
        self._state: AnyArray = np.zeros(0, np.int8)
        self._entered: IntArray = np.zeros(0, np.int64)
        self._stale: FloatArray = np.zeros(0)
        self._prompt: float | None = None  # days until prompt verdicts
        self._disputed: set[int] = set()
        self._balance = FraudQuota()
        self._outweighed: set[int] = set()  # frauds beyond the quota of one person's verdicts
        self._moment = 0.0
        self.known_since: float | None = None  # from which update on there are frauds in fraud rates
        self._verdicts: dict[int, EffectiveVerdict] = {}
        self._heard: dict[int, None] = {}  # keys with verdicts that are still pending, in order
        self._changed = False  # whether verdicts came since the update before

    def see(self, rows: Features) -> None:
        """Transactions that were scored."""
        if len(rows):
            self._new.append(rows)

    def hear(self, verdicts: Iterable[Verdict]) -> None:
        """Verdicts, in the order of their arrival."""
        for verdict in verdicts:
            key = transaction_key(verdict.account, verdict.transaction)
            self._verdicts.setdefault(key, EffectiveVerdict()).add(verdict)
            self._heard[key] = None
            self._changed = True

    def has_news(self, moment: float) -> bool:
        """Whether an update could learn anything: transactions or verdicts came, or a delay has passed by then."""
        if self._new or self._changed or self._pool is None:
            return bool(self._new) or self._changed
        return bool(((self._state == _OPEN) & (self._pool.time <= moment - self.schedule.delay)).any())

    @property
    def waiting(self) -> int:
        """Verdicts that wait for their transaction."""
        return len(self._heard)

    @property
    def disputed(self) -> int:
        """Transactions that are left out because people disagree."""
        return len(self._disputed)

    @property
    def outweighed(self) -> int:
        """Frauds that are left out because one person alone found so many there."""
        return len(self._outweighed)

    @property
    def unasked(self) -> AnyArray:
        """Which of the kept ones are frauds that were reported without an alert to look at."""
        assert self.kept is not None
        return self._balance.unasked(self.kept.rows.key)

    def advance(self, moment: float) -> None:
        """Go on to an update: count what is known by now."""
        self.lessons += 1
        self._moment = moment
        self.silent, self.judged, self._changed = None, [], False
        self._fade()
        self._gather()
        if self._pool is None:
            return
        self._apply_verdicts()
        self._enter_silent(moment)
        self._forget(moment)

    def left_of(self, entered: IntArray, stale: FloatArray) -> FloatArray:
        """What is left by now of transactions that were counted, by half-life."""
        left = self._fading[None, :] ** (self.lessons - entered)[:, None]
        return left * 0.5 ** (stale[:, None] / np.array(HALF_LIVES))

    @property
    def first_record(self) -> int:
        """Place of the fraud rates among the inputs: the chosen ones, then all half-lives of each."""
        return self._names.index("account_record")

    @property
    def chosen(self) -> IntArray:
        """Half-lives that predicted best; the second until anything was predicted."""
        best = np.argmax(self.choices, axis=1)
        return np.where(np.ptp(self.choices, axis=1) > 0, best, 1)

    def _fade(self) -> None:
        for rates in self.records:
            rates.fade(self._fading)
        self.base *= self._fading
        self.choices *= 0.5 ** (self.days / _COMPARED)
        for density in self.law:
            density.fade(self.days)
        if self.kept is not None:
            recent = (self.lessons - self.kept.entered) * self.days < DAYS_KEPT
            if not recent.all():
                self.kept = self.kept.take(recent)

    def _gather(self) -> None:
        if not self._new:
            return
        parts = self._new if self._pool is None else [self._pool, *self._new]
        new = sum(len(part) for part in self._new)
        self._pool, self._new = Features.concatenate(parts), []
        self._state = np.concatenate([self._state, np.zeros(new, np.int8)])
        self._entered = np.concatenate([self._entered, np.zeros(new, np.int64)])
        self._stale = np.concatenate([self._stale, np.zeros(new)])

    def _apply_verdicts(self) -> None:
        """Count pending verdicts, and take back what was overruled."""
        assert self._pool is not None
        if not self._heard:
            return
        self._balance_finders()
        # In the order of the keys, so that sums do not depend on which verdict arrived first.
        keys = np.sort(np.fromiter(self._heard, np.uint64, len(self._heard)))
        near = np.minimum(np.searchsorted(keys, self._pool.key), len(keys) - 1)
        here = np.flatnonzero(keys[near] == self._pool.key)
        found, first = np.zeros(len(keys), bool), np.unique(near[here], return_index=True)[1]
        places = here[first]  # in the order of the keys; of an id that occurs twice, the first
        found[near[places]] = True
        wanted = self._labels(keys[found])
        for key in keys[found].tolist():
            del self._heard[key]
        self._change(places, wanted)
        self._change_kept(keys[~found])

    def _balance_finders(self) -> None:
        """Note who found the pending frauds. A fraud that the quota begins or ceases to count is pending again."""
        assert self._pool is not None
        keys = np.fromiter(self._heard, np.uint64, len(self._heard))
        for rows in (self._pool, *([] if self.kept is None else [self.kept.rows])):
            here = np.isin(rows.key, keys)
            for key, merchant in zip(rows.key[here].tolist(), rows.merchant[here].tolist(), strict=True):
                self._balance.note(key, self._verdicts[key], merchant)
        before, self._outweighed = self._outweighed, self._balance.outweighed()
        self._heard |= dict.fromkeys(sorted(before ^ self._outweighed))

    def _labels(self, keys: AnyArray) -> AnyArray:
        """The labels of transactions by the verdicts on them."""
        found = np.zeros(len(keys), np.int8)
        for i, key in enumerate(keys.tolist()):
            said = self._verdicts[key]
            found[i] = _LEFT_OUT if key in self._outweighed else _LABELS[said.label]
            (self._disputed.add if said.disputed else self._disputed.discard)(key)
        return found

    def _change(self, places: IntArray, wanted: AnyArray) -> None:
        """Change rows of the pool to their new labels."""
        assert self._pool is not None
        was = self._state[places]
        first = (was != _JUDGED_NORMAL) & (was != _FRAUD) & (wanted != _LEFT_OUT) & self._pool.alerted[places]
        self.judged = (wanted[first] == _FRAUD).tolist()
        known = (was == _SILENT) | (was == _JUDGED_NORMAL) | (was == _FRAUD)
        moved = known & (was != wanted)
        again = places[moved]
        self._take_back(self._pool.take(again), was[moved], self._entered[again], self._stale[again])
        self._drop_kept(self._pool.key[places[moved]])
        fresh = (~known | moved) & (wanted != _LEFT_OUT)
        self._state[places] = np.where(known & ~moved, was, wanted)
        self._entered[places[fresh]] = self.lessons
        self._stale[places[fresh]] = self._enter(self._pool.take(places[fresh]), wanted[fresh])

    def _change_kept(self, keys: AnyArray) -> None:
        """The same for transactions that are only kept for weights; other keys are still to come, or forgotten."""
        if self.kept is None or not len(keys):
            return
        chosen = np.isin(self.kept.rows.key, keys)
        for place in np.flatnonzero(chosen):
            key = int(self.kept.rows.key[place])
            self._heard.pop(key, None)
        rows = self.kept.take(chosen)
        wanted = self._labels(rows.rows.key)
        moved = rows.state != wanted
        self._take_back(rows.rows.take(moved), rows.state[moved], rows.entered[moved], rows.stale[moved])
        self._drop_kept(rows.rows.key[moved])
        fresh = moved & (wanted != _LEFT_OUT)
        self._enter(rows.rows.take(fresh), wanted[fresh])

    def _enter_silent(self, moment: float) -> None:
        """Silence counts as normal when the delay has passed."""
        assert self._pool is not None
        due = np.flatnonzero((self._state == _OPEN) & (self._pool.time <= moment - self.schedule.delay))
        self._state[due] = _SILENT
        self._entered[due] = self.lessons
        self.silent = self._pool.take(due)
        self._stale[due] = self._enter(self._pool.take(due), np.full(len(due), _SILENT, np.int8))

    def _enter(self, rows: Features, state: AnyArray) -> FloatArray:
        """Count them; returns how stale each is."""
        if not len(rows):
            return np.zeros(0)
        fraud = state == _FRAUD
        if fraud.any() and self.known_since is None:
            self.known_since = self._moment
        self._compare_half_lives(rows, fraud)
        stale = self._staleness(rows, fraud)
        left = 0.5 ** (stale[:, None] / np.array(HALF_LIVES))
        self._count(rows, fraud[:, None] * left, left)
        for density, bins in zip(self.law, self._bins(rows.take(fraud)), strict=True):
            density.add(bins)
        self._keep(rows, state, stale)
        return stale

    def _staleness(self, rows: Features, fraud: AnyArray) -> FloatArray:
        """Days that they are known later than frauds are whose verdicts come promptly: one in five of them."""
        day = self.schedule.every / self.days
        age = np.maximum((self._moment - rows.time) / day, 0.0)
        if fraud.any():
            prompt = float(np.quantile(age[fraud], _PROMPTLY))
            self._prompt = prompt if self._prompt is None else self._prompt + _LEARNS * (prompt - self._prompt)
        late: FloatArray = np.maximum(age - (age if self._prompt is None else self._prompt), 0.0)
        return np.where(late < 1.0, 0.0, late)

    def _take_back(self, rows: Features, was: AnyArray, entered: IntArray, stale: FloatArray) -> None:
        """Subtract what was counted, as far as it has not faded."""
        if not len(rows):
            return
        left = self.left_of(entered, stale)
        fraud = was == _FRAUD
        for rates, codes in zip(self.records, record_codes(rows), strict=True):
            rates.take_back(codes, left * fraud[:, None], left, entered)
        taken = np.stack([(left * fraud[:, None]).sum(axis=0), left.sum(axis=0)])
        self.base = np.maximum(self.base - taken, 0.0)
        days = (self.lessons - entered[fraud]) * self.days
        for density, bins in zip(self.law, self._bins(rows.take(fraud)), strict=True):
            density.take_back(bins, days)

    def _count(self, rows: Features, frauds: FloatArray, transactions: FloatArray) -> None:
        for rates, codes in zip(self.records, record_codes(rows), strict=True):
            rates.add(codes, frauds, transactions)
        self.base += np.stack([frauds.sum(axis=0), transactions.sum(axis=0)])

    def _bins(self, rows: Features) -> list[IntArray]:
        """Bins of transactions on the axes of the fraud densities; -1 where they have none."""
        column = {name: rows.inputs[:, i] for i, name in enumerate(self._names)}
        amount = np.minimum(column["size"] / BIN, BINS - 1).astype(np.int64)
        gap = np.where(column["after"] < 0, -1, np.minimum(column["after"] / np.log(2.0), 63)).astype(np.int64)
        first = self._names.index(OWN_INPUTS[-1]) + 1
        numbers = [
            np.where(
                np.isnan(rows.numbers[:, i]),
                -1,
                np.clip(np.floor(rows.inputs[:, first + i] / BIN) + BINS // 2, 0, BINS - 1),
            )
            for i in range(rows.numbers.shape[1])
        ]
        # Inputs are rounded: a moment before midnight must not become hour 24.
        hour = np.minimum(column["at_hour"], 23).astype(np.int64)
        weekday = column["at_weekday"].astype(np.int64)
        return [amount, hour, weekday, gap, *(n.astype(np.int64) for n in numbers)]

    def _compare_half_lives(self, rows: Features, fraud: AnyArray) -> None:
        everyone = (self.base[0, -1] + 0.05) / (self.base[1, -1] + 50.0)
        first = self.first_record + len(self.records)
        for i in range(len(self.records)):
            own = rows.inputs[:, first + i * len(HALF_LIVES) : first + (i + 1) * len(HALF_LIVES)]
            self.choices[i] += likelihoods(own.astype(float), float(everyone), fraud)

    def _keep(self, rows: Features, state: AnyArray, stale: FloatArray) -> None:
        """Keep all frauds, all with a verdict, and a sample of the normal ones: those with the lowest keys."""
        normal = np.flatnonzero(state != _FRAUD)
        silent = np.flatnonzero(state == _SILENT)
        chosen = silent[np.argsort(rows.key[silent], kind="stable")[: self._sample_size()]]
        weight = np.ones(len(rows))
        weight[chosen] = len(silent) / max(len(chosen), 1)
        sampled = np.zeros(len(rows), bool)
        sampled[chosen] = True
        if len(silent):  # those with a verdict of normal belong to all normal ones, too
            line = rows.key[chosen].max() if len(chosen) < len(silent) else np.uint64(2**64 - 1)
            sampled[normal] |= rows.key[normal] <= line
        else:
            sampled[normal] = rows.key[normal] % np.uint64(8) == 0
        which = np.flatnonzero((state != _SILENT) | sampled)
        which = which[np.argsort(rows.key[which], kind="stable")]
        entered = np.full(len(which), self.lessons)
        fresh = LearningSample(rows.take(which), state[which], entered, weight[which], stale[which], sampled[which])
        self.kept = fresh if self.kept is None else LearningSample.concatenate([self.kept, fresh])

    def _sample_size(self) -> int:
        """Normal transactions to keep of an update: ten for each fraud of an update, on average."""
        lessons = min(self.lessons, DAYS_KEPT / self.days)
        frauds = 0 if self.kept is None else int(self.kept.fraud.sum())
        return max(1, round(max(NORMALS * self.days, NORMALS_A_FRAUD * frauds / lessons)))

    def _drop_kept(self, keys: AnyArray) -> None:
        if self.kept is not None and len(keys):
            self.kept = self.kept.take(~np.isin(self.kept.rows.key, keys))

    def _forget(self, moment: float) -> None:
        """Transactions that no verdict is expected on any more; one that comes nevertheless is too late."""
        assert self._pool is not None
        oldest = moment - _REMEMBERED * self.schedule.delay - self.schedule.every
        remembered = self._pool.time > oldest
        if not remembered.all():
            self._pool, self._state = self._pool.take(remembered), self._state[remembered]
            self._entered, self._stale = self._entered[remembered], self._stale[remembered]
        for key in [key for key in self._heard if self._verdicts[key].verdict.time < oldest]:
            del self._heard[key]
            self.too_late += 1
        kept = self._pool.key[:0] if self.kept is None else self.kept.rows.key
        self._outweighed -= self._balance.keep_only(np.concatenate([self._pool.key, kept]))
        if self.lessons % _CLEANED_EVERY:
            return
        keys = np.fromiter(self._verdicts, np.uint64, len(self._verdicts))
        alive = np.isin(keys, self._pool.key)
        if self.kept is not None:
            alive |= np.isin(keys, self.kept.rows.key)
        for key in keys[~alive].tolist():
            if key not in self._heard:
                del self._verdicts[key]
                self._disputed.discard(key)


def record_codes(rows: Features) -> list[AnyArray]:
    """Values that have fraud rates, field by field."""
    return [rows.account, rows.category, rows.merchant, *rows.names.T]
