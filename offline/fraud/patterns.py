"""The simulator's four patterns of fraud, one by one: does the account's own law add anything, and to whom?"""

from __future__ import annotations

from typing import Any

import numpy as np

from offline.fraud.baselines import account_deviation, transaction_baselines
from offline.fraud.data import LabelledData
from offline.fraud.metrics import ranked
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

    Whether countries, devices and hours are looked at is said by the settings: see ``replay.simulated.town_settings``.

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
    calm = rows["account"].map(pattern_of).isna().to_numpy()
    return {
        "protocol": "patterns",
        "seed": seed,
        "fields": list(settings.fields),
        "transactions": len(rows),
        "takeover_share": model.takeover_share,
        "gains": model.facts["gains"],
        "patterns": {
            name: {
                "accounts": int((pattern_of == name).sum()),
                "transaction": ranked(scores.drop(columns="accumulated"), (pattern == name).to_numpy(), calm),
                "account": ranked(by_account, (pattern_of == name).to_numpy(), pattern_of.isna().to_numpy()),
            }
            for name in PATTERNS
        },
    }
