"""The simulator's four patterns of fraud, one by one: does the account's own law add anything, and to whom?"""

from __future__ import annotations

from typing import Any

import numpy as np

from offline.fraud.baselines import SUPERVISED, account_deviation, transaction_baselines
from offline.fraud.data import LabelledData
from offline.fraud.metrics import ranking
from offline.fraud.stream import score_stream
from replay.simulator import PATTERNS, simulate
from stream_ccsd.fitting import fit
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.progress import Progress
from stream_ccsd.settings import Settings

# Share of the normal accounts that the model is fitted on; the others are streamed with the fraud accounts.
_FITTED = 0.5


def run_patterns(
    accounts: int, days: int, seed: int, settings: Settings, progress: Progress | None = None
) -> dict[str, Any]:
    """One simulated stream: every score and baseline against each pattern alone.

    By transaction: the pattern's fraud against all transactions of normal accounts. By account: its accounts against
    the normal ones, each by its maximum.
    """
    stream = simulate(accounts=accounts, days=days, seed=seed)
    fraud = np.array([t.id in stream.fraud for t in stream.transactions])
    data = LabelledData(f"simulated stream, seed {seed}", stream.transactions, fraud, 0, "")
    normal = sorted(stream.normal_accounts())
    chosen = np.random.default_rng(seed).permutation(len(normal))[: int(_FITTED * len(normal))]
    fitted = {normal[i] for i in chosen}
    library = np.array([t.account in fitted for t in data.transactions])
    model = fit([t for t, own in zip(data.transactions, library, strict=True) if own], settings)
    scores = score_stream(model, data, np.flatnonzero(~library), progress).scores
    baselines = transaction_baselines(data, library, ~library, np.zeros(len(fraud), dtype=bool), seed)
    scores |= {name: values for name, values in baselines.items() if name not in SUPERVISED}
    rows = {a: r for a, r in data.rows_by_account().items() if a not in fitted}
    pattern_of = {t.account: stream.fraud[t.id] for t in data.transactions if t.id in stream.fraud}
    levels = {name: _maxima(values, rows) for name, values in scores.items()}
    levels["deviation"] = account_deviation(data, rows)
    labels = np.array([stream.fraud.get(t.id, "") for t in data.transactions])
    calm = np.array(
        [not own and t.account not in pattern_of for own, t in zip(library, data.transactions, strict=True)]
    )
    return {
        "protocol": "patterns",
        "seed": seed,
        "transactions": int((~library).sum()),
        "habit_strength": model.habit_strength,
        "patterns": {
            pattern: {
                "accounts": sum(p == pattern for p in pattern_of.values()),
                "transaction": {
                    name: _ranked(values, labels == pattern, calm)
                    for name, values in scores.items()
                    if name != "accumulated"
                },
                "account": {name: _accounts_ranked(level, pattern_of, pattern) for name, level in levels.items()},
            }
            for pattern in PATTERNS
        },
    }


def _maxima(values: FloatArray, rows: dict[str, list[int]]) -> dict[str, float]:
    filled = np.where(np.isnan(values), -np.inf, values)
    return {account: float(filled[own].max()) for account, own in rows.items()}


def _ranked(values: FloatArray, fraud: AnyArray, calm: AnyArray) -> dict[str, float]:
    return ranking(fraud[fraud | calm], values[fraud | calm])


def _accounts_ranked(level: dict[str, float], pattern_of: dict[str, str], pattern: str) -> dict[str, float]:
    kept = [a for a in level if pattern_of.get(a, pattern) == pattern]
    values = np.array([level[a] for a in kept])
    finite = np.where(np.isfinite(values), values, np.nan)
    return ranking(np.array([a in pattern_of for a in kept]), finite)
