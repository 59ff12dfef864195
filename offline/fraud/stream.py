"""The honest protocol: the engine runs causally over every transaction of VAL and TEST accounts and sees no label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from offline.fraud.baselines import SUPERVISED, account_deviation, transaction_baselines
from offline.fraud.data import LabelledData
from offline.fraud.metrics import curves, judged, precision_at, ranking
from offline.fraud.split import Split, split_accounts
from stream_ccsd.alert.reasons import Alert
from stream_ccsd.engine import Engine
from stream_ccsd.fitting import fit
from stream_ccsd.library.model import Model
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.progress import Progress
from stream_ccsd.settings import Settings

SCORES = ("outcome", "habit", "divergence", "alert", "accumulated")
_BATCH = 2000


@dataclass(frozen=True, eq=False)
class Scored:
    """The engine's scores by transaction (NaN where it gave none), and the alerts it raised by row."""

    scores: dict[str, FloatArray]
    alerts: dict[int, Alert]


def score_stream(model: Model, data: LabelledData, rows: AnyArray, progress: Progress | None = None) -> Scored:
    """Run the engine over some rows in time order. Only transactions are handed on: labels stay behind."""
    engine = Engine(model)
    scores = {name: np.full(len(data.transactions), np.nan) for name in SCORES}
    alerts = {}
    for start in range(0, len(rows), _BATCH):
        part = rows[start : start + _BATCH].tolist()
        for i, result in zip(part, engine.process_many([data.transactions[i] for i in part]), strict=True):
            for name in SCORES:
                value = result.score if name == "alert" else getattr(result, name)
                scores[name][i] = np.nan if value is None else value
            if result.alert:
                alerts[i] = result.alert
        if progress:
            progress(start + len(part), len(rows))
    return Scored(scores, alerts)


def run_stream(
    data: LabelledData, seed: int, settings: Settings, baselines: bool, progress: Progress | None = None
) -> dict[str, Any]:
    """One seed: account and transaction level, all scores and baselines, operating points and delays."""
    split = split_accounts(data.fraud_accounts(), seed)
    sets = {name: _mask(data, getattr(split, name)) for name in ("library", "val", "test")}
    library = np.flatnonzero(sets["library"])
    model = fit([data.transactions[i] for i in library], settings)
    streamed = sets["val"] | sets["test"]
    scored = score_stream(model, data, np.flatnonzero(streamed), progress)
    by_transaction = dict(scored.scores)
    if baselines:
        by_transaction |= transaction_baselines(data, sets["library"], streamed, sets["val"], seed)
    by_account = _account_level(data, split, by_transaction, baselines)
    result: dict[str, Any] = {
        "protocol": "stream",
        "seed": seed,
        "sigma_x": model.index.sigma_x,
        "sigma_y": model.sigma_y,
        "library_windows": model.facts["library_windows"],
        "habit_strength": model.habit_strength,
        "model": model.version,
        "accounts": {name: len(getattr(split, name)) for name in Split.__dataclass_fields__},
        "account": _judge_accounts(split, by_account),
        "transaction": _judge_transactions(data, sets, by_transaction),
    }
    result["operation"] = _operation(data, split, sets["test"], scored, result)
    result["curves"] = _curves(data, split, sets["test"], by_transaction, by_account)
    result["example"] = _example(data, split, scored)
    return result


def _mask(data: LabelledData, accounts: frozenset[str]) -> AnyArray:
    return np.array([t.account in accounts for t in data.transactions])


def _account_level(
    data: LabelledData, split: Split, by_transaction: dict[str, FloatArray], baselines: bool
) -> dict[str, dict[str, float]]:
    """Each account's maximum of every score (accumulated evidence is a running sum: its maximum is the final one)."""
    rows = {a: r for a, r in data.rows_by_account().items() if a in split.val or a in split.test}
    levels: dict[str, dict[str, float]] = {}
    for name, values in by_transaction.items():
        levels[name] = {}
        for account, positions in rows.items():
            own = values[positions]
            known = own[~np.isnan(own)]
            levels[name][account] = float(known.max()) if len(known) else np.nan
    if baselines:
        levels["deviation"] = account_deviation(data, rows)
    return levels


def _labelled(split: Split, part: str, level: dict[str, float]) -> tuple[AnyArray, FloatArray]:
    accounts = sorted(getattr(split, part))
    fraud = getattr(split, f"{part}_fraud")
    return np.array([a in fraud for a in accounts]), np.array([level[a] for a in accounts])


def _judge_accounts(split: Split, levels: dict[str, dict[str, float]]) -> dict[str, Any]:
    judgements: dict[str, Any] = {"baselines": {}}
    for name, level in levels.items():
        judgement = judged(_labelled(split, "val", level), _labelled(split, "test", level))
        test = _labelled(split, "test", level)
        judgement["test"] |= {f"precision_at_{n}": precision_at(*test, n) for n in (50, 100)}
        _place(judgements, name, judgement)
    return judgements


