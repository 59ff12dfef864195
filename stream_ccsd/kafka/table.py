"""The account table: one record an account and partition, in a local store and in the changelog topic.

Faust assigns its partitions beside those of the transactions and fills the store from the changelog. What is written
goes the other way round than in Faust's own tables: to the changelog first, and to the store once that is confirmed, in
one step with the changelog's offset. So the store is never ahead of the changelog, whenever the process dies.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import faust
import rocksdict
from faust.stores import memory, rocksdb
from faust.types import TP

from stream_ccsd.kafka.scoring import stored_offset
from stream_ccsd.kafka.settings import WorkerSettings

log = logging.getLogger("stream_ccsd.kafka.recovery")

# Enough for a partition; with Faust's own default each would grow by gigabytes. Small buffers are written out in
# small steps, which transactions do not have to wait for.
_ROCKSDB = {"write_buffer_size": 4 << 20, "block_cache_size": 64 << 20}
# Names of accounts are printable, so nothing else begins with a zero.
_COUNT = b"\0accounts"


class AccountStore(Protocol):
    """Where a partition's states are kept."""

    def read(self, partition: int, account: bytes) -> bytes | None:
        """The stored state of an account."""

    def write(self, partition: int, states: Mapping[bytes, bytes], created: int, changelog_offset: int | None) -> None:
        """Store states, how many of them are of new accounts, and up to where of the changelog they count.

        None leaves that mark as it was.
        """

    def outdated(self, partition: int) -> set[bytes]:
        """Accounts of which the changelog holds an older state behind a newer one, as found by recovery; once."""

    def accounts(self) -> int:
        """How many accounts there are in this worker's partitions."""


@dataclass
class _Change:
    """What a stretch of one changelog partition changes."""

    states: dict[bytes, bytes] = field(default_factory=dict)
    outdated: set[bytes] = field(default_factory=set)
    records: int = 0
    created: int = 0
    end: int = -1


def newest_states(current: Callable[[int, bytes], bytes | None], events: Iterable[Any]) -> dict[int, _Change]:
    """By partition, what a stretch of the changelog changes: a state gives way only to one that has seen more.

    Another worker that was taken for dead may have written old states behind new ones. Compaction would keep the old
    one: such accounts are noted, to be written again.
    """
    changes: dict[int, _Change] = defaultdict(_Change)
    for event in events:
        message = event.message
        change = changes[message.partition]
        change.end = max(change.end, message.offset)
        change.records += 1
        if message.value is None:  # nothing of ours: states are never deleted
            continue
        known = change.states.get(message.key)
        if known is None:
            known = current(message.partition, message.key)
            change.created += known is None and message.key != b""  # the alert cap is no account
        if stored_offset(message.value) >= stored_offset(known):
            change.states[message.key] = message.value
            change.outdated.discard(message.key)
        else:
            change.outdated.add(message.key)
    return changes


class _Outdated:
    """What recovery found to be outdated, until somebody sees to it."""

    def __init__(self) -> None:
        self._accounts: dict[int, set[bytes]] = defaultdict(set)

    def note(self, partition: int, change: _Change) -> None:
        self._accounts[partition] = (self._accounts[partition] - change.states.keys()) | change.outdated

    def take(self, partition: int) -> set[bytes]:
        return self._accounts.pop(partition, set())


class _Options(rocksdb.RocksDBOptions):
    """Without compression: states are floating point numbers, which do not get smaller, only later."""

    def as_options(self) -> Any:
        """RocksDB's own."""
        options = super().as_options()
        options.set_compression_type(rocksdict.DBCompressionType.none())
        return options


