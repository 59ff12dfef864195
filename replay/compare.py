"""Champion and challenger, from what each recorded of the same stream: alerts gained and lost, and what verdicts say.

Figures by transaction count alerts; by account, as everywhere, an account is caught by an alert from its first fraud
on, and falsely alerted by others only. Differences are resampled by account: transactions of one are no independent
witnesses.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
from scipy.stats import binomtest

from stream_ccsd.calendar import Calendar
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, IntArray
from stream_ccsd.stores import Record, RecordStore
from stream_ccsd.verdict import ANY_TIME, Reached, Verdict, by_transaction

Label = Literal["fraud", "normal"]
Standings = Callable[[str, str], Label | None]
"""What counts of the verdicts on an account's transaction; None where there is none that counts."""
Key = tuple[str, str, float]

RECALL_NOTE = (
    "Recall is counted among what was judged: a fraud that no alert, no chargeback and no label has brought to light "
    "is in none of these figures."
)
_COLUMNS = ("account", "id", "time", "score", "alert")
_SHOWN = (
    *(
        "position",
        "id",
        "account",
        "transaction",
        "time",
        "when",
        "amount",
        "category",
        "merchant",
        "score",
        "expected_loss",
    ),
    *("raised_by", "reason", "headline"),
)
_Z = 1.959963984540054  # of a 95 % interval
_DRAWS, _CHUNK = 2000, 50
_JUDGED: dict[Label | None, int] = {"fraud": 1, "normal": 0, None: -1}


class ScoredStore(RecordStore, Protocol):
    """A record store that gives all of its scores."""

    def score_batches(self) -> Iterator[pa.RecordBatch]:
        """In the order of the stream."""


def recorded_labels(records: ScoredStore) -> Standings | None:
    """Labels of the source as verdicts: everything that none speaks against is normal; None where there is no label."""
    frauds = {
        (account, transaction)
        for batch in records.score_batches()
        for account, transaction, label in zip(*_lists(batch, ("account", "id", "label")), strict=True)
        if label is not None
    }
    return (lambda account, transaction: "fraud" if (account, transaction) in frauds else "normal") if frauds else None


def effective_verdicts_of(verdicts: Iterable[Verdict], reached: Reached = ANY_TIME) -> Standings:
    """Effective verdicts, from verdicts in the order of their arrival; a dispute is no verdict until it is settled."""
    stands = {key: reached.standing(own) for key, own in by_transaction(verdicts).items()}
    found = {key: None if effective is None else effective.label for key, effective in stands.items()}
    return lambda account, transaction: found.get((account, transaction))


@dataclass(frozen=True, eq=False)
class Pairs:
    """Transactions that both have scored, in the champion's order, as columns; accounts are numbers."""

    keys: list[Key]
    account: IntArray
    time: FloatArray
    scores: tuple[FloatArray, FloatArray]  # of champion and challenger, as everything that there are two of
    alerts: tuple[AnyArray, AnyArray]
    judged: IntArray  # 1 fraud, 0 normal, -1 nobody said
    unpaired: tuple[int, int]  # transactions that only one has scored

    @classmethod
    def of(cls, champion: ScoredStore, challenger: ScoredStore, standings: Standings | None) -> Pairs:
        """Match by account, id and time: positions may differ where one refused what the other did not."""
        theirs: dict[Key, tuple[float, bool]] = {}
        for *key, score, alert in _rows(challenger):
            theirs[tuple(key)] = score, alert
        challengers, keys, own, other = len(theirs), list[Key](), [], []
        champions = 0
        for account, transaction, time, score, alert in _rows(champion):
            champions += 1
            match = theirs.pop((account, transaction, time), None)
            if match is not None:
                keys.append((account, transaction, time))
                own.append((score, alert))
                other.append(match)
        numbers: dict[str, int] = {}
        account = np.array([numbers.setdefault(key[0], len(numbers)) for key in keys], np.int64)
        judged = [-1 if standings is None else _JUDGED[standings(key[0], key[1])] for key in keys]
        scores, alerts = zip(*(_columns(rows) for rows in (own, other)), strict=True)
        return cls(
            keys,
            account,
            np.array([key[2] for key in keys], float),
            (scores[0], scores[1]),
            (alerts[0], alerts[1]),
            np.array(judged, np.int64),
            (champions - len(keys), challengers - len(keys)),
        )

    @property
    def accounts(self) -> int:
        """How many there are."""
        return int(self.account.max()) + 1 if len(self.account) else 0


