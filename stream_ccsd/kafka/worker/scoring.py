"""A batch of messages of one partition through the engine: outputs and new states, nothing sent and nothing stored.

Each stored state begins with the offset of the newest message it has seen. A message at or before that offset was
entered before, and its outputs were confirmed before the state was stored: it is passed over. So a message has one
effect, however often it is read.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stream_ccsd.account import state_sizes
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.codec import (
    _HEAD,
    NOTHING,
    TOPIC,
    OutgoingRecord,
    TopicRecord,
    TransactionReader,
    alert_message,
    dead_letter,
    pack_stored,
    score_messages,
    stored_offset,
)
from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.model.model import Model
from stream_ccsd.result import Result
from stream_ccsd.stores import ALERT_CAP
from stream_ccsd.transaction import Refusal, Schema, Status, Transaction, TransactionError

log = logging.getLogger(__name__)

Read = Callable[[bytes], bytes | None]

"""The offset of a state that does not exist."""


"""The key under which a changelog says which topic its states have seen. Names of accounts are printable."""
_CAP = ALERT_CAP.encode()


class ForeignStateError(StreamCcsdError):
    """The account table belongs to another topic, or to models with other windows: going on would ruin it."""


def check_topic(topic: str, topic_id: str, mark: bytes | None) -> dict[bytes, bytes]:
    """Raise if stored states have seen another topic of that name; returns the mark that is still to be stored.

    Raises
    ------
    ForeignStateError
        If the topic was made anew, or the states are of another version.
    """
    ours = pack_stored(0, topic_id.encode())
    if mark is not None and mark[:1] != ours[:1]:
        raise ForeignStateError(
            f"the account states for topic {topic!r} were written by another version of stream-ccsd: go on with that "
            "version, or begin anew with another --group"
        )
    if mark is not None and mark != ours:
        raise ForeignStateError(
            f"topic {topic!r} was made anew: the account states have seen the topic of that name with the id "
            f"{mark[_HEAD.size :].decode(errors='replace')}, now it is {topic_id}. Take another --group, or delete the "
            "changelog topic and the state folder"
        )
    return {} if mark is not None else {TOPIC: ours}


class _StagedStates:
    """What the engine reads is in the table; what it writes waits here until its outputs are confirmed."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.begin()

    def begin(self) -> None:
        """A new batch: nothing is known of the table, and nothing waits."""
        self._stored: dict[bytes, bytes | None] = {}
        self._changed: dict[str, bytes] = {}
        self._alert_cap: bytes | None = None

    def offset(self, account: str) -> int:
        """The newest message that the account's stored state has seen."""
        return stored_offset(self._stored_bytes(account.encode()))

    def read(self, account: str) -> bytes | None:
        """As written in this batch, else as stored."""
        return self._changed.get(account) or self._unpacked(account.encode())

    def read_alert_cap(self) -> bytes | None:
        """As written in this batch, else as stored."""
        return self._alert_cap or self._unpacked(_CAP)

    def write(self, states: Mapping[str, bytes], alert_cap: bytes | None) -> None:
        """They wait for :meth:`changes`."""
        self._changed.update(states)
        self._alert_cap = alert_cap

    def changes(self, newest: Mapping[str, int], last: int) -> dict[bytes, bytes]:
        """What the batch changed, as the table holds it; ``newest`` are its accounts' newest offsets."""
        changes = {a.encode(): pack_stored(newest[a], state) for a, state in self._changed.items()}
        if self._alert_cap is not None:  # it belongs to no account, and has seen all there is
            changes[_CAP] = pack_stored(last, self._alert_cap)
        return changes

    def new_accounts(self) -> int:
        """Accounts that the table does not know yet."""
        return sum(self._stored.get(account.encode()) is None for account in self._changed)

    def _stored_bytes(self, key: bytes) -> bytes | None:
        if key not in self._stored:
            self._stored[key] = self._read(key)
        return self._stored[key]

    def _unpacked(self, key: bytes) -> bytes | None:
        data = self._stored_bytes(key)
        # Bytes that are no state go to the engine as they are: it refuses them, with the reason.
        return data if data is None or stored_offset(data) == NOTHING else data[_HEAD.size :]


@dataclass
class ScoredBatch:
    """The output of a batch. Outputs of a topic are in the order of their messages."""

    outputs: list[OutgoingRecord] = field(default_factory=list)
    states: dict[bytes, bytes] = field(default_factory=dict)
    created: int = 0
    entered: int = 0
    alerts: int = 0
    passed_over: int = 0
    rejects: Counter[Status] = field(default_factory=Counter)
    results: list[Result] = field(default_factory=list)  # of all that were entered


