"""Is a change of the stream noticed, and do the laws follow? Towns without fraud whose prices rise one day."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from replay.simulated import town_settings
from replay.simulator import PriceShift, simulate
from stream_ccsd.engine import Engine
from stream_ccsd.fitting import fit
from stream_ccsd.lessons.adapt import HALF_LIFE, adapted, share_of
from stream_ccsd.lessons.drift import DriftEvent, Watch
from stream_ccsd.lessons.learner import listening
from stream_ccsd.lessons.rows import Rows
from stream_ccsd.library.model import Model
from stream_ccsd.numeric import FloatArray, IntArray
from stream_ccsd.progress import Progress
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import Transaction

# Days until a transaction that nobody objects to counts as normal.
DELAY = 7
# Rates of a day are the mean of so many from it on, and are back where they stay within so much of the budget.
WINDOW, WITHIN = 10, 1.5
SHIFT_DAY, FACTOR, CATEGORY = 60, 1.5, "groceries"


@dataclass(frozen=True)
class Town:
    """How large a simulated town is: accounts that are fitted on, accounts that are streamed, days, and its seed."""

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
        """Of the town as it was, one that can learn; without the divergence, which joins no alert and takes long."""
        return listening(fit(self.transactions()[0], town_settings(Settings(divergence=False))))


@dataclass(frozen=True)
class Followed:
    """A stream day by day: transactions, those that reached the threshold, and what the watch said."""

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
) -> Followed:
    """Stream transactions, with a lesson at the end of each day unless the half-life is None."""
    states: dict[str, bytes] = {}
    engine, watch = Engine(model, states), Watch(model)
    days: list[Rows] = []
    events: list[DriftEvent] = []
    for _, of_day in groupby(transactions, lambda t: int(t.time)):
        if half_life is not None and len(days) > delay:
            rows = days[len(days) - 1 - delay]
            model = adapted(model, rows.take(~rows.alerted), share_of(1.0, half_life))
            engine = Engine(model, states)
        results = engine.process_many(list(of_day))
        events += watch.see_results(results)
        days.append(Rows.of(results, model))
    reached = np.array([np.count_nonzero(rows.score >= model.threshold) for rows in days])
    return Followed(np.array([len(rows) for rows in days]), reached, events, model)


def run_drift(town: Town, half_life: float, progress: Progress | None = None) -> dict[str, Any]:
    """What is noticed in one town: as it is, with one dearer category, and with all of them dearer."""
    model = town.model()
    budget = model.settings.alert_rate

    def streamed(shift: PriceShift | None, half_life: float | None, done: int) -> Followed:
        followed = follow(model, town.transactions(shift)[1], half_life)
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
        "seed": town.seed,
        "transactions": int(as_it_is.transactions.sum()),
        "false_events": [event.to_dict() for event in as_it_is.events],
        "events": [event.to_dict() for event in category.events],
        "noticed_after": min(noticed, default=None),
        "budget": budget,
        "rates": {
            name: {
                "before": _rate(run, 0, SHIFT_DAY),
                "first": _rate(run, SHIFT_DAY, SHIFT_DAY + WINDOW),
                "last": _rate(run, town.days - 2 * WINDOW, town.days),
                "back_after": run.back_after(SHIFT_DAY, budget),
            }
            for name, run in (("fixed", fixed), ("adapting", adapting), ("adapting_unchanged", adapting_as_it_is))
        },
    }


def _rate(run: Followed, first: int, last: int) -> float:
    return float(run.reached[first:last].sum() / run.transactions[first:last].sum())
