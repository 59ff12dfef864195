"""Evaluations on simulated populations: drift, alert rates, and the simulator's patterns of fraud one by one.

Drift asks whether a rise of prices is noticed in a population without fraud, and whether densities follow it. Rates
asks how often accounts alert that are as normal as those that the model was fitted on. Patterns asks whether the
account's own density adds anything, and to whom.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from offline.fraud.baselines import account_deviation, transaction_baselines
from offline.fraud.data import LabelledData
from offline.fraud.metrics import ranked
from offline.fraud.stream import score_stream
from replay.run.fitting import population_settings
from replay.sources.simulator.population import PATTERNS, PriceShift, simulate
from stream_ccsd.alerts.policy import threshold_by_budget
from stream_ccsd.drift.monitor import DriftEvent, DriftMonitor
from stream_ccsd.engine import Engine
from stream_ccsd.files import Progress
from stream_ccsd.fitting import fit
from stream_ccsd.learning.adaptation import HALF_LIFE, adapted, share_of
from stream_ccsd.learning.features import Features
from stream_ccsd.learning.learner import listening
from stream_ccsd.model.model import Model
from stream_ccsd.numerics.arrays import FloatArray, IntArray, shuffled
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import Transaction

# Days until a transaction that nobody objects to counts as normal.
DELAY = 7
# Rates of a day are the mean of so many from it on, and are back where they stay within so much of the budget.
WINDOW, WITHIN = 10, 1.5
SHIFT_DAY, FACTOR, CATEGORY = 60, 1.5, "groceries"


@dataclass(frozen=True)
class ShiftedPopulation:
    """The size of a simulated population: accounts that are fitted on, accounts streamed, days; and its seed."""

    fitted: int = 100
    streamed: int = 400
    days: int = 120
    seed: int = 0

    def transactions(self, shift: PriceShift | None = None) -> tuple[list[Transaction], list[Transaction]]:
        """Of the accounts that are fitted on, and of the others."""
        accounts = self.fitted + self.streamed
        stream = simulate(accounts, self.days, fraud_share=0.0, seed=self.seed, price_shift=shift).transactions
        fitted = set(sorted({t.account for t in stream})[: self.fitted])
        return [t for t in stream if t.account in fitted], [t for t in stream if t.account not in fitted]

    def model(self) -> Model:
        """Of the population as it was, one that can learn. No divergence: it joins no alert and takes long."""
        return listening(fit(self.transactions()[0], population_settings(Settings(divergence=False))))


@dataclass(frozen=True)
class FollowedShift:
    """A stream day by day: transactions, those that reached the threshold, and what the drift monitor found."""

    transactions: IntArray
    reached: IntArray
    events: list[DriftEvent]
    model: Model

    def rates(self) -> FloatArray:
        """Share of transactions that reached the threshold, over ten days from each on."""
        width = np.ones(min(WINDOW, len(self.reached)))
        rate: FloatArray = np.convolve(self.reached, width, "valid") / np.convolve(self.transactions, width, "valid")
        return rate

    def back_after(self, day: int, budget: float) -> int | None:
        """Days after this one from which on the rate stays within reach of the budget; None: never."""
        beyond = np.flatnonzero(self.rates()[day:] > WITHIN * budget)
        after = int(beyond[-1]) + 1 if len(beyond) else 0
        return after if after < len(self.rates()) - day else None


def follow(
    model: Model, transactions: Iterable[Transaction], half_life: float | None = HALF_LIFE, delay: int = DELAY
) -> FollowedShift:
    """Stream transactions, with a model update at the end of each day unless the half-life is None."""
    states: dict[str, bytes] = {}
    engine, watch = Engine(model, states), DriftMonitor(model)
    days: list[Features] = []
    events: list[DriftEvent] = []
    for _, of_day in groupby(transactions, lambda t: int(t.time)):
        if half_life is not None and len(days) > delay:
            rows = days[len(days) - 1 - delay]
            model = adapted(model, rows.take(~rows.alerted), share_of(1.0, half_life))
            engine = Engine(model, states)
        results = engine.process_many(list(of_day))
        events += watch.see_results(results)
        days.append(Features.of(results, model))
    reached = np.array([np.count_nonzero(rows.score >= model.threshold) for rows in days])
    return FollowedShift(np.array([len(rows) for rows in days]), reached, events, model)


def run_drift(population: ShiftedPopulation, half_life: float, progress: Progress | None = None) -> dict[str, Any]:
    """What is noticed in one population: as it is, with one dearer category, and with all of them dearer."""
    model = population.model()
    budget = model.settings.alert_rate

    def streamed(shift: PriceShift | None, half_life: float | None, done: int) -> FollowedShift:
        followed = follow(model, population.transactions(shift)[1], half_life)
        if progress:
            progress(done, 5)
        return followed

    everything = PriceShift(SHIFT_DAY, FACTOR)
    as_it_is = streamed(None, None, 1)
    category = streamed(everything._replace(category=CATEGORY), None, 2)
    fixed, adapting = streamed(everything, None, 3), streamed(everything, half_life, 4)
    adapting_as_it_is = streamed(None, half_life, 5)
    noticed = [e.time - SHIFT_DAY for e in category.events if e.value == CATEGORY and e.time >= SHIFT_DAY]
    return {
        "seed": population.seed,
        "transactions": int(as_it_is.transactions.sum()),
        "false_events": [event.to_dict() for event in as_it_is.events],
        "events": [event.to_dict() for event in category.events],
        "noticed_after": min(noticed, default=None),
        "budget": budget,
        "rates": {
            name: {
                "before": _rate(run, 0, SHIFT_DAY),
                "first": _rate(run, SHIFT_DAY, SHIFT_DAY + WINDOW),
                "last": _rate(run, population.days - 2 * WINDOW, population.days),
                "back_after": run.back_after(SHIFT_DAY, budget),
            }
            for name, run in (("fixed", fixed), ("adapting", adapting), ("adapting_unchanged", adapting_as_it_is))
        },
    }


def _rate(run: FollowedShift, first: int, last: int) -> float:
    return float(run.reached[first:last].sum() / run.transactions[first:last].sum())


NOMINAL = (1e-3, 1e-4)
# Normal accounts that are streamed, for so many days.
_STREAMED, _DAYS = 400, 120


def run_rates(accounts: int, seed: int, settings: Settings, progress: Progress | None = None) -> dict[str, Any]:
    """One simulated population without fraud: what was asked for, and what came of it.

    ``reached`` is the share of transactions whose alert score reaches the line of a nominal rate, ``alerted`` the share
    that an engine at that line alerts: an account that is odd again and again is alerted once.
    """
    stream = simulate(accounts=accounts + _STREAMED, days=_DAYS, seed=seed, fraud_share=0.0).transactions
    fitted = set(sorted({t.account for t in stream})[:accounts])
    # The divergence joins no alert, and takes most of the time.
    model = fit((t for t in stream if t.account in fitted), population_settings(replace(settings, divergence=False)))
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


# Share of the normal accounts that the model is fitted on; the others are streamed with the fraud accounts.
_FITTED = 0.5


def run_patterns(
    accounts: int, days: int, seed: int, settings: Settings, progress: Progress | None = None
) -> dict[str, Any]:
    """One simulated stream: every score and baseline against each pattern alone.

    Whether countries, devices and hours are looked at is said by the settings:
    see ``replay.run.fitting.population_settings``.

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
