"""What learns from the same late verdicts on raw features: boosting that is fitted anew, and river's forest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from offline.fraud.days import WEEK, Days
from offline.fraud.investigators import Investigators
from offline.fraud.raw_features import WINDOWS, DelayedRates
from offline.peers import peer
from stream_ccsd.numerics.arrays import AnyArray, FloatArray

# As scikit-learn has it by default, but for stopping early: that would hold back a tenth of the few frauds.
BOOSTING: dict[str, Any] = {"max_iter": 100, "learning_rate": 0.1, "early_stopping": False}


@dataclass(eq=False)
class RawScorer:
    """Keeps raw features up to date with what investigators tell, day by day."""

    days: Days
    desk: Investigators
    raw: FloatArray
    """Features without labels, a row a transaction."""
    seed: int = 0
    normals: ClassVar[int] = 1
    """Of what is known to be normal it learns one in so many."""

    def __post_init__(self) -> None:
        self.rates = DelayedRates(int(self.days.merchant.max()) + 1)
        late = np.zeros((len(self.raw), 2 * len(WINDOWS)), np.float32)
        self.features = np.concatenate([self.raw, late], axis=1)
        self.known = np.zeros(len(self.raw), bool)
        self._day = -1

    def watch(self, day: int, rows: slice) -> None:
        """Make features, and take in labels, from the beginning."""
        self._begin(day)
        self.features[rows, self.raw.shape[1] :] = self.rates.features(self.days.merchant[rows])

    def score(self, day: int, rows: slice) -> FloatArray:
        """By what was known when the day began."""
        self.watch(day, rows)
        return self.predict(day, self.features[rows])

    def worth(self, rows: slice) -> FloatArray | None:
        """It does not say."""
        return None

    def _begin(self, day: int) -> None:
        if day > self._day:
            self._day = day
            news = self.desk.news(self.days.starts(day))
            self.rates.advance(day, self.days.merchant[news], self.desk.told[news])
            self.known[news] = True
            self.hear(self.features[news], self.desk.told[news])

    def hear(self, features: FloatArray, fraud: AnyArray) -> None:
        """These became known, in this order."""

    def predict(self, day: int, features: FloatArray) -> FloatArray:
        """Scores."""
        raise NotImplementedError


@dataclass(eq=False)
class Boosting(RawScorer):
    """Gradient boosting, fitted anew each week on all that is known by then; each normal one counts for so many."""

    normals = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._model: Any = None
        self._fitted = -WEEK
        self._draw = np.random.default_rng(self.seed).random(len(self.raw))

    def predict(self, day: int, features: FloatArray) -> FloatArray:
        """Of fraud, by the newest fit; NaN while there is nothing to fit."""
        if day >= self._fitted + WEEK:
            self._fit(day)
        if self._model is None:
            return np.full(len(features), np.nan)
        with _one_thread():
            return self._model.predict_proba(features)[:, 1]

    def _fit(self, day: int) -> None:
        known = np.flatnonzero(self.known)
        fraud = self.desk.told[known]
        if not fraud.any() or fraud.all():
            return
        kept = fraud | (self._draw[known] * self.normals < 1.0)
        weight = np.where(fraud[kept], 1.0, self.normals)
        boosting = peer("sklearn.ensemble").HistGradientBoostingClassifier(random_state=self.seed, **BOOSTING)
        with _one_thread():
            self._model = boosting.fit(self.features[known[kept]], fraud[kept], sample_weight=weight)
        self._fitted = day


def _one_thread() -> Any:
    """Threads that wait for each other on cores that others use as well take longer than one alone."""
    return peer("threadpoolctl").threadpool_limits(1)


@dataclass(eq=False)
class Forest(RawScorer):
    """River's adaptive random forest, one transaction after the other: a millisecond to learn, a tenth to score."""

    normals = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        self._forest = peer("river.forest").ARFClassifier(seed=self.seed)
        self._normals = 0

    def hear(self, features: FloatArray, fraud: AnyArray) -> None:
        """Learn all frauds, and one in so many normal ones."""
        for row, said in zip(np.nan_to_num(features), fraud.tolist(), strict=True):
            self._normals += not said
            if said or self._normals % self.normals == 0:
                self._forest.learn_one(dict(enumerate(row.tolist())), said)

    def predict(self, day: int, features: FloatArray) -> FloatArray:
        """Of fraud, as its trees vote."""
        votes = self._forest.predict_proba_one
        return np.array([votes(dict(enumerate(row))).get(True, 0.0) for row in np.nan_to_num(features).tolist()])
