"""A split by time, as it is deployed: learn and choose early, leave a gap, report on what comes later."""

from __future__ import annotations

from typing import Any

import numpy as np

from offline.fraud.baselines import account_deviation, transaction_baselines
from offline.fraud.data import LabelledData
from offline.fraud.metrics import judged
from offline.fraud.split import PARTS, Kind, Part
from offline.fraud.stream import judge_kinds, judge_transactions, place, score_stream
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.fitting import fit
from stream_ccsd.numeric import AnyArray
from stream_ccsd.progress import Progress
from stream_ccsd.settings import Settings

# Shares of the time axis: learn, choose the threshold, leave out, report.
LEARN_UNTIL, VAL_UNTIL, TEST_FROM = 0.45, 0.60, 0.65


def run_periods(
    data: LabelledData,
    seed: int,
    settings: Settings,
    baselines: bool,
    split_kind: Kind = "sets",
    trees: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Fit on the first period, run the engine over everything, judge the last period.

    Fitted are accounts without a known fraud in the first period; where labels are unknown then, all accounts. The
    engine sees all transactions in order, so accounts are as old in the last period as they would be.
    """
    if split_kind == "half":
        raise StreamCcsdError("a split by time divides no accounts: half of them is for --protocol stream")
    rows = data.frame
    times = rows["time"].to_numpy()
    low, high = times.min(), times.max()
    if not high > low:
        raise StreamCcsdError("a split by time needs more than one point in time")
    early, val_end, test_start = (low + share * (high - low) for share in (LEARN_UNTIL, VAL_UNTIL, TEST_FROM))
    learn = times < early
    parts: dict[Part, AnyArray] = {"val": (times >= early) & (times < val_end), "test": times >= test_start}
    known = rows.loc[learn & data.fraud, "account"] if split_kind == "sets" else []
    library = learn & ~rows["account"].isin(known).to_numpy()
    model = fit([data.transactions[i] for i in np.flatnonzero(library)], settings)
    scores = score_stream(model, data, np.arange(len(times)), progress).scores
    if baselines:
        everything = np.full(len(times), True)
        scores = scores.join(transaction_baselines(data, library, everything, parts["val"], seed, trees))
    # An account of a period is judged by its maximum there, and is fraud if one of its transactions there is.
    by_account = {}
    for name in PARTS:
        part = rows[parts[name]]
        highest = scores[parts[name]].groupby(part["account"]).max()
        highest = highest.assign(deviation=account_deviation(part)) if baselines else highest
        by_account[name] = highest, part.groupby("account")["fraud"].any().to_numpy()
    accounts: dict[str, Any] = {"baselines": {}}
    for name in by_account["test"][0]:
        val, test = ((labels, highest[name].to_numpy()) for highest, labels in (by_account[part] for part in PARTS))
        place(accounts, name, judged(val, test))
    last = parts["test"]
    kinds = None if data.kinds is None else judge_kinds(rows[last], data.kinds, scores[last], by_account["test"][0])
    return {
        "protocol": "time",
        "seed": 0,  # nothing is drawn: time decides
        "split": split_kind,
        "fields": list(settings.fields),
        "contamination": settings.contamination,
        "periods": {"learn_until": early, "val_until": val_end, "test_from": test_start},
        "library_windows": model.facts["library_windows"],
        "fitted": {"transactions": int(library.sum()), "fraud": int(data.fraud[library].sum())},
        "account": accounts,
        "transaction": judge_transactions(data.fraud, parts, scores),
        **({} if kinds is None else {"kinds": kinds}),
    }
