"""What else one could do, on the same rows: scores by transaction, higher is more suspicious."""

from __future__ import annotations

import numpy as np

from offline.bench.peers import peer
from offline.fraud.data import LabelledData
from stream_ccsd.numeric import AnyArray, FloatArray

# Baselines that know labels, and are therefore a ceiling rather than a rival.
SUPERVISED = ("gradient_boosting",)


def transaction_baselines(
    data: LabelledData, library: AnyArray, streamed: AnyArray, val: AnyArray, seed: int
) -> dict[str, FloatArray]:
    """Scores of all streamed rows (NaN elsewhere). ``library``, ``streamed`` and ``val`` are masks of rows.

    The supervised one is trained on VAL's labels; only its TEST scores mean anything.
    """
    features = transaction_features(data)
    amount, change = features[:, 0], features[:, 1]
    scores = {
        "amount": np.expm1(amount),
        "largest_change": change,
        "half_space_trees": _half_space_trees(features, streamed, seed),
        "isolation_forest": _isolation_forest(features, library, seed),
        **({"gradient_boosting": _gradient_boosting(features, data.fraud, val, seed)} if val.any() else {}),
    }
    return {name: np.where(streamed, values, np.nan) for name, values in scores.items()}


def account_deviation(data: LabelledData, rows: dict[str, list[int]]) -> dict[str, float]:
    """Standard deviation of each account's amounts."""
    return {a: float(np.std([data.transactions[i].amount for i in r])) for a, r in rows.items()}


def transaction_features(data: LabelledData) -> FloatArray:
    """Log amount, absolute change, category, merchant, amount against the account's running mean; all causal."""
    categories = {c: i for i, c in enumerate(sorted({t.category for t in data.transactions}))}
    merchants = {m: i for i, m in enumerate(sorted({t.merchant for t in data.transactions}))}
    last: dict[str, tuple[float, float, int]] = {}
    table = np.empty((len(data.transactions), 5))
    for i, t in enumerate(data.transactions):
        previous, total, count = last.get(t.account, (t.amount, 0.0, 0))
        mean = total / count if count else t.amount
        table[i] = (
            np.log1p(t.amount),
            abs(t.amount - previous),
            categories[t.category],
            merchants[t.merchant],
            np.log1p(t.amount) - np.log1p(mean),
        )
        last[t.account] = (t.amount, total + t.amount, count + 1)
    return table


def _half_space_trees(features: FloatArray, streamed: AnyArray, seed: int) -> FloatArray:
    """River's online trees, prequential over the streamed rows in time order: each is scored, then learnt from."""
    trees = peer("river.anomaly").HalfSpaceTrees(seed=seed)
    rows = np.flatnonzero(streamed)
    low, high = features[rows].min(axis=0), features[rows].max(axis=0)
    scaled = (features - low) / np.where(high > low, high - low, 1.0)
    scores = np.full(len(features), np.nan)
    for i in rows:
        record = dict(enumerate(scaled[i].tolist()))
        scores[i] = trees.score_one(record)
        trees.learn_one(record)
    return scores


def _isolation_forest(features: FloatArray, library: AnyArray, seed: int) -> FloatArray:
    """Fitted on the library's rows, which are all normal; merchants and categories by how common they are there."""
    table = features.copy()
    for column in (2, 3):
        codes = table[:, column].astype(int)
        counts = np.bincount(codes[library], minlength=codes.max() + 1)
        table[:, column] = np.log1p(counts[codes])
    forest = peer("sklearn.ensemble").IsolationForest(random_state=seed).fit(table[library])
    return -forest.score_samples(table)


def _gradient_boosting(features: FloatArray, fraud: AnyArray, val: AnyArray, seed: int) -> FloatArray:
    boosting = peer("sklearn.ensemble").HistGradientBoostingClassifier(random_state=seed)
    return boosting.fit(features[val], fraud[val]).predict_proba(features)[:, 1]
