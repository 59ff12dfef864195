"""Do rates hold? A model of some normal accounts, and how often others alert that are just as normal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from replay.simulated import town_settings
from replay.simulator import simulate
from stream_ccsd.alert.threshold import threshold_by_budget
from stream_ccsd.engine import Engine
from stream_ccsd.fitting import fit
from stream_ccsd.progress import Progress
from stream_ccsd.settings import Settings

NOMINAL = (1e-3, 1e-4)
# Normal accounts that are streamed, for so many days.
_STREAMED, _DAYS = 400, 120


def run_rates(accounts: int, seed: int, settings: Settings, progress: Progress | None = None) -> dict[str, Any]:
    """One simulated town without fraud: what was asked for, and what came of it.

    ``reached`` is the share of transactions whose alert score reaches the line of a nominal rate, ``alerted`` the share
    that an engine at that line alerts: an account that is odd again and again is alerted once.
    """
    stream = simulate(accounts=accounts + _STREAMED, days=_DAYS, seed=seed, fraud_share=0.0).transactions
    fitted = set(sorted({t.account for t in stream})[:accounts])
    # The divergence joins no alert, and takes most of the time.
    model = fit((t for t in stream if t.account in fitted), town_settings(replace(settings, divergence=False)))
    rows = [t for t in stream if t.account not in fitted]
    rates = []
    for place, nominal in enumerate(NOMINAL):
        line = threshold_by_budget(nominal)
        results = Engine(model, threshold=line).process_many(rows)
        scores = np.array([result.score for result in results], dtype=float)
        alerted = sum(result.alert is not None for result in results)
        rates.append({"nominal": nominal, "reached": float((scores >= line).mean()), "alerted": alerted / len(rows)})
        if progress:
            progress(place + 1, len(NOMINAL))
    return {"seed": seed, "accounts": accounts, "transactions": len(rows), "rates": rates}
