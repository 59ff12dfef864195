"""A split by time, as it is deployed: learn and choose early, leave a gap, report on what comes later."""

from __future__ import annotations

from typing import Any

import numpy as np

from offline.fraud.data import LabelledData
from offline.fraud.metrics import judged
from offline.fraud.stream import evaluated_scores, score_stream
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.fitting import fit
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
    rows = data.frame
    times = rows["time"].to_numpy()
    low, high = times.min(), times.max()
    if not high > low:
        raise StreamCcsdError("a split by time needs more than one point in time")
    early, val_end, test_start = (low + share * (high - low) for share in (LEARN_UNTIL, VAL_UNTIL, TEST_FROM))
    learn, val, test = times < early, (times >= early) & (times < val_end), times >= test_start
    known = rows.loc[learn & data.fraud, "account"]
    library = np.flatnonzero(learn & ~rows["account"].isin(known).to_numpy())
    model = fit([data.transactions[i] for i in library], settings)
    scores = score_stream(model, data, np.arange(len(times)), progress).scores
    if baselines:
        scores["amount"] = rows["amount"]
    result: dict[str, Any] = {
        "protocol": "time",
        "seed": 0,
        "periods": {"learn_until": early, "val_until": val_end, "test_from": test_start},
        "library_windows": model.facts["library_windows"],
        "account": {"baselines": {}},
        "transaction": {"baselines": {}},
    }
    labelled = scores.assign(fraud=data.fraud)
    # An account of a period is judged by its maximum there, and is fraud if one of its transactions there is.
    levels = {
        "transaction": [labelled[part] for part in (val, test)],
        "account": [labelled[part].groupby(rows["account"][part]).max() for part in (val, test)],
    }
    for name in scores:
        for level, parts in levels.items():
            early_late = [(part["fraud"].to_numpy(), part[name].to_numpy()) for part in parts]
            judgement = judged(early_late[0], early_late[1])
            (result[level] if name in evaluated_scores() else result[level]["baselines"])[name] = judgement
    return result
