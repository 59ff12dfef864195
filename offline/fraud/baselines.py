"""What else one could do, on the same rows: scores by transaction, higher is more suspicious."""

from __future__ import annotations

import numpy as np
import pandas as pd

from offline.bench.peers import peer
from offline.fraud.data import LabelledData
from stream_ccsd.numeric import AnyArray, FloatArray

# Baselines that know labels, and are therefore a ceiling rather than a rival.
SUPERVISED = ("gradient_boosting",)


def transaction_baselines(
    data: LabelledData, library: AnyArray, streamed: AnyArray, val: AnyArray, seed: int
) -> pd.DataFrame:
    """Scores of all streamed rows, a column a baseline. ``library``, ``streamed`` and ``val`` are masks of rows.

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
    return pd.DataFrame(scores)[streamed]


def account_deviation(rows: pd.DataFrame) -> pd.Series:
    """Standard deviation of each account's amounts in these rows of the data."""
    return rows.groupby("account")["amount"].agg(lambda amounts: np.std(amounts.to_numpy()))


def transaction_features(data: LabelledData) -> FloatArray:
    """Log amount, absolute change, category, merchant, amount against the account's running mean; all causal."""
    rows = data.frame
    accounts = rows["account"]
    amount = rows["amount"].groupby(accounts)
    # numpy's running sum: pandas' own carries a correction along, and would not give the digits of a plain total.
    total = amount.transform(lambda own: np.cumsum(own.to_numpy())).groupby(accounts).shift()
    mean = (total / amount.cumcount()).fillna(rows["amount"])
    return np.column_stack(
        [
            np.log1p(rows["amount"]),
            (rows["amount"] - amount.shift().fillna(rows["amount"])).abs(),
            *(pd.factorize(rows[name], sort=True)[0] for name in ("category", "merchant")),
            np.log1p(rows["amount"]) - np.log1p(mean),
        ]
    )


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
