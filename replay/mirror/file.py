"""The local file of a mirror: the tables of a replay's state, of bounded size, and the facts of its stream.

Positions are arrival numbers, from 1, because Kafka counts by partition: each score, with its alert if it has one, and
each dead letter has the next. In every record ``position`` is that number, ``partition`` and ``offset`` are the place
of the transaction on its topic. An alert's id is its own, so links to it hold wherever it is mirrored.

``timeline``, and with it the counts in totals, stays whole when old scores go; an account is forgotten with the last of
its scores. Small batches grow until they are worth a row: on a slow stream every transaction is one.

A page must know a stream's model, threshold, alert rules and calendar before it shows anything.

On Kafka nobody writes these down in one place. A model that is named has them all. Otherwise the messages have them:
each alert says its threshold, its model and, where times are dates, its time as both. What no message says has its
usual value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from replay.mirror.event_merge import Arrival
from replay.sources.source import Position
from replay.state.file import StateFile, by_account
from replay.state.records import packed_scores, unpacked_scores
from replay.state.schema import explained
from stream_ccsd.alerts.policy import build_policy, threshold_by_budget
from stream_ccsd.calendar import UNITS, Calendar, CalendarError
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.model.registry import load_model
from stream_ccsd.records import score_batch
from stream_ccsd.settings import Settings
from stream_ccsd.stores import Record

_LARGEST, _SMALL = 2000, 256


class MirrorFile(StateFile):
    """A state file whose outputs come from elsewhere, and of which the oldest go."""

    keep, keep_alerts = 1_000_000, 100_000

    @classmethod
    def at(cls, path: Path, facts: dict[str, Any]) -> MirrorFile:
        """A new file, or the one there is, which must be of a mirror.

        Raises
        ------
        StreamCcsdError
            If it is something else, or damaged.
        """
        if not path.exists() or not path.stat().st_size:
            StateFile.create(path, facts).close()
        return cls.reopen(path)

    @classmethod
    def reopen(cls, path: Path) -> MirrorFile:
        """The file there is."""
        file = cls.open(path)
        assert isinstance(file, MirrorFile)
        if not str(file.facts.get("source", "")).startswith("kafka://"):
            file.close()
            raise StreamCcsdError(f"{path} belongs to a replay: name another --state, or watch it without --from")
        return file

    @property
    def batch_size(self) -> int:
        """Arrivals that are written together at most: whole batches go when there are too many."""
        return max(1, min(_LARGEST, self.keep // 10))

    def has_alert(self, alert: Record) -> bool:
        """Whether the alert on this very transaction is there."""
        with explained(self.path):
            rows = self._connection.execute(
                "SELECT json FROM alerts INDEXED BY alerts_by_account WHERE account = ? AND time = ?",
                (alert["account"], alert["time"]),
            ).fetchall()
        known = [json.loads(text) for (text,) in rows]
        return any((a["partition"], a["offset"]) == (alert["partition"], alert["position"]) for a in known)

    def has_score(self, score: Record) -> bool:
        """Whether the score of this very transaction is there, or may have been before old ones went."""
        if self.records.totals().transactions > self.notes.get("kept", {}).get("scores", 0):
            return True
        origin = score["partition"], score["position"], score["id"]
        own = self.records.scores_of(score["account"])
        return any((s["partition"], s["offset"], s["id"]) == origin for s in own)

    def write(self, arrivals: Sequence[Arrival], notes: dict[str, Any], facts: dict[str, Any] | None = None) -> None:
        """All of it, with where it was read from, or nothing; at most ``batch_size`` at once."""
        before = self.notes, self._facts
        kept = {"scores": 0, "newest": 0, "alerts": 0, "dead_letters": 0, **self.notes.get("kept", {})}
        reached = Position(self.position + len(arrivals))
        try:
            with self.batch():
                self._add(list(enumerate(arrivals, self.position + 1)), reached.position, kept)
                self._prune(kept)
                self.notes = {**notes, "kept": kept}
                self._facts = self._facts if facts is None else json.dumps(facts)
                self._move(reached)
                self.check_in_place()
                self._connection.execute("COMMIT")
        except BaseException:
            self.notes, self._facts = before
            raise
        self.reached, self._stored = reached, replace(self._pending)
        self.facts.update(facts or {})

    def _add(self, numbered: list[tuple[int, Arrival]], reached: int, kept: dict[str, int]) -> None:
        alerts = [_alert_row(number, a.alert) for number, a in numbered if a.alert is not None]
        letters = [_letter_row(number, a.letter) for number, a in numbered if a.letter is not None]
        scores = [_moved(number, a.score) for number, a in numbered if a.score is not None]
        self._insert("alerts", alerts)
        self._insert("dead_letters", letters)
        if scores:
            batch = score_batch(scores).append_column("offset", pa.array([s["offset"] for s in scores], pa.int64()))
            self._append(batch, reached, kept)
            self._add_to_timeline(batch)
        kept["scores"] += len(scores)
        kept["alerts"] += len(alerts)
        kept["dead_letters"] += len(letters)

    def _append(self, scores: pa.RecordBatch, number: int, kept: dict[str, int]) -> None:
        """Scores as a batch of their own, or together with the newest one while that is small."""
        newest = self._small(scores, kept)
        rows, previous = [], {} if newest is None else newest.previous
        for account, transactions, time, maximum, alerts in by_account(scores):
            known = self._account(account) or (account, 0, time, 0.0, 0, None)
            row = (account, known[1] + transactions, max(known[2], time), maximum, known[4] + alerts, number)
            rows.append(row)
            previous.setdefault(account, known[5])
        if newest is not None:
            added = {row[0] for row in rows}
            others = (self._account(account) for account in newest.accounts if account not in added)
            rows += [(*row[:-1], number) for row in others if row is not None]
            self._delete("scores", f"position = {newest.number}")
            scores = _joined(newest.scores, scores)
        kept["newest"] = scores.num_rows
        self._replace("accounts", rows)
        self._insert("scores", [(number, packed_scores(scores, previous))])

    def _small(self, scores: pa.RecordBatch, kept: dict[str, int]) -> _Batch | None:
        """The newest batch, if both together are a small one."""
        if not 0 < kept["newest"] <= min(_SMALL, self.keep // 10) - scores.num_rows:
            return None
        newest = self._batch_at("DESC")
        return newest if newest is not None and newest.scores.schema == scores.schema else None

    def _batch_at(self, direction: str) -> _Batch | None:
        """The newest or the oldest batch."""
        chosen = f"ORDER BY position {direction} LIMIT 1"
        row = self._connection.execute(f"SELECT position, rows FROM scores {chosen}").fetchone()
        return None if row is None else _Batch(*row)

    def _account(self, account: str) -> tuple[Any, ...] | None:
        return self._kept["accounts"].get(account)

    def _prune(self, kept: dict[str, int]) -> None:
        while kept["scores"] > self.keep and (oldest := self._batch_at("ASC")) is not None:
            known = map(self._account, oldest.accounts)
            self._forget_accounts([row[0] for row in known if row is not None and row[-1] == oldest.number])
            self._delete("scores", f"position = {oldest.number}")
            kept["scores"] -= oldest.scores.num_rows
        for table in ("alerts", "dead_letters"):
            over = kept[table] - self.keep_alerts
            if over > 0:
                last = f"SELECT position FROM {table} ORDER BY position LIMIT 1 OFFSET {over - 1}"
                self._delete(table, f"position <= ({last})")
                kept[table] -= over

    def _forget_accounts(self, names: Iterable[str]) -> None:
        self._pending.total += self._kept["accounts"].remove(names)


class _Batch:
    """A stored batch of scores, and where each of its accounts' histories goes on."""

    def __init__(self, number: int, packed: bytes) -> None:
        self.number = number
        self.scores, self.previous = unpacked_scores(packed)

    @property
    def accounts(self) -> Iterable[str]:
        return self.previous.keys()


