"""The learner: (model, evidence as it was scored, verdicts) -> the next model.

A lesson changes what verdicts have taught (``Model.learnt``) and how rare evidence then is among normal transactions;
laws of normal transactions stay. Records and the law of fraud are counted anew with every lesson, weights and trees
less often. Which of the plain sum, the weighted sum, and the weighted sum with trees is used is what predicts best on
accounts that were left out: with few verdicts that is the plain sum.
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

# Days between two lessons that learn weights, unless there are half as many frauds again.
_WEIGHED_EVERY, _GROWN = 7.0, 1.5
# Fewer frauds, or other transactions, say nothing about weights.
_FEWEST_FRAUDS, _FEWEST_NORMALS = 30, 300
# What takeover may have of the alert budget, as parts of what it had at the fit.
_TAKEOVER_PARTS = (1.0, 0.25, 0.05, 0.0)
# Lessons that the stream may jump ahead at once, and transactions in a row that confirm a longer jump.
LEAP, CONFIRMED = 60, 20


def listening(model: Model) -> Model:
    """The model, one that can learn: its engine writes down what lessons are made of."""
    if model.learnt is not None:
        return model
    return replace(model, learnt=read_only(unsupervised(model.settings.declared, listening=True)))


class Learner:
    """Holds the newest model. Transactions are shown as they are scored, verdicts told as they arrive."""

    def __init__(self, model: Model, schedule: Schedule, adapt: bool = False) -> None:
        self.model = self.first = listening(model)
        self.schedule = schedule
        self.label_buffer = LabelBuffer(model.laws, model.settings.declared, schedule)
        self._adapt = adapt
        self._next: float | None = None
        self._ahead = 0  # transactions in a row that are much later than the next lesson
        self._weighed_every = max(1, round(_WEIGHED_EVERY / self.label_buffer.days))  # lessons
        self._weighed_at = 0  # frauds that weights were last learnt from

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
        """What a verdict on transactions there would teach, from 0 to 1: the less was known lately, the more."""
        return self.label_buffer.records[NAMED_RECORDS.index("merchant")].novelty(merchants)

    def due(self, time: float) -> float | None:
        """The moment of a lesson that comes before a transaction of this time; None if there is none."""
        if self._next is None:
            self._next = self.schedule.first_after(time)
        if time < self._next + LEAP * self.schedule.every:
            self._ahead = 0
            return self._next if time >= self._next else None
        self._ahead += 1  # a mistaken date, unless others are as late: it would age all that is known
        return self._next if self._ahead >= CONFIRMED else None

    def remember(self, moment: float, model: Model | None = None) -> None:
        """A lesson that was held before: what was known is entered. Without its model, take up a later one."""
        self._advance(moment)
        if model is not None:
            self.take_up(model)

    def take_up(self, model: Model) -> None:
        """Go on with the model of a lesson that was remembered."""
        self.model = model
        self._weighed_at = int(model.facts.get("lessons", {}).get("weighed_at", 0))

    def learn(self, moment: float) -> Model:
        """Hold the lesson of this moment; the same model where there was nothing to learn from."""
        if not self.label_buffer.has_news(moment):  # a stream that pauses, or jumps by years: there are many of these
            self.remember(moment)
            return self.model
        self._advance(moment)
        book = self.label_buffer
        if self._adapt and book.silent is not None:
            self.model = self._adapted(book.silent)
        taught = "lessons" in self.model.facts  # then also that a fraud was none, or is long ago
        if book.kept is not None and (taught or book.kept.fraud.any()):
            self.model = self._next_model(moment, book.kept)
        return self.model

    def _adapted(self, silent: Features) -> Model:
        """Laws moved towards what nobody objected to; rates as well, until verdicts say what they are."""
        moved = adapted(self.model, silent.take(~silent.alerted), share_of(self.label_buffer.days, HALF_LIFE))
        return moved if "lessons" not in self.model.facts else replace(moved, tails=self.model.tails)

    def _advance(self, moment: float) -> None:
        self.label_buffer.advance(moment)
        self._next = moment + self.schedule.every

    def _next_model(self, moment: float, kept: LearningSample) -> Model:
        before = self.model.learnt
        assert before is not None
        learnt = self._counted(before)
        frauds = int(kept.fraud.sum())
        # Of fewer normal ones nobody can say how rare evidence is among them: it stays as rare as it was.
        measurable = int(kept.sampled.sum()) >= _FEWEST_NORMALS
        weighing, takeover = None, self.model.takeover_share
        facts: dict[str, Any] = dict(self.model.facts.get("lessons", {"weighed_by": SUM}))
        told = silence_speaks(kept, self.label_buffer.unasked, facts.get("silence") == "normal")
        shares: list[float] = facts.get("shares") or self._shares(moment, kept)
        if not (told or shares or "lessons" in self.model.facts):
            return self.model  # what reaches the threshold of all is still to be counted, before anything is learnt
        if frauds < _FEWEST_FRAUDS or (shares and not told):
            # One verdict says nothing about merchants and customers: their records would tell who is often seen, and
            # outweigh everything else. Nor do verdicts on alerts alone: what they are compared with is not normal.
            learnt = learnt._replace(weights=self._without_records(learnt), **NO_TREES._asdict())
            facts, self._weighed_at, takeover = {"weighed_by": SUM}, 0, self.first.takeover_share
        elif told and measurable and self._weighs(frauds):
            weighing = select_weights(learnt, kept, self.label_buffer)
            self._weighed_at = frauds
            learnt = learnt._replace(weights=weighing.weights, **weighing.trees._asdict())
            facts = measured(weighing)
        tail = self.model.tails["evidence"]
        past = self._settled(moment, kept)
        if shares and not told and len(past.weight) >= _FEWEST_NORMALS:
            evidence = evidence_by(learnt, past.rows.inputs.astype(float), int(learnt.term_of.max()) + 1)
            tail = tail_by_shares(evidence, past.weight, shares)
        elif told and measurable and (weighing is not None or not len(learnt.roots)):
            if weighing is None:
                asked, (evidence, speaking) = kept, evidence_today(learnt, kept, self.label_buffer)
            else:
                asked, evidence, speaking = weighing.judged, weighing.today, weighing.speaking
            whose = asked.rows.account[speaking].view(np.int64)
            tail = fit_tail(evidence[speaking], self.model.settings.tail_share, whose)
        tails = {**self.model.tails, "evidence": tail}
        model = replace(self.model, learnt=read_only(learnt), tails=tails, takeover_share=takeover)
        if weighing is not None:
            model = replace(model, takeover_share=self._takeover_share(model, weighing))
        facts |= {"shares": shares, "silence": "normal" if told else "unknown"}
        return replace(model, facts={**model.facts, "lessons": {**facts, **self._account(moment, kept, learnt)}})

    def _weighs(self, frauds: int) -> bool:
        """Whether weights are learnt in this lesson."""
        return self.label_buffer.lessons % self._weighed_every == 0 or frauds >= _GROWN * max(self._weighed_at, 1)

    def _settled(self, moment: float, kept: LearningSample) -> LearningSample:
        """Those that stand for all transactions of their time: of later ones, only what was judged is entered."""
        return kept.take(kept.rows.time <= moment - self.schedule.delay)

    def _shares(self, moment: float, kept: LearningSample) -> list[float]:
        """Of all transactions, how rare they were before anything was learnt, as far as to the threshold, or none."""
        past = self._settled(moment, kept)
        if "lessons" in self.model.facts or not len(past.weight):
            return []
        shares = shares_by_rarity(rarities(self.model.tails["evidence"], past.rows.evidence), past.weight)
        enough = shares and shares[-1] >= self.model.threshold + self.model.budget_offsets()[EVIDENCE]
        return shares if enough else []

    def _without_records(self, learnt: Supervised) -> FloatArray:
        """The plain sum of what laws say."""
        weights: FloatArray = np.ones(len(learnt.weights))
        weights[self.label_buffer.first_record :] = 0.0
        return weights

    def _counted(self, before: Supervised) -> Supervised:
        """Records and the law of fraud as they are counted by now."""
        book = self.label_buffer
        everyone = base_rate(book.base)
        laws = [law.ratio() for law in book.law]
        numbers = [ratio for ratio, _ in laws[4:]]
        return before._replace(
            start=np.cumsum([0, *(len(r.codes) for r in book.records)]),
            codes=np.concatenate([r.codes for r in book.records]),
            rates=np.concatenate([r.rates(everyone) for r in book.records]),
            chosen=book.chosen,
            amount=laws[0][0],
            hour=laws[1][0],
            weekday=laws[2][0],
            gap=laws[3][0],
            number=np.array(numbers).reshape(before.number.shape),
            frauds=np.array([count for _, count in laws]),
        )

    def _takeover_share(self, model: Model, weighing: Selection) -> float:
        """Of the alert budget: the part with which alert scores rank known frauds best: trees know takeovers, too."""
        judged = weighing.judged
        evidence = rarities(model.tails["evidence"], weighing.evidence)
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

    def _account(self, moment: float, kept: LearningSample, learnt: Supervised) -> dict[str, Any]:
        """What a model was made from."""
        book, fields = self.label_buffer, rated_fields(self.model.settings.declared)
        return {
            "moment": moment,
            "number": book.lessons,
            "frauds": int(kept.fraud.sum()),
            "others": int(len(kept.fraud) - kept.fraud.sum()),
            "waiting": book.waiting,
            "too_late": book.too_late,
            "disputed": book.disputed,
            "outweighed": book.outweighed,
            "weighed_at": self._weighed_at,
            "half_lives": {f: HALF_LIVES[c] for f, c in zip(fields, learnt.chosen.tolist(), strict=True)},
            "before": self.model.version,
        }
