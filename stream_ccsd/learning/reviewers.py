"""Reviewers: whose verdicts differ from those of others, and how much of one reviewer's fraud is learnt.

:func:`standing_out` compares reviewers, for people to look at. Where others gave a verdict on the same transaction, it
says how often this reviewer said the opposite of most of them. Over all transactions, it says how often this reviewer
said fraud, against everybody else. Both come with how sure they are, in standard deviations of chance, so that a
reviewer with few verdicts does not stand out.

:class:`FraudQuota` bounds what is learnt. A reviewer who calls half of a merchant's payments fraud, by mistake or on
purpose, would make the model learn that the merchant is fraudulent, and with it the amounts and hours of its customers.
So the frauds that one reviewer alone has found at a merchant count no more than that reviewer alone found elsewhere, or
than others found there, and always the first five. The rest waits until others find fraud there too, or agree. What was
learnt is taken back, should it turn out to be too much.

Chargebacks and labels are nobody's opinion, so they are not bounded. Nor is a reviewer who is the only one, or fraud
that is all at one merchant, because there is nothing to compare with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from stream_ccsd.numerics.arrays import AnyArray
from stream_ccsd.verdict import EffectiveVerdict, Verdict, by_transaction

STANDS_OUT = 3.0
"""Deviations of chance from which on somebody stands out: among twenty people by chance once in some twenty looks."""
_LEAST = 10  # verdicts of one person, to be compared at all
# Transactions at everyone's rate that each side is given, so that shares of 0 and 1 have a deviation, too.
_PRIOR = 1.0


@dataclass(frozen=True, slots=True)
class Reviewer:
    """How one person's verdicts compare. Only the newest verdict of a person on a transaction counts; no 'unsure'."""

    who: str
    judged: int  # transactions
    frauds: int  # of these, called fraud
    others_judged: int  # transactions with a verdict of anybody else
    others_frauds: int
    shared: int  # transactions with verdicts of others as well, mostly one way
    against: int  # of these, with the opposite verdict of most others
    others_shared: int  # the same of everybody else, transaction by transaction and person by person
    others_against: int
    deviation: float  # of the share called fraud from that of others, in deviations of chance; above 0: more fraud
    dissent: float  # of the share against most others; above 0: more often than others

    @property
    def stands_out(self) -> bool:
        """Whether chance alone hardly explains it."""
        return self.judged >= _LEAST and (abs(self.deviation) >= STANDS_OUT or self.dissent >= STANDS_OUT)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"stands_out": self.stands_out}


def standing_out(verdicts: Iterable[Verdict]) -> list[Reviewer]:
    """Everybody who gave a verdict, those who differ most first; of equal ones by name. Of two, both differ.

    Verdicts are given in the order of their arrival. Chargebacks and labels count as reviewers of their own, so that
    others are compared with them, too.

    >>> ann = [Verdict(f"x{i}", "C1", "fraud" if i < 3 else "normal", "ann", 1.0) for i in range(40)]
    >>> bob = [Verdict(f"x{i}", "C1", "fraud", "bob", 2.0) for i in range(20, 40)]
    >>> [(r.who, r.frauds, r.judged, r.against, r.stands_out) for r in standing_out([*ann, *bob])]
    [('ann', 3, 40, 20, True), ('bob', 20, 20, 20, True)]
    """
    said = [_newest(own) for own in by_transaction(verdicts).values()]
    reviewers = {who for own in said for who in own}
    mine = {who: [0] * 6 for who in reviewers}  # verdicts, frauds, shared, against, alone; alone in saying fraud
    for own in said:
        frauds = sum(own.values())
        for who, fraud in own.items():
            others, called = len(own) - 1, frauds - fraud
            differs = 2 * called != others and fraud != (2 * called > others)
            counted = (1, fraud, 2 * called != others, differs, not others, fraud and not called)
            mine[who] = [a + b for a, b in zip(mine[who], counted, strict=True)]
    anybody, any_fraud = sum(map(bool, said)), sum(any(own.values()) for own in said)
    shared, against = (sum(counts[place] for counts in mine.values()) for place in (2, 3))
    found = []
    for who, (judged, frauds, own_shared, own_against, alone, alone_fraud) in mine.items():
        others, others_frauds = anybody - alone, any_fraud - alone_fraud
        rest, rest_against = shared - own_shared, against - own_against
        found.append(
            Reviewer(
                *(who, judged, frauds, others, others_frauds, own_shared, own_against, rest, rest_against),
                deviation=_deviation(frauds, judged, others_frauds, others),
                dissent=_deviation(own_against, own_shared, rest_against, rest),
            )
        )
    return sorted(found, key=lambda r: (-max(abs(r.deviation), r.dissent), r.who))


def _newest(verdicts: list[Verdict]) -> dict[str, bool]:
    """By person, whether the newest verdict on a transaction is fraud; those who are unsure are left out."""
    newest = {v.who: v.verdict for v in sorted(dict.fromkeys(verdicts), key=lambda v: v.time)}
    return {who: said == "fraud" for who, said in newest.items() if said != "unsure"}


def _deviation(own: int, of_own: int, others: int, of_others: int) -> float:
    """Of one share from another, in deviations of chance; 0 where either has nothing to compare."""
    if not of_own or not of_others:
        return 0.0
    everyone = (own + others + _PRIOR) / (of_own + of_others + 2.0 * _PRIOR)
    spread = sqrt(everyone * (1.0 - everyone) * (1.0 / of_own + 1.0 / of_others))
    return (own / of_own - others / of_others) / spread


ALWAYS = 5
"""Frauds of one person at a merchant that count whatever else was found."""


class _Found(NamedTuple):
    who: str | None  # nobody, where several say so, or it is a chargeback
    merchant: int
    unasked: bool  # a chargeback or a label: nobody had to look at an alert


class FraudQuota:
    """Known frauds, by who found them and where."""

    def __init__(self) -> None:
        self._found: dict[int, _Found] = {}  # by the transaction's key, in the order in which they were first reported

    def note(self, key: int, verdict: EffectiveVerdict, merchant: int) -> None:
        """Note the effective verdict on a transaction."""
        if verdict.label != "fraud":
            self._found.pop(key, None)
            return
        who = verdict.sides["fraud"]
        self._found[key] = _Found(who[0] if len(who) == 1 and not verdict.unasked else None, merchant, verdict.unasked)

    def keep_only(self, remembered: AnyArray) -> set[int]:
        """Forget all others; returns which."""
        keys = np.fromiter(self._found, np.uint64, len(self._found))
        gone = set(keys[~np.isin(keys, remembered)].tolist())
        for key in gone:
            del self._found[key]
        return gone

    def outweighed(self) -> set[int]:
        """Frauds that do not count: of each person's at a merchant, those that were reported last."""
        there: Counter[int] = Counter(f.merchant for f in self._found.values())
        of = Counter(f.who for f in self._found.values())
        own = Counter((f.who, f.merchant) for f in self._found.values())
        counted: Counter[tuple[str, int]] = Counter()
        beyond = set()
        for key, found in self._found.items():
            if found.who is None or len(self._found) in (of[found.who], there[found.merchant]):
                continue
            place = found.who, found.merchant
            most = max(ALWAYS, of[found.who] - own[place], there[found.merchant] - own[place])
            if counted[place] >= most:
                beyond.add(key)
            counted[place] += 1
        return beyond

    def unasked(self, keys: AnyArray) -> AnyArray:
        """Which of them were reported by customers, banks or labels."""
        reported = [key for key, found in self._found.items() if found.unasked]
        return np.isin(keys, np.array(reported, np.uint64))