def _joined(first: pa.RecordBatch, second: pa.RecordBatch) -> pa.RecordBatch:
    (batch,) = pa.Table.from_batches([first, second]).combine_chunks().to_batches()
    return batch


def _moved(number: int, record: Record) -> Record:
    """A record under its arrival number; its offset has a name of its own."""
    return {**record, "position": number, "offset": record["position"]}


def _alert_row(number: int, alert: Record) -> tuple[Any, ...]:
    # As floats, which SQLite makes of them: the checksum is over what is read again.
    numbers = [float(alert[name]) for name in ("time", "score", "expected_loss", "tail_rate")]
    text = json.dumps(_moved(number, alert))
    return number, alert["id"], alert["account"], *numbers, alert["headline"], text


def _letter_row(number: int, letter: Record) -> tuple[Any, ...]:
    text = json.dumps({**letter, "position": number})
    return number, letter["line"], str(letter["kind"]), letter["field"], letter["reason"], text


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Dates in messages have microseconds, and times are floating-point numbers.
_ROUNDING = timedelta(milliseconds=2)


def first_facts(source: str, model: Path | None = None) -> dict[str, Any]:
    """Before any message: of the model that is named, or as usual."""
    if model is None:
        settings, calendar, version = Settings(), Calendar(), ""
        threshold = threshold_by_budget(settings.alert_rate)
    else:
        loaded = load_model(model)
        settings, calendar, version, threshold = loaded.settings, loaded.calendar, loaded.version, loaded.threshold
    return {
        "source": source,
        "model": version,
        "threshold": threshold,
        "policy": build_policy(settings, threshold)._asdict(),
        "calendar": calendar.to_dict(),
        "learning": None,
    }


