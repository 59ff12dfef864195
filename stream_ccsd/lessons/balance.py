"""Who found which fraud, and how much of what one person calls fraud is learnt.

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
from typing import NamedTuple

import numpy as np

from stream_ccsd.numeric import AnyArray
from stream_ccsd.verdict import Standing

ALWAYS = 5
"""Frauds of one person at a merchant that count whatever else was found."""


class _Found(NamedTuple):
    who: str | None  # nobody, where several say so, or it is a chargeback
    merchant: int
    unasked: bool  # a chargeback or a label: nobody had to look at an alert


class Balance:
    """Known frauds, by who found them and where."""

    def __init__(self) -> None:
        self._found: dict[int, _Found] = {}  # by the transaction's key, in the order in which they were first told

    def note(self, key: int, said: Standing, merchant: int) -> None:
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
