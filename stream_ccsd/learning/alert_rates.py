"""How rare evidence is after a model update, where nobody knows which transactions are normal.

Where every known fraud had been an alert, a transaction without a verdict is not known to be normal: much of the rest
is fraud that nobody looked at. Counted as normal, it would make high evidence look common, and every update would leave
fewer alerts. What is known is which share of *all* transactions was how rare before the first update. An updated model
gives the same shares the same rarity: as many alerts as before, spent on what it ranks highest.

Weights and fraud rates would be learnt by comparison with the transactions without a verdict, so they are not used. The
distribution of fraud itself is.
"""

from __future__ import annotations

import numpy as np

from stream_ccsd.learning.label_buffer import LearningSample
from stream_ccsd.model.calibration import Tail
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, read_only

# Frauds that were reported without an alert, as a share of all known ones, from which on a transaction without a
# verdict counts as normal, and down to which it goes on to: where nearly all are caught, few are left to be reported.
_TOLD, _STILL_TOLD = 0.02, 0.005
_STEPS = 120
_LATELY = 10  # steps
# Transactions above the last step: with fewer there is no next step.
_LEAST = 50.0
_MIN_SCALE = 1e-3


def silence_speaks(kept: LearningSample, unasked: AnyArray, before: bool) -> bool:
    """Whether frauds are also reported without an alert: in chargebacks and labels, or of accounts that had none.

    An analyst who looks at an alert finds other frauds of its account, which says nothing about other accounts. Nor
    does exploration, which looks at some at random, about the rest. ``before`` is the answer at the update before.
    """
    fraud = kept.fraud
    seen = np.isin(kept.rows.account, kept.rows.account[fraud & kept.rows.alerted])
    least = _STILL_TOLD if before else _TOLD
    return int((fraud & (unasked | ~seen)).sum()) > least * int(fraud.sum())


def shares_by_rarity(rarity: FloatArray, weight: FloatArray) -> list[float]:
    """The rarity that each share of all transactions reaches: of 1, 1/e^0.1, 1/e^0.2 and so on."""
    values, share = _falling(rarity, weight)
    wanted = 0.1 * np.arange(_STEPS)
    wanted = wanted[wanted <= np.log(weight.sum() / _LEAST)]
    return [round(float(v), 6) for v in np.maximum(np.interp(wanted, share, values), 0.0)]


def tail_by_shares(evidence: FloatArray, weight: FloatArray, shares: list[float]) -> Tail:
    """The tail under which shares of all transactions are as rare as they were."""
    values, share = _falling(evidence, weight)
    wanted = 0.1 * np.arange(len(shares))
    knots, first = np.unique(np.interp(wanted, share, values), return_index=True)
    rarity = np.maximum.accumulate(np.array(shares)[first])
    if len(knots) == 1:
        knots, rarity = np.append(knots[0] - 1.0, knots), np.append(0.0, rarity)
    above = values > knots[-1]
    # In a share smaller by a factor of e, evidence is higher by its mean excess, and rarer by as much as lately.
    excess = values[above] - knots[-1]
    mass = -np.diff(np.exp(-share), append=0.0)[above]
    scale = float((excess * mass).sum() / mass.sum()) if mass.sum() > 0.0 else 1.0
    slope = max((shares[-1] - shares[-1 - _LATELY]) / (0.1 * _LATELY), 1.0) if len(shares) > _LATELY else 1.0
    return read_only(Tail(knots, rarity, float(rarity[-1]), 0.0, max(scale / slope, _MIN_SCALE)))


def _falling(values: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Values, rising, and ``-log`` of the share of transactions at or above each."""
    order = np.argsort(values, kind="stable")
    above = np.cumsum(weight[order][::-1])[::-1] / weight.sum()
    return values[order], -np.log(np.minimum(above, 1.0))