def learnt_facts(facts: dict[str, Any], alerts: Iterable[Record]) -> dict[str, Any]:
    """The same with what alerts say, the newest last; the calendar stays where it is known."""
    alerts = list(alerts)
    if not alerts:
        return facts
    newest, calendar = alerts[-1], Calendar.from_dict(facts["calendar"])
    if calendar.unit == "number":
        calendar = calendar_of([(a["time"], a["when"]) for a in alerts if a["when"] is not None])
    threshold = float(newest["threshold"])
    return {
        **facts,
        "model": newest["model"],
        "threshold": threshold,
        "policy": {**facts["policy"], "threshold": threshold},
        "calendar": calendar.to_dict(),
    }


def calendar_of(dated: list[tuple[float, str]]) -> Calendar:
    """The calendar by which these times are these dates; plain numbers where there is none, or it is not certain.

    >>> calendar_of([(49.5, "2026-02-23T12:00:00+00:00"), (50.0, "2026-02-24T00:00:00+00:00")]).to_dict()
    {'unit': 'days', 'origin': '2026-01-05T00:00:00+00:00'}
    >>> calendar_of([(1546310400.0, "2019-01-01T02:40:00+00:00")]).unit
    'seconds'
    >>> calendar_of([(5.0, "soon")]).unit
    'number'
    """
    fitting = []
    for unit in (unit for unit in UNITS if unit != "number"):
        try:
            moments = [(time, datetime.fromisoformat(when)) for time, when in dated]
            origins = [moment - timedelta(**{unit: time}) for time, moment in moments]
            if origins and max(origins) - min(origins) <= _ROUNDING:
                fitting.append(Calendar(unit, _rounded(origins[0])))
        except (ValueError, TypeError, OverflowError, CalendarError):
            continue
    # One alert fits every unit; nobody counts from anything but midnight.
    likely = fitting if len(fitting) == 1 else [c for c in fitting if c.origin is not None and _is_midnight(c.origin)]
    return likely[0] if len(likely) == 1 else Calendar()


def _rounded(origin: datetime) -> datetime:
    """To the second that is meant."""
    second = (origin + timedelta(seconds=0.5)).replace(microsecond=0)
    return second if abs(second - origin) <= _ROUNDING else origin


def _is_midnight(origin: datetime) -> bool:
    return (origin.hour, origin.minute, origin.second, origin.microsecond) == (0, 0, 0, 0)
