"""An alert, with its reasons in words and numbers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from stream_ccsd.account import REGIMES
from stream_ccsd.library.laws import shares
from stream_ccsd.library.model import Model
from stream_ccsd.library.windows import CATEGORY_CHANGED, MERCHANT_CHANGED
from stream_ccsd.scores import COMPILED, HABIT, OUTCOME, scores
from stream_ccsd.transaction import Transaction


@dataclass(frozen=True)
class Reason:
    """One additive part of a score, in nats, and what it says."""

    nats: float
    text: str


@dataclass(frozen=True)
class Regime:
    """A (category, merchant) that holds a share of the library neighbours' weight."""

    category: str
    merchant: str
    share: float


@dataclass(frozen=True)
class Densities:
    """Both laws of abs(Δz) on a common axis, for a plot; empty before an account has windows to compare."""

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
    score_name: str
    score: float  # rarity of the score, -log(tail rate), in nats
    threshold: float
    tail_rate: float
    calibrated_on: int  # held-out normal transactions behind the tail rate; rarer than 1 in that many is extrapolated
    previous_maximum: float | None
    model: str
    scores: dict[str, float | None]
    category_changed: bool | None
    merchant_changed: bool | None
    reasons: list[Reason]
    neighbours: list[Regime]
    densities: Densities

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @property
    def headline(self) -> str:
        """The alert in one line."""
        best = max(self.reasons, key=lambda r: r.nats)
        extrapolated = self.tail_rate * self.calibrated_on < 1
        rate = f"fewer than 1 in {self.calibrated_on:,}" if extrapolated else f"1 in {one_in(self.tail_rate)}"
        return f"{self.account}: {rate} normal transactions score this high; {best.text}"


def one_in(rate: float) -> str:
    """``1 / rate`` for people.

    >>> one_in(1e-3), one_in(0.25), one_in(3e-13)
    ('1,000', '4', '3.3e+12')
    """
    count = 1.0 / max(rate, 1e-300)
    return f"{count:,.0f}" if count < 1e9 else f"{count:.1e}"


def make_alert(
    model: Model,
    transaction: Transaction,
    out: Any,
    evidence: Any,
    scores: dict[str, float | None],
    threshold: float,
) -> Alert:
    """The alert of a transaction from its compiled output record and all its scores by name."""
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
        score_name=model.settings.alert_on,
        score=float(out["score"]),
        threshold=threshold,
        tail_rate=math.exp(-float(out["score"])),
        calibrated_on=int(model.facts.get("held_out_transactions", 0)),
        previous_maximum=previous if math.isfinite(previous) else None,
        model=model.version,
        scores=scores,
        category_changed=bool(regime & CATEGORY_CHANGED) if regime >= 0 else None,
        merchant_changed=bool(regime & MERCHANT_CHANGED) if regime >= 0 else None,
        reasons=_reasons(model, transaction, out),
        neighbours=_neighbours(model, evidence),
        densities=_densities(evidence),
    )


def _reasons(model: Model, transaction: Transaction, out: Any) -> list[Reason]:
    """What each score has to say, the weightiest first."""
    said = [part for score in COMPILED for part in _EXPLAINED.get(score.name, _nothing)(model, transaction, out)]
    said += [part for score in scores() if score.explain for part in score.explain(model, transaction, out)]
    return sorted((Reason(nats, text) for nats, text in said), key=lambda r: -r.nats)


def _nothing(model: Model, transaction: Transaction, out: Any) -> list[tuple[float, str]]:
    return []


def _explain_outcome(model: Model, transaction: Transaction, out: Any) -> list[tuple[float, str]]:
    """The parts of the outcome score, which add up to it."""
    parts = {name: float(out[f"{name}_part"]) for name in ("merchant", "category", "amount", "constant")}
    share = shares(model.laws, model.codes(transaction.category), model.codes(transaction.merchant))
    merchant, category = repr(transaction.merchant), transaction.category
    # A merchant rarer than the kernel's allowance for mismatches says little: its category stands in for it.
    rare = share.merchant < model.laws.mismatch
    where = _within(category, share.category)
    if share.category_at_merchant and not rare:
        where = f"at {merchant}"
    texts = {
        "merchant": f"merchant {merchant} {_sees(share.merchant)}",
        "category": _category(category, share.category if rare else share.category_at_merchant)
        + ("" if rare else f" at {merchant}"),
        "amount": f"amount {transaction.amount:,.2f} is {_distance(parts['amount'])} what is paid {where}",
        "constant": "how concentrated normal behaviour is as a whole: the same for every transaction",
    }
    return [(nats, texts[name]) for name, nats in parts.items()]


def _explain_habit(model: Model, transaction: Transaction, out: Any) -> list[tuple[float, str]]:
    """How much more the account's habits say."""
    more = float(out["scores"][HABIT] - out["scores"][OUTCOME])
    return [(more, f"{math.exp(more):,.1f} times less likely for this account than for others")] if more > 0.5 else []


_EXPLAINED = {"outcome": _explain_outcome, "habit": _explain_habit}


def _sees(share: float) -> str:
    return f"sees {_part(share)} normal transactions" if share else "never occurs in normal transactions"


def _category(category: str, share: float) -> str:
    """How usual the category is; a stream need not have any."""
    if category:
        return f"category {category!r} {_sees(share)}"
    if not share:
        return "no category is named, as never in normal transactions"
    return f"no category is named, as in {_part(share)} normal transactions"


def _within(category: str, share: float) -> str:
    """Where amounts are compared with those of the category, as part of a sentence."""
    if not share:
        return "elsewhere"
    if category:
        return f"in {category!r}"
    return "in normal transactions" if share == 1 else "where no category is named"


def _part(share: float) -> str:
    if share == 1:
        return "all"
    return f"{share:.0%} of" if share >= 0.1 else f"1 in {one_in(share)}"


def _distance(nats: float) -> str:
    if nats < 2.5:
        return "close to"
    return "unlike" if nats < 6 else "far from"


def _neighbours(model: Model, evidence: Any) -> list[Regime]:
    return [
        Regime(
            model.name(evidence["regime_category"][i]),
            model.name(evidence["regime_merchant"][i]),
            float(evidence["regime_share"][i]),
        )
        for i in range(REGIMES)
        if evidence["regime_share"][i] > 0
    ]


def _densities(evidence: Any) -> Densities:
    if not evidence["reach"] > 0:
        return Densities([], [], [])
    axis = np.linspace(0.0, float(evidence["reach"]), len(evidence["local_density"]))
    return Densities(axis.tolist(), evidence["local_density"].tolist(), evidence["global_density"].tolist())
