"""The measures that weights are chosen by."""

import numpy as np
import pytest

from stream_ccsd.learning.selection import average_precision


def test_average_precision_is_that_of_the_transactions_that_rows_stand_for():
    """By hand: a row that stands for three is as good as three rows."""
    score = np.array([4.0, 3.0, 2.0, 1.0])
    fraud = np.array([True, False, True, False])
    weight = np.array([1.0, 3.0, 2.0, 5.0])
    # Frauds are 1 of the first 1, and 3 of the first 6, where two come at once.
    assert average_precision(score, fraud, weight) == pytest.approx((1.0 * 1.0 + 2.0 * 3.0 / 6.0) / 3.0)
    spread = np.repeat(np.arange(4), weight[:4].astype(int))
    ones = np.ones(len(spread))
    plain = average_precision(score[spread] + np.linspace(0.1, 0.0, len(spread)), fraud[spread], ones)
    assert plain == pytest.approx((1.0 + 2.0 / 5.0 + 3.0 / 6.0) / 3.0)
    assert average_precision(score, np.zeros(4, bool), weight) == 0.0