def _judge_transactions(
    data: LabelledData, sets: dict[str, AnyArray], by_transaction: dict[str, FloatArray]
) -> dict[str, Any]:
    judgements: dict[str, Any] = {"baselines": {}}
    for name, values in by_transaction.items():
        val, test = ((data.fraud[sets[part]], values[sets[part]]) for part in ("val", "test"))
        judgement = judged(val, test)
        scored = ~np.isnan(test[1])
        if not scored.all():  # a score that waits for a window: also how it ranks where it speaks
            judgement["test_scored"] = {"share": float(scored.mean()), **ranking(test[0][scored], test[1][scored])}
        _place(judgements, name, judgement)
    return judgements


def _place(judgements: dict[str, Any], name: str, judgement: dict[str, Any]) -> None:
    if name in SCORES:
        judgements[name] = judgement
        return
    if name in SUPERVISED:  # VAL is what it learnt from
        judgement = {"supervised": True, "test": {k: judgement["test"][k] for k in ("auc", "ap")}}
    judgements["baselines"][name] = judgement


def _operation(
    data: LabelledData, split: Split, test: AnyArray, scored: Scored, result: dict[str, Any]
) -> dict[str, Any]:
    """What an investigator would see on TEST: alerts by the budget, and delays at both thresholds."""
    rows = data.rows_by_account()
    raised = [i for i in scored.alerts if test[i]]
    thresholds = {
        "f1_on_val": result["account"]["alert"]["threshold"],
        "budget": next(iter(scored.alerts.values())).threshold,
    }
    return {
        "alerts": len(raised),
        "alerts_per_1000_transactions": 1000 * len(raised) / int(test.sum()),
        "alerts_on_fraud_accounts": sum(data.transactions[i].account in split.test_fraud for i in raised),
        "thresholds": {
            name: {"threshold": t, **_delays(data, split, rows, scored.scores["alert"], t)}
            for name, t in thresholds.items()
        },
    }


def _delays(
    data: LabelledData, split: Split, rows: dict[str, list[int]], scores: FloatArray, threshold: float
) -> dict[str, Any]:
    """From an account's first fraud to its first score over the threshold from then on."""
    transactions, times = [], []
    for account in split.test_fraud:
        own = rows[account]
        first = next(k for k, i in enumerate(own) if data.fraud[i])
        hit = next((k for k in range(first, len(own)) if scores[own[k]] >= threshold), None)
        if hit is not None:
            transactions.append(hit - first)
            times.append(data.transactions[own[hit]].time - data.transactions[own[first]].time)
    return {
        "detected_share": len(times) / len(split.test_fraud),
        "median_delay_transactions": float(np.median(transactions)) if times else None,
        "median_delay_time": float(np.median(times)) if times else None,
        "immediate_share": float(np.mean(np.array(transactions) == 0)) if times else None,
    }


def _curves(
    data: LabelledData,
    split: Split,
    test: AnyArray,
    by_transaction: dict[str, FloatArray],
    by_account: dict[str, dict[str, float]],
) -> dict[str, Any]:
    names = [
        n
        for n in ("alert", "outcome", "divergence", "amount", "isolation_forest", "gradient_boosting")
        if n in by_account
    ]
    fraud = data.fraud[test]
    alert = by_transaction["alert"][test]
    edges = np.linspace(0.0, float(np.nanquantile(alert, 0.9999)), 41)
    return {
        "account": {n: curves(*_labelled(split, "test", by_account[n])) for n in names},
        "transaction": {n: curves(fraud, by_transaction[n][test]) for n in names},
        "distribution": {
            "edges": edges.tolist(),
            "normal": np.histogram(np.clip(alert[~fraud], 0, edges[-1]), edges)[0].tolist(),
            "fraud": np.histogram(np.clip(alert[fraud], 0, edges[-1]), edges)[0].tolist(),
        },
    }


def _example(data: LabelledData, split: Split, scored: Scored) -> dict[str, Any] | None:
    """The most striking alert of a TEST account with a history: its timeline, and the densities behind the alert."""
    candidates = {
        i: alert
        for i, alert in scored.alerts.items()
        if alert.account in split.test_fraud and alert.densities.change and data.fraud[i]
    }
    if not candidates:
        return None
    row = max(candidates, key=lambda i: candidates[i].score)
    rows = data.rows_by_account()[candidates[row].account]
    return {
        "alert": candidates[row].to_dict(),
        "time": [data.transactions[i].time for i in rows],
        "amount": [data.transactions[i].amount for i in rows],
        "fraud": data.fraud[rows].tolist(),
        "score": scored.scores["alert"][rows].tolist(),
        "divergence": [None if np.isnan(v) else float(v) for v in scored.scores["divergence"][rows]],
        "position": rows.index(row),
    }
