"""The paper's protocol: whole-history z-scores, and windows taken more densely where the label says fraud.

Reproduced to compare, not to deploy: a stream knows neither the future nor the label. The same model is therefore also
run with one stride for all accounts, which shows what remains of the result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from offline.fraud.data import PARTS, LabelledData, split_accounts
from offline.fraud.metrics import judge_accounts, ranking
from stream_ccsd.divergence import median_bandwidth
from stream_ccsd.divergence.search.index import Index, Scratch, build_index
from stream_ccsd.divergence.search.windows import AccountHistory, library_windows
from stream_ccsd.divergence.window_score import ChangeDensity, LocalDensity, build_change_density, divergence_score
from stream_ccsd.files import Progress
from stream_ccsd.numerics.arrays import AnyArray, FloatArray
from stream_ccsd.numerics.compiling import compiled
from stream_ccsd.settings import Settings

MIN_TRANSACTIONS = 80
FRAUD_STRIDE = 1
ABLATIONS: dict[str, dict[str, Any]] = {
    "no_rarity": {"rarity": False},
    "no_decay": {"decay": False},
    "no_flag": {"gates": False},
}


def run_paper(
    data: LabelledData, seed: int, settings: Settings, full_table: bool, progress: Progress | None = None
) -> dict[str, Any]:
    """One seed: metrics at the threshold chosen on VAL.

    With the full table also the ablations at that same threshold, and what remains when the stride does not depend
    on the label.
    """
    settings = replace(settings, standardise="history")
    rows = {a: r for a, r in data.rows_by_account().items() if len(r) > MIN_TRANSACTIONS}
    fraud = data.fraud_accounts()[list(rows)]
    split = split_accounts(fraud, seed)
    histories = {a: data.history(r) for a, r in rows.items()}
    windows = library_windows((histories[a] for a in sorted(split.library)), settings)
    sigma_x = settings.sigma_x or median_bandwidth(windows.z, seed=settings.seed)
    sigma_y = settings.sigma_y or median_bandwidth(windows.change, seed=settings.seed)
    strides = fraud.map({True: FRAUD_STRIDE, False: settings.library_stride})
    runs = {"full": settings, **({n: replace(settings, **c) for n, c in ABLATIONS.items()} if full_table else {})}
    steps = len(runs) + 2 * full_table

    def account_scores(variant: Settings, stride_of: pd.Series) -> pd.Series:
        index = build_index(windows, variant, sigma_x)
        density = build_change_density(index, variant, sigma_y)
        return pd.Series(
            {
                a: highest_score(index, density, histories[a], stride_of[a], variant.local_history)
                for a in sorted(split.val | split.test)
            }
        )

    scores = {}
    for name, variant in runs.items():
        scores[name] = account_scores(variant, strides)
        if progress:
            progress(len(scores), steps)
    full = judge_accounts(split, scores["full"])
    result: dict[str, Any] = {
        "protocol": "paper",
        "seed": seed,
        "sigma_x": sigma_x,
        "sigma_y": sigma_y,
        "library_windows": len(windows),
        "accounts": split.sizes,
        **full,
    }
    if not full_table:
        return result
    at_full = {name: judge_accounts(split, scores[name], full["threshold"]) for name in ABLATIONS}
    result["ablation"] = {name: {part: judgement[part] for part in PARTS} for name, judgement in at_full.items()}
    result["label_blind"] = {}
    for name, stride in (("every_transaction", 1), ("library_stride", settings.library_stride)):
        blind = account_scores(settings, pd.Series(stride, index=fraud.index))
        result["label_blind"][name] = {part: ranking(*split.labelled(part, blind)) for part in PARTS}
        if progress:
            progress(len(runs) + len(result["label_blind"]), steps)
    return result


def highest_score(
    index: Index, density: ChangeDensity, history: AccountHistory, stride: int, local_history: int
) -> float:
    """The account's maximum over its windows at that stride; NaN where no window has an earlier one."""
    k = index.z.shape[1]
    ends = np.arange(k - 1, len(history.amounts), stride)
    lags = stride * np.arange(1, local_history + 1)
    return float(
        _highest(
            index,
            density,
            history.amounts,
            history.categories,
            history.merchants,
            float(history.amounts.mean()),
            float(history.amounts.std()),
            ends,
            lags,
            Scratch.of(index),
            LocalDensity.of_size(local_history),
        )
    )


@compiled()
def _highest(
    index: Index,
    density: ChangeDensity,
    amounts: FloatArray,
    categories: AnyArray,
    merchants: AnyArray,
    mean: float,
    deviation: float,
    ends: AnyArray,
    lags: AnyArray,
    scratch: Scratch,
    local: LocalDensity,
) -> float:
    highest = np.nan
    for end in ends:
        score, _, _ = divergence_score(
            index,
            density,
            amounts[: end + 1],
            categories[: end + 1],
            merchants[: end + 1],
            mean,
            deviation,
            lags,
            scratch,
            local,
        )
        if score == score and not score <= highest:  # noqa: PLR0124 - NaN: nothing to compare with
            highest = score
    return highest