class RocksStore(rocksdb.Store):
    """A RocksDB a partition."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rocksdb_options = _Options(**_ROCKSDB)
        self._outdated = _Outdated()

    def outdated(self, partition: int) -> set[bytes]:
        """As recovery found them; once."""
        return self._outdated.take(partition)

    def read(self, partition: int, account: bytes) -> bytes | None:
        """The stored state of an account."""
        return self._db_for_partition(partition).get(account)

    def write(self, partition: int, states: Mapping[bytes, bytes], created: int, changelog_offset: int | None) -> None:
        """All of it or nothing."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        for account, state in states.items():
            batch.put(account, state)
        if created:
            batch.put(_COUNT, str(self._count(partition) + created).encode())
        if changelog_offset is not None:
            batch.put(self.offset_key, str(changelog_offset).encode())
        self._db_for_partition(partition).write(batch)

    def apply_changelog_batch(
        self, batch: Iterable[Any], to_key: Callable[[Any], Any], to_value: Callable[[Any], Any]
    ) -> None:
        """Take over a stretch of the changelog."""
        for partition, change in newest_states(self.read, batch).items():
            self.write(partition, change.states, change.created, change.end)
            self._outdated.note(partition, change)
            self.table.tell_progress(change.records)

    def accounts(self) -> int:
        """Counted as they come: RocksDB itself would have to read them all."""
        return sum(self._count(tp.partition) for tp in active_changelogs(self))

    def _count(self, partition: int) -> int:
        return int(self._db_for_partition(partition).get(_COUNT) or 0)


class MemoryStore(memory.Store):
    """Dictionaries: nothing on disk, and the whole changelog is read at every start."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._states: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        self._outdated = _Outdated()

    def outdated(self, partition: int) -> set[bytes]:
        """As recovery found them; once."""
        return self._outdated.take(partition)

    def read(self, partition: int, account: bytes) -> bytes | None:
        """The stored state of an account."""
        return self._states[partition].get(account)

    def write(self, partition: int, states: Mapping[bytes, bytes], created: int, changelog_offset: int | None) -> None:
        """Into the dictionary."""
        self._states[partition].update(states)

    def apply_changelog_batch(
        self, batch: Iterable[Any], to_key: Callable[[Any], Any], to_value: Callable[[Any], Any]
    ) -> None:
        """Take over a stretch of the changelog."""
        for partition, change in newest_states(self.read, batch).items():
            self.write(partition, change.states, change.created, None)
            self._outdated.note(partition, change)
            self.table.tell_progress(change.records)

    def accounts(self) -> int:
        """As many as the dictionaries hold."""
        found = (self._states[tp.partition] for tp in active_changelogs(self))
        return sum(len(states) - (b"" in states) for states in found)  # the alert cap is no account


def active_changelogs(store: Any) -> list[TP]:
    """Changelog partitions whose accounts this worker scores; standbys are others'."""
    topics = store.table.changelog_topic.topics
    return [tp for tp in store.app.assignor.assigned_actives() if tp.topic in topics]


class AccountTable(faust.Table):
    """The table as Faust knows it: it assigns, recovers and closes; reading and writing are the store's."""

    @classmethod
    def declare(cls, app: faust.App, settings: WorkerSettings, partitions: int) -> AccountTable:
        """Add the table to an app."""
        table = cls(
            app,
            name="accounts",
            partitions=partitions,
            key_type=bytes,
            value_type=bytes,
            store=f"{settings.store}://",
            recovery_buffer_size=1000,
        )
        app.tables.add(table)
        return table

    def tell_progress(self, records: int) -> None:
        """Say how far a recovery is: at its first step, at its last, and every second in between."""
        if not self.app.in_recovery:  # a standby follows all the time
            return
        recovery = self.app.tables.recovery
        if recovery._recovery_started_at != self._recovery:
            self._recovery, self._recovered, self._told = recovery._recovery_started_at, 0, 0.0
        remaining = max(0, recovery.active_remaining_total())
        self._recovered += records
        if not remaining or time.monotonic() - self._told > 1.0:
            self._told = time.monotonic()
            done = self._recovered / (self._recovered + remaining)
            said = {"recovered": self._recovered, "remaining": remaining, "done": f"{done:.0%}"}
            log.info("recovering account states", extra=said)

    _recovery: float | None = None
    _recovered = 0
    _told = 0.0

    def _new_store_by_url(self, url: Any) -> Any:
        kind = MemoryStore if str(url).startswith("memory") else RocksStore
        return kind(
            url,
            self.app,
            self,
            table_name=self.name,
            key_type=bytes,
            key_serializer="raw",
            value_serializer="raw",
            value_type=bytes,
            loop=self.loop,
            options=self.options,
        )

    @property
    def store(self) -> AccountStore:
        """Where the states are."""
        store: AccountStore = self.data
        return store

    def changelog_partition(self, partition: int) -> TP:
        """The partition of the changelog that belongs to one of the transactions."""
        return TP(self.changelog_topic_name, partition)
