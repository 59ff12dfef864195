"""The honest protocol: the engine runs causally over every transaction of VAL and TEST accounts and sees no label.

:func:`run_periods` splits by time, as it is deployed: learn and choose early, leave a gap, report on what comes later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from offline.fraud.baselines import SUPERVISED, account_deviation, transaction_baselines
from offline.fraud.data import PARTS, Kind, LabelledData, Part, Split, split_as
from offline.fraud.metrics import curves, judge_accounts, judged, precision_at, ranked, ranking
from stream_ccsd.alerts.alert import Alert
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import Progress
from stream_ccsd.fitting import fit
from stream_ccsd.model.model import Model
from stream_ccsd.numerics.arrays import AnyArray
from stream_ccsd.scores import score_names
from stream_ccsd.settings import Settings

# What the report draws curves of.
DRAWN = ("alert", "evidence", "takeover", "amount", "isolation_forest", "gradient_boosting")
_BATCH = 2000


def evaluated_scores() -> tuple[str, ...]:
    """The engine's own, the one alerts are made from, and an account's highest ones added up."""
    return (*score_names(), "alert", "accumulated")


@dataclass(frozen=True, eq=False)
class StreamScores:
    """The engine's scores, a row a transaction (NaN where it gave none), and the alerts it raised by row."""

    scores: pd.DataFrame
    alerts: dict[int, Alert]


def score_stream(model: Model, data: LabelledData, rows: AnyArray, progress: Progress | None = None) -> StreamScores:
    """Run the engine over some rows in time order. Only transactions are handed on: labels stay behind."""
    engine = Engine(model)
    own = score_names()
    alerts: dict[int, Alert] = {}
    answers = np.empty((len(rows), len(own) + 2))
    for start in range(0, len(rows), _BATCH):
        part = rows[start : start + _BATCH].tolist()
        results = engine.process_many([data.transactions[i] for i in part])
        answers[start : start + len(part)] = np.array(
            [[*map(result.scores.get, own), result.score, result.accumulated] for result in results], float
        )
        alerts.update((i, result.alert) for i, result in zip(part, results, strict=True) if result.alert)
        if progress:
            progress(start + len(part), len(rows))
    scores = pd.DataFrame(answers, index=rows, columns=evaluated_scores())
    return StreamScores(scores if model.settings.divergence else scores.drop(columns="divergence"), alerts)


