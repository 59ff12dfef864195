"""Whose verdicts differ from those of others, and how: for people to look at, nothing is decided by it.

Two things are compared. Where others have judged the same transaction: how often this person said the opposite of most
of them. Everywhere: how often this person said fraud, against everybody else. Both are given with how sure they are, in
deviations of chance, so that whoever has judged little does not stand out.

Who found which fraud, and how much of what one person calls fraud is learnt.

Somebody who calls half of a merchant's payments fraud, by mistake or on purpose, would teach a model that the merchant
is fraudulent, and with it the amounts and hours of its customers. So of the frauds that one person alone has found at a
merchant there count no more than that person alone found elsewhere, or than others found there, and always the first
five. The rest waits until others find fraud there, too, or agree; and what was learnt is taken back, should it turn out
to be too much.

Chargebacks and labels are nobody's opinion: they are not bounded. Nor is whoever is the only one to judge, or fraud
that is all at one merchant: there is nothing to compare with.
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
_LEAST = 10  # verdicts of one person, or they say nothing
# Transactions at everyone's rate that each side is given, so that shares of 0 and 1 have a deviation, too.
_PRIOR = 1.0


@dataclass(frozen=True, slots=True)
class Reviewer:
    """How one person's verdicts compare. Only the newest verdict of a person on a transaction counts; no 'unsure'."""

    who: str
    judged: int  # transactions
    frauds: int  # of these, called fraud
    others_judged: int  # transactions that anybody else judged
    others_frauds: int
    shared: int  # transactions that others judged as well, and mostly one way
    against: int  # of these, judged the opposite of most others
    others_shared: int  # the same of everybody else, transaction by transaction and person by person
    others_against: int
    deviation: float  # of the share called fraud from that of others, in deviations of chance; above 0: more fraud
    dissent: float  # of the share judged against most others; above 0: more often than others are

    @property
    def stands_out(self) -> bool:
        """Whether chance alone hardly explains it."""
        return self.judged >= _LEAST and (abs(self.deviation) >= STANDS_OUT or self.dissent >= STANDS_OUT)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"stands_out": self.stands_out}


def standing_out(verdicts: Iterable[Verdict]) -> list[Reviewer]:
    """Everybody who gave a verdict, those who differ most first; of equal ones by name. Of two, both differ.

    Verdicts are given in the order of their arrival. Chargebacks and labels count as persons of their own: they are
    what others are compared with, too.

    >>> ann = [Verdict(f"x{i}", "C1", "fraud" if i < 3 else "normal", "ann", 1.0) for i in range(40)]
    >>> bob = [Verdict(f"x{i}", "C1", "fraud", "bob", 2.0) for i in range(20, 40)]
    >>> [(r.who, r.frauds, r.judged, r.against, r.stands_out) for r in standing_out([*ann, *bob])]
    [('ann', 3, 40, 20, True), ('bob', 20, 20, 20, True)]
    """
    said = [_newest(own) for own in by_transaction(verdicts).values()]
    people = {who for own in said for who in own}
    mine = {who: [0] * 6 for who in people}  # judged, frauds, shared, against; alone; where only this one says fraud
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
        self._found: dict[int, _Found] = {}  # by the transaction's key, in the order in which they were first told

    def note(self, key: int, said: EffectiveVerdict, merchant: int) -> None:
        """What stands of a transaction."""
        if said.label != "fraud":
            self._found.pop(key, None)
            return
        who = said.sides["fraud"]
        self._found[key] = _Found(who[0] if len(who) == 1 and not said.unasked else None, merchant, said.unasked)

    def keep_only(self, remembered: AnyArray) -> set[int]:
        """Forget all others; returns which."""
        keys = np.fromiter(self._found, np.uint64, len(self._found))
        gone = set(keys[~np.isin(keys, remembered)].tolist())
        for key in gone:
            del self._found[key]
        return gone

    def outweighed(self) -> set[int]:
        """Frauds that do not count: of each person's at a merchant, those that were told last."""
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
        """Which of them were told by customers, banks or labels."""
        told = [key for key, found in self._found.items() if found.unasked]
        return np.isin(keys, np.array(told, np.uint64))
