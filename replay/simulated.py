"""The built-in stream from start to end: simulate, fit on some normal accounts, stream the rest, count the catch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from replay.simulator import PATTERNS, SimulatedStream, simulate
from stream_ccsd.alert.reasons import Alert
from stream_ccsd.engine import Engine
from stream_ccsd.fitting import fit
from stream_ccsd.library.model import Model
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import Transaction

Progress = Callable[[int, int], None]

_BATCH = 200
# Share of the normal accounts that the model is fitted on; their transactions are not streamed.
_FITTED = 0.6


@dataclass
class Tally:
    """What came of a stream, against labels that the engine never saw."""

    events: int = 0
    seconds: float = 0.0
    accounts: set[str] = field(default_factory=set)
    fraud_accounts: dict[str, str] = field(default_factory=dict)
    first_fraud: dict[str, float] = field(default_factory=dict)
    alerted: dict[str, float] = field(default_factory=dict)  # account: time of its first alert after its first fraud
    alerts: int = 0
    false_accounts: set[str] = field(default_factory=set)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        caught = [a for a in self.fraud_accounts if a in self.alerted]
        flagged = len(caught) + len(self.false_accounts)
        delays = [self.alerted[a] - self.first_fraud[a] for a in caught]
        return {
            "events": self.events,
            "events_per_s": self.events / self.seconds,
            "accounts": len(self.accounts),
            "alerts": self.alerts,
            "fraud_accounts": len(self.fraud_accounts),
            "caught_accounts": len(caught),
            "false_accounts": len(self.false_accounts),
            "precision": len(caught) / flagged if flagged else None,
            "recall": len(caught) / len(self.fraud_accounts) if self.fraud_accounts else None,
            "median_delay_days": float(np.median(delays)) if delays else None,
            "patterns": {
                pattern: {
                    "accounts": sum(p == pattern for p in self.fraud_accounts.values()),
                    "caught": sum(self.fraud_accounts[a] == pattern for a in caught),
                }
                for pattern in PATTERNS
            },
        }


def replay_simulated(
    accounts: int,
    days: int,
    seed: int,
    settings: Settings,
    on_alert: Callable[[Alert], None],
    fitting: Progress,
    streaming: Progress,
) -> dict[str, Any]:
    """Run it all; ``on_alert`` is called as alerts happen. Returns the summary."""
    stream = simulate(accounts=accounts, days=days, seed=seed)
    rng = np.random.default_rng(seed)
    normal = sorted(stream.normal_accounts())
    fitted = {normal[i] for i in rng.permutation(len(normal))[: int(_FITTED * len(normal))]}
    model = fit((t for t in stream.transactions if t.account in fitted), settings, fitting)
    events = [t for t in stream.transactions if t.account not in fitted]
    summary = _stream(model, events, stream, on_alert, streaming).to_dict()
    return {**summary, "model": model.version, "library_windows": model.facts["library_windows"]}


def _stream(
    model: Model,
    events: list[Transaction],
    stream: SimulatedStream,
    on_alert: Callable[[Alert], None],
    progress: Progress,
) -> Tally:
    engine, tally = Engine(model), Tally()
    for event in events:
        tally.accounts.add(event.account)
        if event.id in stream.fraud:
            tally.fraud_accounts.setdefault(event.account, stream.fraud[event.id])
            tally.first_fraud.setdefault(event.account, event.time)
    for start in range(0, len(events), _BATCH):
        begin = time.perf_counter()
        results = engine.process_many(events[start : start + _BATCH])
        tally.seconds += time.perf_counter() - begin
        for result in results:
            tally.events += 1
            if result.alert:
                _count_alert(tally, result.alert)
                on_alert(result.alert)
        progress(tally.events, len(events))
    return tally


def _count_alert(tally: Tally, alert: Alert) -> None:
    """An alert of a fraud account counts as a catch from its first fraud on; before that it is a false one."""
    tally.alerts += 1
    if alert.time >= tally.first_fraud.get(alert.account, np.inf):
        tally.alerted.setdefault(alert.account, alert.time)
        tally.false_accounts.discard(alert.account)
    elif alert.account not in tally.alerted:
        tally.false_accounts.add(alert.account)
