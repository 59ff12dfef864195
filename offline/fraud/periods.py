"""A split by time, as it is deployed: learn and choose early, leave a gap, report on what comes later."""

from __future__ import annotations

from typing import Any

import numpy as np

from offline.fraud.data import LabelledData
from offline.fraud.metrics import judged
from offline.fraud.stream import SCORES, score_stream
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.fitting import fit
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.progress import Progress
from stream_ccsd.settings import Settings

# Shares of the time axis: learn, choose the threshold, leave out, report.
LEARN_UNTIL, VAL_UNTIL, TEST_FROM = 0.45, 0.60, 0.65


def run_periods(
    data: LabelledData, seed: int, settings: Settings, baselines: bool, progress: Progress | None = None
) -> dict[str, Any]:
    """Fit on accounts without a known fraud in the first period, run the engine over everything, judge the last period.

    The engine sees all transactions in order, so accounts are as old in the last period as they would be.
    """
    del seed  # nothing is drawn: time decides
    times = np.array([t.time for t in data.transactions])
    low, high = times.min(), times.max()
    if not high > low:
        raise StreamCcsdError("a split by time needs more than one point in time")
    early, val_end, test_start = (low + share * (high - low) for share in (LEARN_UNTIL, VAL_UNTIL, TEST_FROM))
    learn, val, test = times < early, (times >= early) & (times < val_end), times >= test_start
    known = {t.account for t, fraud, use in zip(data.transactions, data.fraud, learn, strict=True) if use and fraud}
    library = [t for t, use in zip(data.transactions, learn, strict=True) if use and t.account not in known]
    model = fit(library, settings)
    scored = score_stream(model, data, np.arange(len(times)), progress)
    by_transaction = dict(scored.scores)
    if baselines:
        by_transaction["amount"] = np.array([t.amount for t in data.transactions])
    result: dict[str, Any] = {
        "protocol": "time",
        "seed": 0,
        "periods": {"learn_until": early, "val_until": val_end, "test_from": test_start},
        "library_windows": model.facts["library_windows"],
        "account": {"baselines": {}},
        "transaction": {"baselines": {}},
    }
    for name, values in by_transaction.items():
        levels = {
            "transaction": judged((data.fraud[val], values[val]), (data.fraud[test], values[test])),
            "account": judged(_by_account(data, val, values), _by_account(data, test, values)),
        }
        for level, judgement in levels.items():
            (result[level] if name in SCORES else result[level]["baselines"])[name] = judgement
    return result


def _by_account(data: LabelledData, part: AnyArray, values: FloatArray) -> tuple[AnyArray, FloatArray]:
    """Accounts with a transaction in the period: whether one is fraud, and the maximum of the score."""
    highest: dict[str, float] = {}
    fraud: dict[str, bool] = {}
    for i in np.flatnonzero(part).tolist():
        account = data.transactions[i].account
        fraud[account] = fraud.get(account, False) or bool(data.fraud[i])
        value = values[i]
        highest[account] = value if np.isnan(highest.get(account, np.nan)) else np.fmax(highest[account], value)
    return np.array([fraud[a] for a in highest]), np.array(list(highest.values()))