def compare(
    champion: ScoredStore,
    challenger: ScoredStore,
    standings: Standings | None = None,
    *,
    limit: int = 10,
    width: float | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """What would change if the challenger took the champion's place.

    Parameters
    ----------
    standings
        What was found of transactions; without it, alerts are compared and nothing is said of who is right.
    limit
        So many of the highest alerts that are gained, and of those that are lost, are listed.
    width
        Count also by time, in periods of this length.
    seed
        Of the resampling behind intervals of differences.

    Raises
    ------
    StreamCcsdError
        If the two have no transaction in common.
    """
    with champion.at_one_moment(), challenger.at_one_moment():
        pairs = Pairs.of(champion, challenger, standings)
        if not pairs.keys:
            raise StreamCcsdError(
                "the two have no transaction in common: compare replays of one stream, the second made by "
                "'stream-ccsd replay --challenger'"
            )
        old, new = pairs.alerts
        result = {
            "transactions": len(pairs.keys),
            "accounts": pairs.accounts,
            "only_champion_scored": pairs.unpaired[0],
            "only_challenger_scored": pairs.unpaired[1],
            "champion": _side(champion, pairs, 0),
            "challenger": _side(challenger, pairs, 1),
            "by_transaction": _changes(old, new),
            "by_account": _changes(*(_alerted_accounts(pairs, alerts) for alerts in (old, new))),
            "gained": _listed(challenger, pairs, new & ~old, 0, limit),
            "lost": _listed(champion, pairs, old & ~new, 1, limit),
            "judged": None,
        }
    if standings is not None:
        result["judged"] = _judged(pairs, seed)
    if width is not None:
        result["periods"] = _periods(pairs, width, Calendar.from_dict(champion.facts["calendar"]))
    return result


def wilson(hits: int, of: int) -> dict[str, Any]:
    """A share with its 95 % interval.

    >>> {name: round(value, 3) for name, value in wilson(8, 10).items()}
    {'value': 0.8, 'low': 0.49, 'high': 0.943, 'hits': 8, 'of': 10}
    >>> wilson(0, 0)["value"] is None
    True
    """
    if not of:
        return {"value": None, "low": None, "high": None, "hits": hits, "of": of}
    share, spread = hits / of, _Z * _Z / of
    middle = (share + spread / 2) / (1 + spread)
    reach = _Z * math.sqrt(share * (1 - share) / of + spread / of / 4) / (1 + spread)
    return {"value": share, "low": max(0.0, middle - reach), "high": min(1.0, middle + reach), "hits": hits, "of": of}


def _lists(batch: pa.RecordBatch, names: tuple[str, ...]) -> list[list[Any]]:
    return [batch.column(name).to_pylist() for name in names]


def _rows(records: ScoredStore) -> Iterator[tuple[Any, ...]]:
    for batch in records.score_batches():
        yield from zip(*_lists(batch, _COLUMNS), strict=True)


def _columns(rows: list[tuple[float, bool]]) -> tuple[FloatArray, AnyArray]:
    return np.array([score for score, _ in rows], float), np.array([alert for _, alert in rows], bool)


def _side(records: ScoredStore, pairs: Pairs, which: int) -> dict[str, Any]:
    """What one of them did, over the transactions that both have scored."""
    alerts, span = pairs.alerts[which], float(np.ptp(pairs.time))
    day = Calendar.from_dict(records.facts["calendar"]).of_days(1.0)
    count = int(alerts.sum())
    return {
        "model": records.facts["model"],
        "threshold": records.facts["threshold"],
        "alerts": count,
        "alert_rate": wilson(count, len(alerts)),
        "alerts_per_day": count * day / span if day is not None and span > 0 else None,
        "accounts": int(_alerted_accounts(pairs, alerts).sum()),
    }


def _alerted_accounts(pairs: Pairs, alerts: AnyArray) -> AnyArray:
    return np.bincount(pairs.account[alerts], minlength=pairs.accounts) > 0


def _changes(old: AnyArray, new: AnyArray) -> dict[str, int]:
    return {"shared": int((old & new).sum()), "gained": int((new & ~old).sum()), "lost": int((old & ~new).sum())}


def _listed(records: ScoredStore, pairs: Pairs, chosen: AnyArray, other: int, limit: int) -> list[Record]:
    """The highest of these alerts, with what the other one thought of them."""
    places = {pairs.keys[place]: place for place in np.flatnonzero(chosen).tolist()}
    known = _alerted_accounts(pairs, pairs.alerts[other])
    found = ((places.get((a["account"], a["transaction"], a["time"])), a) for a in records.alerts())
    highest = heapq.nsmallest(limit, ((-a["score"], p, a) for p, a in found if p is not None), key=lambda row: row[:2])
    words = {code: word for word, code in _JUDGED.items()}
    return [
        {
            **{name: alert.get(name) for name in _SHOWN},
            "other_score": float(pairs.scores[other][place]),
            "other_alerted_account": bool(known[pairs.account[place]]),
            "verdict": words[int(pairs.judged[place])],
        }
        for _, place, alert in highest
    ]


def _judged(pairs: Pairs, seed: int) -> dict[str, Any]:
    """Precision and recall of both against the verdicts, and how sure their difference is."""
    by_account, shares = _counts(pairs)
    draws = _resampled(by_account, seed)
    total = by_account.sum(axis=0, keepdims=True)
    result: dict[str, Any] = {
        "frauds": int((pairs.judged == 1).sum()),
        "normals": int((pairs.judged == 0).sum()),
        "unjudged_alerts": {
            name: int((alerts & (pairs.judged < 0)).sum())
            for name, alerts in zip(("champion", "challenger"), pairs.alerts, strict=True)
        },
        "note": RECALL_NOTE,
    }
    for level, measures in shares.items():
        result[level] = {}
        for measure, sides in measures.items():
            hits, of = zip(*(_sums(total, side) for side in sides), strict=True)
            drawn = [_quotient(*_sums(draws, side)) for side in sides]
            result[level][measure] = {
                name: wilson(int(hit[0]), int(count[0]))
                for name, hit, count in zip(("champion", "challenger"), hits, of, strict=True)
            } | {"difference": _difference([_quotient(h, n)[0] for h, n in zip(hits, of, strict=True)], drawn)}
    result["by_account"]["mcnemar"] = _mcnemar(by_account)
    return result


# Columns of what each account adds to the figures, champion before challenger.
_TRUE, _FALSE, _CAUGHT, _WRONG = (0, 1), (2, 3), (4, 5), (6, 7)
_FRAUDS, _FRAUD_ACCOUNT = 8, 9
_Side = tuple[int, tuple[int, ...]]  # the column of hits, and those that add up to how many there are


def _counts(pairs: Pairs) -> tuple[FloatArray, dict[str, dict[str, list[_Side]]]]:
    """What each account with a verdict adds, and which columns make which share."""
    count = pairs.accounts
    columns = np.zeros((count, 10))
    fraud, never = np.flatnonzero(pairs.judged == 1), len(pairs.keys)
    first = np.full(count, never)
    np.minimum.at(first, pairs.account[fraud], fraud)
    is_judged = np.bincount(pairs.account[pairs.judged >= 0], minlength=count) > 0
    for side, alerts in enumerate(pairs.alerts):
        raised = np.flatnonzero(alerts)
        for column, label in ((_TRUE[side], 1), (_FALSE[side], 0)):
            columns[:, column] = np.bincount(pairs.account[alerts & (pairs.judged == label)], minlength=count)
        hits = raised[raised >= first[pairs.account[raised]]]
        caught = np.bincount(pairs.account[hits], minlength=count) > 0
        columns[:, _CAUGHT[side]] = caught
        columns[:, _WRONG[side]] = _alerted_accounts(pairs, alerts) & is_judged & ~caught
    columns[:, _FRAUDS] = np.bincount(pairs.account[fraud], minlength=count)
    columns[:, _FRAUD_ACCOUNT] = first < never
    shares: dict[str, dict[str, list[_Side]]] = {
        "by_transaction": {
            "precision": [(_TRUE[s], (_TRUE[s], _FALSE[s])) for s in (0, 1)],
            "recall": [(_TRUE[s], (_FRAUDS,)) for s in (0, 1)],
        },
        "by_account": {
            "precision": [(_CAUGHT[s], (_CAUGHT[s], _WRONG[s])) for s in (0, 1)],
            "recall": [(_CAUGHT[s], (_FRAUD_ACCOUNT,)) for s in (0, 1)],
        },
    }
    return columns, shares


def _resampled(columns: FloatArray, seed: int) -> FloatArray:
    """Sums over accounts drawn with replacement, a row a draw; accounts that add nothing are not drawn."""
    chosen = columns[columns.any(axis=1)]
    if not len(chosen):
        return np.zeros((1, columns.shape[1]))
    chance = np.random.default_rng(seed)
    sums = []
    for _ in range(_DRAWS // _CHUNK):
        drawn = chance.multinomial(len(chosen), np.full(len(chosen), 1 / len(chosen)), _CHUNK)
        sums.append(drawn @ chosen)
    return np.concatenate(sums)


def _sums(rows: FloatArray, side: _Side) -> tuple[FloatArray, FloatArray]:
    hits, of = side
    return rows[:, hits], rows[:, list(of)].sum(axis=1)


def _quotient(hits: FloatArray, of: FloatArray) -> FloatArray:
    return np.divide(hits, of, out=np.full(len(hits), np.nan), where=of > 0)


def _difference(values: list[float], drawn: list[FloatArray]) -> dict[str, float | None]:
    """Challenger less champion, with a 95 % interval of draws in which both have a value."""
    value, spread = values[1] - values[0], drawn[1] - drawn[0]
    spread = spread[np.isfinite(spread)]
    if not math.isfinite(value) or not len(spread):
        return {"value": None, "low": None, "high": None}
    low, high = np.quantile(spread, [0.025, 0.975]).tolist()
    return {"value": float(value), "low": low, "high": high}


def _mcnemar(columns: FloatArray) -> dict[str, dict[str, Any]]:
    """Of the accounts on which the two disagree: is it chance which of them is right? Exact, two-sided."""
    result = {}
    for name, (old, new) in (("caught", _CAUGHT), ("false", _WRONG)):
        gained = int((columns[:, new] > columns[:, old]).sum())
        lost = int((columns[:, new] < columns[:, old]).sum())
        p = float(binomtest(gained, gained + lost).pvalue) if gained + lost else None
        result[name] = {"gained": gained, "lost": lost, "p": p}
    return result


def _periods(pairs: Pairs, width: float, calendar: Calendar) -> list[dict[str, Any]]:
    """Counts of each period that has transactions."""
    numbers = np.floor(pairs.time / width).astype(np.int64)
    starts, place = np.unique(numbers, return_inverse=True)
    old, new = pairs.alerts
    fraud = pairs.judged == 1
    kinds = {
        **{"transactions": np.ones(len(old), bool), "champion": old, "challenger": new, "shared": old & new},
        **{"gained": new & ~old, "lost": old & ~new, "frauds": fraud},
        **{"champion_frauds": old & fraud, "challenger_frauds": new & fraud},
    }
    counts = {name: np.bincount(place[chosen], minlength=len(starts)).tolist() for name, chosen in kinds.items()}
    return [
        {"start": float(start * width), "when": calendar.iso(float(start * width))}
        | {name: values[number] for name, values in counts.items()}
        for number, start in enumerate(starts.tolist())
    ]
