"""An alert, with its reasons in words and numbers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from stream_ccsd.account import REGIMES, Batch
from stream_ccsd.alerts.sentences import explain_evidence, one_in, takeover_sentence
from stream_ccsd.divergence.search.windows import CATEGORY_CHANGED, MERCHANT_CHANGED
from stream_ccsd.model.model import Model
from stream_ccsd.scores import COMPILED, EVIDENCE, FUSED, TAKEOVER
from stream_ccsd.scores import scores as all_scores
from stream_ccsd.transaction import Transaction

# From this rarity on a takeover has a sentence, also where something else raised the alert: 1 in 20.
_NOTABLE = 3.0
_TAKEOVER = COMPILED[TAKEOVER].name


EXPLORATION = "exploration"
"""Raises alerts that no score speaks for: they are drawn at random, to learn from."""


@dataclass(frozen=True)
class Reason:
    """One additive part of a score, in nats, with its sentence and the term or score it is part of."""

    nats: float
    text: str
    term: str = ""  # empty for everything else together


@dataclass(frozen=True)
class Regime:
    """A (category, merchant) that holds a share of the library neighbours' weight."""

    category: str
    merchant: str
    share: float


@dataclass(frozen=True)
class DensityCurves:
    """Both densities of abs(Δz) on a common axis, for a plot; empty before an account has windows to compare."""

    change: list[float]
    account: list[float]
    normal: list[float]


@dataclass(frozen=True)
class Alert:
    """Why an account is worth a look. The id follows from account and transaction, so it never changes."""

    id: str
    account: str
    transaction: str
    time: float
    when: str | None  # that time as a date in ISO 8601, where the model's calendar knows it
    amount: float
    category: str
    merchant: str
    fields: dict[str, str | float | None]  # declared ones
    score_name: str
    raised_by: str  # the score that raised it: of those that join, the rarest
    score: float  # rarity of the score, -log(tail rate), in nats
    threshold: float
    tail_rate: float
    calibrated_on: int  # left-out normal transactions behind the tail rate; rarer than 1 in that many is extrapolated
    previous_maximum: float | None
    model: str
    scores: dict[str, float | None]
    category_changed: bool | None
    merchant_changed: bool | None
    reasons: list[Reason]
    neighbours: list[Regime]
    densities: DensityCurves

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @property
    def best_reason(self) -> Reason:
        """The largest reason of the score that raised it."""
        of_takeover = [reason for reason in self.reasons if reason.term == _TAKEOVER]
        others = [reason for reason in self.reasons if reason.term not in ("", _TAKEOVER)]
        return ((of_takeover if self.raised_by == _TAKEOVER else []) or others or self.reasons)[0]

    @property
    def expected_loss(self) -> float:
        """To rank alerts by, in nats: the evidence for fraud, and how much money is at stake.

        It orders alerts as their expected losses would while fraud is unlikely. It is not an expected loss, because how
        common fraud is is not known: there is no probability to multiply the amount by.
        """
        return (self.scores["evidence"] or 0.0) + math.log1p(self.amount)

    @property
    def headline(self) -> str:
        """The alert in one line."""
        best = self.best_reason
        extrapolated = self.tail_rate * self.calibrated_on < 1
        rate = f"fewer than 1 in {self.calibrated_on:,}" if extrapolated else f"1 in {one_in(self.tail_rate)}"
        return f"{self.account}: {rate} normal transactions score this high; {best.text}"


def make_alert(
    model: Model, transaction: Transaction, batch: Batch, i: int, scores: dict[str, float | None], threshold: float
) -> Alert:
    """The alert of a transaction, from its row of compiled outputs and all its scores by name."""
    out, background = batch.outputs[i], batch.backgrounds[i]
    previous = float(out["previous_maximum"])
    regime = int(out["regime"])
    return Alert(
        id=blake2b(
            f"{transaction.account}\0{transaction.id}".encode("utf-8", "surrogatepass"), digest_size=12
        ).hexdigest(),
        account=transaction.account,
        transaction=transaction.id,
        time=transaction.time,
        when=model.calendar.iso(transaction.time),
        amount=transaction.amount,
        category=transaction.category,
        merchant=transaction.merchant,
        fields={name: transaction.fields.get(name) for name in (f.name for f in model.settings.declared)},
        score_name=model.settings.alert_on,
        raised_by=_raised_by(model, out) if float(out["score"]) >= threshold else EXPLORATION,
        score=float(out["score"]),
        threshold=threshold,
        tail_rate=math.exp(-float(out["score"])),
        calibrated_on=int(model.facts.get("transactions", 0)),
        previous_maximum=previous if math.isfinite(previous) else None,
        model=model.version,
        scores=scores,
        category_changed=bool(regime & CATEGORY_CHANGED) if regime >= 0 else None,
        merchant_changed=bool(regime & MERCHANT_CHANGED) if regime >= 0 else None,
        reasons=_reasons(model, transaction, batch, i, scores),
        neighbours=_neighbours(model, background),
        densities=_densities(background),
    )


def _raised_by(model: Model, out: Any) -> str:
    """The score that is rarest, given its share of the budget."""
    if model.settings.alert_on != FUSED:
        return model.settings.alert_on
    standing = [
        rarity - offset if score.joins_alert else -math.inf
        for score, rarity, offset in zip(COMPILED, out["rarities"].tolist(), model.budget_offsets(), strict=True)
    ]
    return COMPILED[int(np.argmax(standing))].name


def _reasons(
    model: Model, transaction: Transaction, batch: Batch, i: int, scores: dict[str, float | None]
) -> list[Reason]:
    """The reasons of each score, the largest first."""
    said = explain_evidence(model, transaction, batch, i)
    if not said:
        said = [
            (float(batch.outputs[i]["scores"][EVIDENCE]), "raised before: its reasons were given the first time", "")
        ]
    run, takeover = int(batch.backgrounds[i]["run"]), scores["takeover"]
    if takeover and run and batch.backgrounds[i]["id"] and batch.outputs[i]["rarities"][TAKEOVER] >= _NOTABLE:
        said.append((takeover, takeover_sentence(run), _TAKEOVER))
    said += [
        (*part, score.name)
        for score in all_scores()
        if score.explain
        for part in score.explain(model, transaction, batch.outputs[i])
    ]
    return sorted((Reason(*part) for part in said), key=lambda r: -r.nats)


def _neighbours(model: Model, background: Any) -> list[Regime]:
    return [
        Regime(
            model.name(background["regime_category"][i]),
            model.name(background["regime_merchant"][i]),
            float(background["regime_share"][i]),
        )
        for i in range(REGIMES)
        if background["regime_share"][i] > 0
    ]


def _densities(background: Any) -> DensityCurves:
    if not background["reach"] > 0:
        return DensityCurves([], [], [])
    axis = np.linspace(0.0, float(background["reach"]), len(background["local_density"]))
    unit = float(background["peak"]) / 255.0
    own, normal = ((unit * background[name].astype(float)).tolist() for name in ("local_density", "global_density"))
    return DensityCurves(axis.tolist(), own, normal)