def run_stream(
    data: LabelledData,
    seed: int,
    settings: Settings,
    baselines: bool,
    split_kind: Kind = "sets",
    trees: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """One seed: account and transaction level, all scores and baselines, operating points and delays."""
    split = split_as(split_kind, data.fraud_accounts(), seed)
    accounts_of = data.frame["account"]
    sets = {name: accounts_of.isin(getattr(split, name)).to_numpy() for name in ("library", *PARTS)}
    model = fit([data.transactions[i] for i in np.flatnonzero(sets["library"])], settings)
    streamed = sets["val"] | sets["test"]
    answered = score_stream(model, data, np.flatnonzero(streamed), progress)
    rows, scores = data.frame[streamed], answered.scores
    if baselines:
        scores = scores.join(transaction_baselines(data, sets["library"], streamed, sets["val"], seed, trees))
    # Accumulated evidence is a running sum: its maximum is the final one.
    by_account = scores.groupby(rows["account"]).max()
    if baselines:
        by_account["deviation"] = account_deviation(rows)
    parts = {part: sets[part][streamed] for part in PARTS}
    fraud = rows["fraud"].to_numpy()
    accounts = _judge_accounts(split, by_account)
    thresholds = {"f1_on_val": accounts["alert"].get("threshold"), "budget": model.threshold}
    test = parts["test"]
    return {
        "protocol": "stream",
        "seed": seed,
        "split": split_kind,
        "fields": list(settings.fields),
        "contamination": settings.contamination,
        "sigma_x": model.index.sigma_x,
        "sigma_y": model.sigma_y,
        "library_windows": model.facts["library_windows"],
        "takeover_share": model.takeover_share,
        "gains": model.facts["gains"],
        "model": model.version,
        "accounts": split.sizes,
        "fitted": {"transactions": int(sets["library"].sum()), "fraud": int(data.fraud[sets["library"]].sum())},
        "account": accounts,
        "transaction": judge_transactions(fraud, parts, scores),
        "operation": _operation(rows[test], split, answered, {n: t for n, t in thresholds.items() if t is not None}),
        **({} if data.kinds is None else {"kinds": judge_kinds(rows[test], data.kinds, scores[test], by_account)}),
        "curves": _curves(fraud, split, test, scores, by_account),
        "example": _example(rows, split, answered),
    }


def judge_kinds(
    rows: pd.DataFrame, kinds: AnyArray, scores: pd.DataFrame, by_account: pd.DataFrame
) -> dict[str, dict[str, Any]]:
    """Each kind of fraud alone. By transaction: against all that are no fraud; by account: against those without any.

    ``rows`` and ``scores`` are what is judged, ``kinds`` are of all transactions.
    """
    kind, fraud, account = kinds[rows.index], rows["fraud"].to_numpy(), rows["account"].to_numpy()
    own = by_account.loc[np.unique(account)]
    without_fraud = ~own.index.isin(account[fraud])
    judgements = {}
    for name in sorted(set(kind[fraud])):
        its = fraud & (kind == name)
        suffered = own.index.isin(account[its])
        judgements[name or "unnamed"] = {
            "transactions": int(its.sum()),
            "accounts": int(suffered.sum()),
            "transaction": ranked(scores.drop(columns="accumulated"), its, ~fraud),
            "account": ranked(own, suffered, without_fraud),
        }
    return judgements


def _judge_accounts(split: Split, by_account: pd.DataFrame) -> dict[str, Any]:
    judgements: dict[str, Any] = {"baselines": {}}
    for name, scores in by_account.items():
        judgement = judge_accounts(split, scores)
        test = split.labelled("test", scores)
        judgement["test"] |= {f"precision_at_{n}": precision_at(*test, n) for n in (50, 100)}
        place(judgements, name, judgement)
    return judgements


def judge_transactions(fraud: AnyArray, parts: dict[Part, AnyArray], scores: pd.DataFrame) -> dict[str, Any]:
    """Every score and baseline, by transaction."""
    judgements: dict[str, Any] = {"baselines": {}}
    for name, column in scores.items():
        values = column.to_numpy()
        val, test = ((fraud[parts[part]], values[parts[part]]) for part in PARTS)
        judgement = judged(val, test)
        scored = ~np.isnan(test[1])
        if scored.any() and not scored.all():  # a score that waits for a window: also how it ranks where it speaks
            judgement["test_scored"] = {"share": float(scored.mean()), **ranking(test[0][scored], test[1][scored])}
        place(judgements, name, judgement)
    return judgements


def place(judgements: dict[str, Any], name: str, judgement: dict[str, Any]) -> None:
    """A score's judgement among the engine's own, or among the baselines."""
    if name in evaluated_scores():
        judgements[name] = judgement
        return
    if name in SUPERVISED:  # VAL is what it learnt from
        judgement = {"supervised": True, "test": {k: judgement["test"][k] for k in ("auc", "ap")}}
    judgements["baselines"][name] = judgement


def _operation(
    test: pd.DataFrame, split: Split, answered: StreamScores, thresholds: dict[str, float]
) -> dict[str, Any]:
    """What an investigator would see on TEST: alerts by the budget, and delays at both thresholds."""
    raised = test[test.index.isin(list(answered.alerts))]
    fraud_accounts = test[test["account"].isin(split.test_fraud)]
    scores = answered.scores.loc[fraud_accounts.index, "alert"]
    return {
        "alerts": len(raised),
        "alerts_per_1000_transactions": 1000 * len(raised) / len(test),
        "alerts_on_fraud_accounts": int(raised["account"].isin(split.test_fraud).sum()),
        "thresholds": {
            name: {"threshold": t, **_delays(fraud_accounts, scores >= t)} for name, t in thresholds.items()
        },
    }


def _delays(rows: pd.DataFrame, over: pd.Series) -> dict[str, Any]:
    """From an account's first fraud to its first score over the threshold from then on."""
    accounts = rows.groupby("account")
    places = rows.assign(number=accounts.cumcount())
    since_fraud = accounts["fraud"].cummax()
    first = places[rows["fraud"]].groupby("account")[["number", "time"]].first()
    hit = places[since_fraud & over].groupby("account")[["number", "time"]].first()
    delay = (hit - first).dropna()
    if delay.empty:
        median_number = median_time = immediate = None
    else:
        median_number, median_time = (float(delay[name].median()) for name in ("number", "time"))
        immediate = float((delay["number"] == 0).mean())
    return {
        "detected_share": len(delay) / len(first),
        "median_delay_transactions": median_number,
        "median_delay_time": median_time,
        "immediate_share": immediate,
    }


def _curves(
    fraud: AnyArray, split: Split, test: AnyArray, scores: pd.DataFrame, by_account: pd.DataFrame
) -> dict[str, Any]:
    names = [name for name in DRAWN if name in scores]
    rows, labels = scores[test], fraud[test]
    alert = rows["alert"].to_numpy()
    edges = np.linspace(0.0, float(np.nanquantile(alert, 0.9999)), 41)
    return {
        "account": {n: curves(*split.labelled("test", by_account[n])) for n in names if split.test_normal},
        "transaction": {n: curves(labels, rows[n].to_numpy()) for n in names},
        "distribution": {
            "edges": edges.tolist(),
            "normal": np.histogram(np.clip(alert[~labels], 0, edges[-1]), edges)[0].tolist(),
            "fraud": np.histogram(np.clip(alert[labels], 0, edges[-1]), edges)[0].tolist(),
        },
    }


def _example(rows: pd.DataFrame, split: Split, answered: StreamScores) -> dict[str, Any] | None:
    """The most striking alert of a TEST account with a history: its timeline, and the densities behind the alert."""
    candidates = {
        i: alert
        for i, alert in answered.alerts.items()
        if alert.account in split.test_fraud and alert.densities.change and rows.at[i, "fraud"]
    }
    if not candidates:
        return None
    row = max(candidates, key=lambda i: candidates[i].score)
    own = rows[rows["account"] == candidates[row].account]
    scores = answered.scores.loc[own.index]
    return {
        "alert": candidates[row].to_dict(),
        "time": own["time"].tolist(),
        "amount": own["amount"].tolist(),
        "fraud": own["fraud"].tolist(),
        "score": scores["alert"].tolist(),
        "divergence": [None if np.isnan(v) else v for v in scores["divergence"].tolist()],
        "position": int(own.index.get_loc(row)),
    }


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
