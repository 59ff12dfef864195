"""Whose verdicts differ from those of others, and how: for people to look at, nothing is decided by it.

Two things are compared. Where others have judged the same transaction: how often this person said the opposite of most
of them. Everywhere: how often this person said fraud, against everybody else. Both are given with how sure they are, in
deviations of chance, so that whoever has judged little does not stand out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

from stream_ccsd.verdict import Verdict, by_transaction

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