class PartitionScorer:
    """The engine of one partition. The alert cap, if the model has one, is per partition."""

    def __init__(self, model: Model, settings: WorkerSettings, schema: Schema, read: Read) -> None:
        self._states = _StagedStates(read)
        self._engine = Engine(model, self._states, settings.threshold, settings.explore)
        self._settings, self._reader = settings, TransactionReader(schema)
        self._sizes_checked = False

    def score(self, records: Sequence[TopicRecord], log_end: int | None = None) -> ScoredBatch:
        """Outputs and states of a batch; the same batch before the states are stored gives the same again.

        Parameters
        ----------
        records
            In the order of their offsets.
        log_end
            Where the partition ended when it was assigned: a state from beyond has seen another topic.
        """
        self._states.begin()
        done = ScoredBatch()
        seen: dict[str, int] = {}  # by the stored states of the batch's accounts
        newest: dict[str, int] = {}
        fresh: list[tuple[TopicRecord, Transaction]] = []
        refused: list[tuple[TopicRecord, Refusal]] = []
        for record in records:
            transaction = self._parse(record)
            if isinstance(transaction, Refusal):
                refused.append((record, transaction))
                continue
            account, offset = transaction.account, record.offset
            before = seen.get(account)
            if before is None:
                before = seen[account] = self._seen(account)
            if before >= offset:
                _check_log_end(record, account, before, log_end)
                done.passed_over += 1
                continue
            newest[account] = offset
            fresh.append((record, transaction))
        refused += self._enter(done, fresh)
        for record, why in sorted(refused, key=lambda pair: pair[0].offset):
            done.rejects[why.kind] += 1
            done.outputs.append(dead_letter(self._settings.dead_letters, record, why))
        done.states = self._states.changes(newest, records[-1].offset)
        done.created = self._states.new_accounts()
        return done

    def _parse(self, record: TopicRecord) -> Transaction | Refusal:
        if record.value is None:
            return Refusal("the message is empty (a tombstone)")
        try:
            transaction = self._reader.read(record.value, lambda: f"{record.topic}/{record.partition}/{record.offset}")
        except TransactionError as error:
            return error.refusal
        except Exception as error:  # whatever it is, its neighbours go on
            log.exception("a message could not be read", extra=_place(record))
            return Refusal(f"cannot be read: {error!r}", kind=Status.FAILED)
        if self._settings.check_key and record.key != transaction.account.encode():
            shown = "none" if record.key is None else repr(record.key[:60])
            return Refusal(
                f"key: expected the account {transaction.account!r}, got {shown}", "key", shown, kind=Status.KEY
            )
        return transaction

    def _seen(self, account: str) -> int:
        """The newest message that an account's stored state has seen."""
        seen = self._states.offset(account)
        if seen != NOTHING and not self._sizes_checked:
            self._check_sizes(self._states.read(account) or b"")
        return seen

    def _check_sizes(self, state: bytes) -> None:
        """Once: all states of a table are of one size."""
        wanted, sizes = self._engine.model.state_sizes, state_sizes(state)
        if sizes is not None and sizes != wanted:
            raise ForeignStateError(
                f"the account states are for {sizes}, the model has {wanted}: go on with a model of the same windows "
                "and fields, or begin anew with another --group"
            )
        self._sizes_checked = True

    def _process(self, entries: list[tuple[TopicRecord, Transaction]]) -> list[Result]:
        try:
            return self._engine.process_many([t for _, t in entries])
        except MemoryError:
            raise
        except Exception:  # a fault of ours must cost one transaction, not its neighbours
            log.warning("a batch could not be scored together", extra={"messages": len(entries)}, exc_info=True)
            return [self._alone(r, t) for r, t in entries]

    def _alone(self, record: TopicRecord, transaction: Transaction) -> Result:
        try:
            return self._engine.process(transaction)
        except MemoryError:
            raise
        except Exception as error:
            log.exception("a transaction could not be scored", extra=_place(record))
            return Result(transaction, Status.FAILED, reason=repr(error))

    def _enter(
        self, done: ScoredBatch, fresh: list[tuple[TopicRecord, Transaction]]
    ) -> list[tuple[TopicRecord, Refusal]]:
        """Scores and alerts of what the engine takes; returns what it does not."""
        entered: list[TopicRecord] = []
        refused: list[tuple[TopicRecord, Refusal]] = []
        for (record, _), result in zip(fresh, self._process(fresh), strict=True):
            if result.entered:
                entered.append(record)
                done.results.append(result)
            else:
                refused.append((record, Refusal(result.refusal, kind=result.status)))
        done.entered = len(entered)
        scores, alerts = self._settings.scores, self._settings.alerts
        said = zip(entered, done.results, score_messages(entered, done.results), strict=True)
        for record, result, message in said:
            key = result.transaction.account.encode()
            done.outputs.append(OutgoingRecord(scores, key, message, []))
            if result.alert is not None:
                done.alerts += 1
                done.outputs.append(OutgoingRecord(alerts, key, alert_message(record, result.alert), []))
        return refused


def _check_log_end(record: TopicRecord, account: str, seen: int, log_end: int | None) -> None:
    """A message that was entered before; but by which topic?"""
    if log_end is not None and seen >= log_end:
        raise ForeignStateError(
            f"the state of account {account!r} has seen offset {seen} of partition {record.partition}, but topic "
            f"{record.topic!r} ended at {log_end}: the topic was made anew. Take another --group, or delete the "
            "changelog topic and the state folder"
        )


def _place(record: TopicRecord) -> dict[str, object]:
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}
