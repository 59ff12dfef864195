"""What else one could do, on the same rows: scores by transaction, higher is more suspicious."""

from __future__ import annotations

import numpy as np
import pandas as pd

from offline.fraud.data import LabelledData
from offline.peers import peer
from stream_ccsd.numerics.arrays import AnyArray, FloatArray

# Baselines that know labels, and are therefore a ceiling rather than a competitor.
SUPERVISED = ("gradient_boosting",)

# Columns of the features.
_LOG_AMOUNT, _CHANGE, _CATEGORY, _MERCHANT, _AGAINST_MEAN = range(5)
# Fewer amounts than this say nothing about a category.
_FEW = 10
# Rows that a forest scores at once: it holds them all in memory once a tree.
_BLOCK = 200_000


def transaction_baselines(
    data: LabelledData, library: AnyArray, streamed: AnyArray, val: AnyArray, seed: int, trees: bool = True
) -> pd.DataFrame:
    """Scores of all streamed rows, a column a baseline. ``library``, ``streamed`` and ``val`` are masks of rows.

    Those that are trees can be left out: over a million rows they take minutes. The supervised one is trained on VAL's
    labels; only its TEST scores mean anything.
    """
    features = transaction_features(data)
    rows = np.flatnonzero(streamed)
    scores = {name: score[rows] for name, score in _one_liners(data, features, library).items()}
    if trees:
        scores["half_space_trees"] = _half_space_trees(features[rows], seed)
        scores["isolation_forest"] = _isolation_forest(features, library, rows, seed)
    if trees and data.fraud[val].any() and not data.fraud[val].all():
        scores["gradient_boosting"] = _gradient_boosting(features, data.fraud, val, rows, seed)
    return pd.DataFrame(scores, index=rows)


def _one_liners(data: LabelledData, features: FloatArray, library: AnyArray) -> dict[str, FloatArray]:
    """What anyone would sort by; the two by category know the amounts of the rows that are fitted on."""
    log_amount, category = features[:, _LOG_AMOUNT], features[:, _CATEGORY].astype(int)
    return {
        "amount": data.frame["amount"].to_numpy(),
        "largest_change": features[:, _CHANGE],
        "amount_over_own_mean": features[:, _AGAINST_MEAN],
        "amount_in_category_z": _deviations(log_amount, category, library),
        "amount_in_category_rank": _ranks(log_amount, category, library),
    }


def _deviations(values: FloatArray, group: AnyArray, fitted: AnyArray) -> FloatArray:
    """By how many deviations each value is above the mean of its group's fitted ones; of all where there are few."""
    moments = (
        pd.Series(values[fitted]).groupby(group[fitted]).agg(["mean", "std", "count"]).reindex(range(group.max() + 1))
    )
    few = ~((moments["count"] >= _FEW) & (moments["std"] > 0)).to_numpy()
    mean = np.where(few, values[fitted].mean(), moments["mean"])
    deviation = np.where(few, values[fitted].std() or 1.0, moments["std"])
    return (values - mean[group]) / deviation[group]


def _ranks(values: FloatArray, group: AnyArray, fitted: AnyArray) -> FloatArray:
    """The share of its group's fitted values that are below each value; of all where there are few."""
    ranks = _share_below(np.sort(values[fitted]), values)
    for name in np.unique(group[fitted]):
        own = np.sort(values[fitted & (group == name)])
        if len(own) >= _FEW:
            ranks[group == name] = _share_below(own, values[group == name])
    return ranks


def _share_below(ordered: FloatArray, values: FloatArray) -> FloatArray:
    return np.searchsorted(ordered, values) / len(ordered)


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


def _half_space_trees(features: FloatArray, seed: int) -> FloatArray:
    """River's online trees, prequential over the rows in time order: each is scored, then learnt from."""
    trees = peer("river.anomaly").HalfSpaceTrees(seed=seed)
    low, high = features.min(axis=0), features.max(axis=0)
    scaled = (features - low) / np.where(high > low, high - low, 1.0)
    scores = np.empty(len(features))
    for i, row in enumerate(scaled):
        record = dict(enumerate(row.tolist()))
        scores[i] = trees.score_one(record)
        trees.learn_one(record)
    return scores


def _isolation_forest(features: FloatArray, library: AnyArray, rows: AnyArray, seed: int) -> FloatArray:
    """Fitted on the library's rows; merchants and categories by how common they are there."""
    table = features.copy()
    for column in (_CATEGORY, _MERCHANT):
        codes = table[:, column].astype(int)
        counts = np.bincount(codes[library], minlength=codes.max() + 1)
        table[:, column] = np.log1p(counts[codes])
    forest = peer("sklearn.ensemble").IsolationForest(random_state=seed).fit(table[library])
    return np.concatenate(
        [-forest.score_samples(table[part]) for part in np.array_split(rows, len(rows) // _BLOCK + 1)]
    )


def _gradient_boosting(features: FloatArray, fraud: AnyArray, val: AnyArray, rows: AnyArray, seed: int) -> FloatArray:
    boosting = peer("sklearn.ensemble").HistGradientBoostingClassifier(random_state=seed)
    return boosting.fit(features[val], fraud[val]).predict_proba(features[rows])[:, 1]
