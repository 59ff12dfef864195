"""The learner: (model, evidence as it was scored, verdicts) -> the next model.

A model update changes what was learnt from verdicts (``Model.learnt``), and then how rare evidence is among normal
transactions. The densities of normal transactions stay, unless they adapt. Fraud rates and fraud densities are counted
anew with every update, weights and trees less often. The plain sum, the weighted sum, or the weighted sum with trees is
used: the one that predicts best on accounts that were left out. With few verdicts that is the plain sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from stream_ccsd.evidence.supervised import (
    HALF_LIVES,
    NAMED_RECORDS,
    Supervised,
    evidence_by,
    rated_fields,
    unsupervised,
)
from stream_ccsd.learning.adaptation import HALF_LIFE, adapted, share_of
from stream_ccsd.learning.alert_rates import shares_by_rarity, silence_speaks, tail_by_shares
from stream_ccsd.learning.features import Features
from stream_ccsd.learning.fraud_rates import base_rate
from stream_ccsd.learning.label_buffer import LabelBuffer, LearningSample
from stream_ccsd.learning.schedule import Schedule
from stream_ccsd.learning.selection import SUM, Selection, average_precision, evidence_today, measured, select_weights
from stream_ccsd.learning.trees import NO_TREES
from stream_ccsd.model.calibration import fit_tail, rarities
from stream_ccsd.model.model import Model
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, read_only
from stream_ccsd.result import Result
from stream_ccsd.scores import EVIDENCE, TAKEOVER
from stream_ccsd.verdict import Verdict

# Days between two updates that fit weights, unless there are half as many frauds again.
_WEIGHED_EVERY, _GROWN = 7.0, 1.5
# With fewer frauds, or other transactions, weights are not fitted.
_FEWEST_FRAUDS, _FEWEST_NORMALS = 30, 300
# Candidates for takeover's part of the alert budget, as parts of the one at the fit.
_TAKEOVER_PARTS = (1.0, 0.25, 0.05, 0.0)
# Updates that the stream may jump ahead at once, and transactions in a row that confirm a longer jump.
LEAP, CONFIRMED = 60, 20


def listening(model: Model) -> Model:
    """The same model, able to learn: its engine records the inputs of model updates."""
    if model.learnt is not None:
        return model
    return replace(model, learnt=read_only(unsupervised(model.settings.declared, listening=True)))


class Learner:
    """Holds the newest model. It takes transactions as they are scored, and verdicts as they arrive."""

    def __init__(self, model: Model, schedule: Schedule, adapt: bool = False) -> None:
        self.model = self.first = listening(model)
        self.schedule = schedule
        self.label_buffer = LabelBuffer(model.laws, model.settings.declared, schedule)
        self._adapt = adapt
        self._next: float | None = None
        self._ahead = 0  # transactions in a row that are much later than the next update
        self._weighed_every = max(1, round(_WEIGHED_EVERY / self.label_buffer.days))  # updates
        self._weighed_at = 0  # frauds that weights were last fitted on

    def see(self, results: Iterable[Result]) -> None:
        """Transactions that were scored, in the stream's order."""
        self.label_buffer.see(Features.of(results, self.model))

    def see_rows(self, rows: Features) -> None:
        """The same, from records."""
        self.label_buffer.see(rows)

    def hear(self, verdicts: Iterable[Verdict]) -> None:
        """Verdicts, in the order of their arrival."""
        self.label_buffer.hear(verdicts)

    def worth(self, merchants: AnyArray) -> FloatArray:
        """How much a verdict on transactions there is worth, from 0 to 1: the fewer are known lately, the more."""
        return self.label_buffer.records[NAMED_RECORDS.index("merchant")].novelty(merchants)

    def due(self, time: float) -> float | None:
        """The time of an update that comes before a transaction of this time; None if there is none."""
        if self._next is None:
            self._next = self.schedule.first_after(time)
        if time < self._next + LEAP * self.schedule.every:
            self._ahead = 0
            return self._next if time >= self._next else None
        self._ahead += 1  # a mistaken date, unless others are as late: it would age all that is known
        return self._next if self._ahead >= CONFIRMED else None

    def remember(self, moment: float, model: Model | None = None) -> None:
        """Repeat an update that was made before: count what was known. Without its model, take up a later one."""
        self._advance(moment)
        if model is not None:
            self.take_up(model)

    def take_up(self, model: Model) -> None:
        """Go on with the model of an update that was made before."""
        self.model = model
        self._weighed_at = int(model.facts.get("lessons", {}).get("weighed_at", 0))

    def learn(self, moment: float) -> Model:
        """Make the update of this time; the same model where there was nothing to learn from."""
        if not self.label_buffer.has_news(moment):  # a stream that pauses, or jumps by years: there are many of these
            self.remember(moment)
            return self.model
        self._advance(moment)
        buffer = self.label_buffer
        if self._adapt and buffer.silent is not None:
            self.model = self._adapted(buffer.silent)
        updated = "lessons" in self.model.facts  # then it may also unlearn a fraud that was none, or is long ago
        if buffer.kept is not None and (updated or buffer.kept.fraud.any()):
            self.model = self._next_model(moment, buffer.kept)
        return self.model

    def _adapted(self, silent: Features) -> Model:
        """Move densities towards what had no verdict; rates as well, until they are learnt from verdicts."""
        moved = adapted(self.model, silent.take(~silent.alerted), share_of(self.label_buffer.days, HALF_LIFE))
        return moved if "lessons" not in self.model.facts else replace(moved, tails=self.model.tails)

    def _advance(self, moment: float) -> None:
        self.label_buffer.advance(moment)
        self._next = moment + self.schedule.every

    def _next_model(self, moment: float, kept: LearningSample) -> Model:
        before = self.model.learnt
        assert before is not None
        supervised = self._counted(before)
        frauds = int(kept.fraud.sum())
        # With fewer normal ones evidence cannot be calibrated: it stays as rare as it was.
        measurable = int(kept.sampled.sum()) >= _FEWEST_NORMALS
        selection, takeover = None, self.model.takeover_share
        facts: dict[str, Any] = dict(self.model.facts.get("lessons", {"weighed_by": SUM}))
        silence_normal = silence_speaks(kept, self.label_buffer.unasked, facts.get("silence") == "normal")
        shares: list[float] = facts.get("shares") or self._shares(moment, kept)
        if not (silence_normal or shares or "lessons" in self.model.facts):
            return self.model  # the share of all that reaches the threshold has to be counted before anything is learnt
        if frauds < _FEWEST_FRAUDS or (shares and not silence_normal):
            # One verdict says nothing about merchants and customers: their fraud rates would only show who pays often,
            # and outweigh everything else. Nor do verdicts on alerts alone: what they are compared with is not normal.
            supervised = supervised._replace(weights=self._without_fraud_rates(supervised), **NO_TREES._asdict())
            facts, self._weighed_at, takeover = {"weighed_by": SUM}, 0, self.first.takeover_share
        elif silence_normal and measurable and self._fits_weights(frauds):
            selection = select_weights(supervised, kept, self.label_buffer)
            self._weighed_at = frauds
            supervised = supervised._replace(weights=selection.weights, **selection.trees._asdict())
            facts = measured(selection)
        tail = self.model.tails["evidence"]
        past = self._settled(moment, kept)
        if shares and not silence_normal and len(past.weight) >= _FEWEST_NORMALS:
            evidence = evidence_by(supervised, past.rows.inputs.astype(float), int(supervised.term_of.max()) + 1)
            tail = tail_by_shares(evidence, past.weight, shares)
        elif silence_normal and measurable and (selection is not None or not len(supervised.roots)):
            if selection is None:
                asked, (evidence, speaking) = kept, evidence_today(supervised, kept, self.label_buffer)
            else:
                asked, evidence, speaking = selection.judged, selection.today, selection.speaking
            whose = asked.rows.account[speaking].view(np.int64)
            tail = fit_tail(evidence[speaking], self.model.settings.tail_share, whose)
        tails = {**self.model.tails, "evidence": tail}
        model = replace(self.model, learnt=read_only(supervised), tails=tails, takeover_share=takeover)
        if selection is not None:
            model = replace(model, takeover_share=self._takeover_share(model, selection))
        facts |= {"shares": shares, "silence": "normal" if silence_normal else "unknown"}
        return replace(model, facts={**model.facts, "lessons": {**facts, **self._account(moment, kept, supervised)}})

    def _fits_weights(self, frauds: int) -> bool:
        """Whether weights are fitted in this update."""
        return self.label_buffer.lessons % self._weighed_every == 0 or frauds >= _GROWN * max(self._weighed_at, 1)

    def _settled(self, moment: float, kept: LearningSample) -> LearningSample:
        """Those that represent all transactions of their time: of later ones, only those with a verdict are counted."""
        return kept.take(kept.rows.time <= moment - self.schedule.delay)

    def _shares(self, moment: float, kept: LearningSample) -> list[float]:
        """The shares of all transactions by rarity before the first update, if they reach the threshold; else none."""
        past = self._settled(moment, kept)
        if "lessons" in self.model.facts or not len(past.weight):
            return []
        shares = shares_by_rarity(rarities(self.model.tails["evidence"], past.rows.evidence), past.weight)
        enough = shares and shares[-1] >= self.model.threshold + self.model.budget_offsets()[EVIDENCE]
        return shares if enough else []

    def _without_fraud_rates(self, supervised: Supervised) -> FloatArray:
        """The plain sum of the density terms."""
        weights: FloatArray = np.ones(len(supervised.weights))
        weights[self.label_buffer.first_record :] = 0.0
        return weights

    def _counted(self, before: Supervised) -> Supervised:
        """Fraud rates and fraud densities as they are counted by now."""
        buffer = self.label_buffer
        everyone = base_rate(buffer.base)
        densities = [density.ratio() for density in buffer.law]
        numbers = [ratio for ratio, _ in densities[4:]]
        return before._replace(
            start=np.cumsum([0, *(len(r.codes) for r in buffer.records)]),
            codes=np.concatenate([r.codes for r in buffer.records]),
            rates=np.concatenate([r.rates(everyone) for r in buffer.records]),
            chosen=buffer.chosen,
            amount=densities[0][0],
            hour=densities[1][0],
            weekday=densities[2][0],
            gap=densities[3][0],
            number=np.array(numbers).reshape(before.number.shape),
            frauds=np.array([count for _, count in densities]),
        )

    def _takeover_share(self, model: Model, selection: Selection) -> float:
        """The part of the alert budget with which alert scores rank known frauds best: trees detect takeovers, too."""
        judged = selection.judged
        evidence = rarities(model.tails["evidence"], selection.evidence)
        takeover = rarities(model.tails["takeover"], judged.rows.takeover)
        best, most = 0.0, -1.0
        for part in _TAKEOVER_PARTS:
            share = part * self.first.takeover_share
            offsets = replace(model, takeover_share=share).budget_offsets()
            score = np.maximum(evidence - offsets[EVIDENCE], takeover - offsets[TAKEOVER])
            precision = average_precision(score, judged.fraud, judged.weight)
            if precision > most:
                best, most = share, precision
        return best

    def _account(self, moment: float, kept: LearningSample, supervised: Supervised) -> dict[str, Any]:
        """Facts about the update that made a model."""
        buffer, fields = self.label_buffer, rated_fields(self.model.settings.declared)
        return {
            "moment": moment,
            "number": buffer.lessons,
            "frauds": int(kept.fraud.sum()),
            "others": int(len(kept.fraud) - kept.fraud.sum()),
            "waiting": buffer.waiting,
            "too_late": buffer.too_late,
            "disputed": buffer.disputed,
            "outweighed": buffer.outweighed,
            "weighed_at": self._weighed_at,
            "half_lives": {f: HALF_LIVES[c] for f, c in zip(fields, supervised.chosen.tolist(), strict=True)},
            "before": self.model.version,
        }
