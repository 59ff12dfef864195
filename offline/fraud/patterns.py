"""The simulator's four patterns of fraud, one by one: does the account's own law add anything, and to whom?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from offline.fraud.baselines import account_deviation, transaction_baselines
from offline.fraud.data import LabelledData
from offline.fraud.metrics import ranking
from offline.fraud.stream import score_stream
from replay.simulator import PATTERNS, simulate
from stream_ccsd.fitting import fit
from stream_ccsd.progress import Progress
from stream_ccsd.sampling import shuffled
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
    normal = shuffled(stream.normal_accounts(), seed)
    library = data.frame["account"].isin(normal[: int(_FITTED * len(normal))]).to_numpy()
    model = fit([data.transactions[i] for i in np.flatnonzero(library)], settings)
    rows = data.frame[~library]
    baselines = transaction_baselines(data, library, ~library, np.zeros(len(fraud), dtype=bool), seed)
    scores = score_stream(model, data, np.flatnonzero(~library), progress).scores.join(baselines)
    by_account = scores.groupby(rows["account"]).max().assign(deviation=account_deviation(rows))
    # The pattern of each fraud, and of its account; missing where all is normal.
    pattern = rows["id"].map(stream.fraud)
    pattern_of = pattern.groupby(rows["account"]).first()
    calm = rows["account"].map(pattern_of).isna()
    return {
        "protocol": "patterns",
        "seed": seed,
        "transactions": len(rows),
        "takeover_share": model.takeover_share,
        "gains": model.facts["gains"],
        "patterns": {
            name: {
                "accounts": int((pattern_of == name).sum()),
                "transaction": _ranked(scores.drop(columns="accumulated"), pattern == name, calm),
                "account": _ranked(by_account, pattern_of == name, pattern_of.isna()),
            }
            for name in PATTERNS
        },
    }


def _ranked(scores: pd.DataFrame, fraud: pd.Series, calm: pd.Series) -> dict[str, dict[str, float]]:
    """How each score ranks what is fraud above what is calm; what is neither is left out."""
    kept = fraud | calm
    return {name: ranking(fraud[kept].to_numpy(), scores.loc[kept, name].to_numpy()) for name in scores}
