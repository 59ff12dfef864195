"""The Fraud Detection Handbook's own protocol: its weeks, and the cards it takes out of its test days.

Le Borgne et al., chapter 3: a week to train on, a week whose labels are not known, a week to test.
"""

from __future__ import annotations

import numpy as np

from offline.fraud.days import Days
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.numeric import AnyArray

ORIGIN = "2018-04-01"
"""The moment of time 0 of the Handbook's stream, whose times are seconds."""
TRAINED, TESTED = range(115, 122), range(129, 136)
DELAY = 7


def tested_rows(days: Days) -> AnyArray:
    """Which transactions the Handbook tests on.

    From each test day those of cards are left out that are known to be compromised by then: with fraud in the week of
    training, or on a day whose labels came before this test day or an earlier one.

    Raises
    ------
    StreamCcsdError
        If the stream does not reach that far.
    """
    if days.last < TESTED[-1]:
        raise StreamCcsdError(
            f"{days.data.name} ends with day {days.last}: the Handbook's protocol tests days {TESTED[0]} to "
            f"{TESTED[-1]} of its own stream. For another one, use --protocol verdicts"
        )
    compromised = np.zeros(int(days.account.max()) + 1, bool)
    compromised[days.account[np.isin(days.day, TRAINED) & days.fraud]] = True
    tested = np.zeros(len(days.day), bool)
    for day in TESTED:
        # Labels of a day are known when the delay has passed after its end.
        compromised[days.account[(days.day == day - DELAY - 1) & days.fraud]] = True
        tested |= (days.day == day) & ~compromised[days.account]
    return tested
