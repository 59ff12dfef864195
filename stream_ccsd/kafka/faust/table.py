"""The account table: one record an account and partition, in a local store and in the changelog topic.

Faust assigns its partitions beside those of the transactions and fills the store from the changelog. What is written
goes the other way round than in Faust's own tables: to the changelog first, and to the store once that is confirmed, in
one step with the changelog's offset. So the store is never ahead of the changelog, whenever the process dies.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import faust
import rocksdict
from faust.stores import memory
from faust.stores.rocksdb import RocksDBOptions
from faust.types import TP

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.codec import is_account, stored_offset
from stream_ccsd.kafka.faust.internals import FaustRecovery, FaustRocksStore, FaustTable
from stream_ccsd.kafka.settings import WorkerSettings

log = logging.getLogger("stream_ccsd.kafka.recovery")

# Enough for a partition; with Faust's own default each would grow by gigabytes. Small buffers are written out in
# small steps, which transactions do not have to wait for.
_ROCKSDB = {"write_buffer_size": 4 << 20, "block_cache_size": 64 << 20}
_COUNT = b"\0accounts"  # no account's key begins like this
# A disk with less than this is full as far as RocksDB is concerned.
_ROOM = 32 << 20


class StoreError(StreamCcsdError):
    """The store cannot be read or written; says which folder it is and what to do."""


def store_is_ahead(settings: WorkerSettings) -> StoreError:
    """A store that has seen more of its changelog than there is."""
    return StoreError(
        f"the store in {settings.state_dir} has seen more of the changelog {settings.changelog!r} than there is: the "
        "topic was made anew, or its brokers lost data. The changelog is what counts: delete the folder to go on "
        "with the states it holds, which are read again from there; or, if the changelog is new and empty, take "
        "another --group, which scores the topic from its beginning"
    )


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

    def changelog_seen(self, partition: int) -> int | None:
        """Up to which offset of the changelog the states count; None if that is not known."""

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
            change.created += known is None and is_account(message.key)
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


class _Options(RocksDBOptions):
    """Without compression: states are floating point numbers, which do not get smaller, only later."""

    def as_options(self) -> Any:
        """RocksDB's own."""
        options = super().as_options()
        options.set_compression_type(rocksdict.DBCompressionType.none())
        return options


def store_options() -> RocksDBOptions:
    """Of the database that each partition has."""
    return _Options(**_ROCKSDB)


class RocksStore(FaustRocksStore):
    """A RocksDB a partition. It is a copy of the changelog: whatever happens to it, nothing is lost."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rocksdb_options = store_options()
        self._outdated = _Outdated()

    def outdated(self, partition: int) -> set[bytes]:
        """As recovery found them; once."""
        return self._outdated.take(partition)

    def database(self, partition: int) -> Any:
        """The partition's own, opened if it is not yet."""
        with self._explaining():
            return super().database(partition)

    def read(self, partition: int, account: bytes) -> bytes | None:
        """The stored state of an account."""
        try:  # not a context: entering one would cost as much as reading, once an account in every batch
            return super().database(partition).get(account)
        except Exception as error:
            raise self._explained(error) from error

    def write(self, partition: int, states: Mapping[bytes, bytes], created: int, changelog_offset: int | None) -> None:
        """All of it or nothing."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        for account, state in states.items():
            batch.put(account, state)
        if created:
            batch.put(_COUNT, str(self._count(partition) + created).encode())
        if changelog_offset is not None:
            batch.put(self.offset_key, str(changelog_offset).encode())
        with self._explaining(writing=True):
            self.database(partition).write(batch)

    def persisted_offset(self, tp: TP) -> int | None:
        """Where Faust begins to read the changelog."""
        return self.changelog_seen(tp.partition)

    def changelog_seen(self, partition: int) -> int | None:
        """As it was written with the states."""
        offset = self.read(partition, self.offset_key)
        return None if offset is None else int(offset)

    @contextlib.contextmanager
    def _explaining(self, writing: bool = False) -> Iterator[None]:
        """RocksDB raises plain exceptions, whatever the cause: what was done, and the disk, tell what to do."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            raise self._explained(error, writing) from error

    def _explained(self, error: Exception, writing: bool = False) -> StoreError:
        folder = self.table.folder
        why = f"nothing is lost by that: every state is in the topic {self.table.changelog_topic_name!r}"
        if writing or _room(folder) < _ROOM:
            return StoreError(
                f"the store in {folder} cannot be written ({error}): make room on its disk and start the worker "
                f"again, and if that does not help, delete the folder; {why}"
            )
        return StoreError(
            f"the store in {folder} is damaged or cannot be used ({error}): delete the folder and start the "
            f"worker again; {why}, and is read again from there"
        )

    def apply_changelog_batch(
        self, batch: Iterable[Any], to_key: Callable[[Any], Any], to_value: Callable[[Any], Any]
    ) -> None:
        """Take over a stretch of the changelog."""
        try:
            for partition, change in newest_states(self.read, batch).items():
                self.write(partition, change.states, change.created, change.end)
                self._outdated.note(partition, change)
                self.table.tell_progress(change.records)
        except StoreError as error:  # Faust would log it, and try again for ever
            self.table.failure = error
            raise

    def accounts(self) -> int:
        """Counted as they come: RocksDB itself would have to read them all."""
        return sum(self._count(tp.partition) for tp in active_changelogs(self))

    def _count(self, partition: int) -> int:
        return int(self.read(partition, _COUNT) or 0)


def _room(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return _ROOM


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
        partitions = (self._states[tp.partition] for tp in active_changelogs(self))
        return sum(map(is_account, (key for states in partitions for key in states)))

    def changelog_seen(self, partition: int) -> int | None:
        """Nothing outlives the process."""
        return None


def active_changelogs(store: Any) -> list[TP]:
    """Changelog partitions whose accounts this worker scores; standbys are others'."""
    topics = store.table.changelog_topic.topics
    return [tp for tp in store.app.assignor.assigned_actives() if tp.topic in topics]


class AccountTable(FaustTable):
    """The table as Faust knows it: it assigns, recovers and closes; reading and writing are the store's."""

    folder: Path
    failure: StoreError | None = None
    """Why recovery cannot go on."""

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
        table.folder = settings.state_dir
        app.tables.add(table)
        return table

    def tell_progress(self, records: int) -> None:
        """Say how far a recovery is: at its first step, at its last, and every second in between."""
        if not self.app.in_recovery:  # a standby follows all the time
            return
        recovery = FaustRecovery(self.app)
        if recovery.number != self._recovery:
            self._recovery, self._recovered, self._told = recovery.number, 0, 0.0
        remaining = recovery.remaining()
        self._recovered += records
        if not remaining or time.monotonic() - self._told > 1.0:
            self._told = time.monotonic()
            done = self._recovered / (self._recovered + remaining)
            said = {"recovered": self._recovered, "remaining": remaining, "done": f"{done:.0%}"}
            log.info("recovering account states", extra=said)

    _recovery: float | None = None
    _recovered = 0
    _told = 0.0

    def make_store(self, url: str, **options: Any) -> Any:
        """In memory or in RocksDB."""
        kind = MemoryStore if url.startswith("memory") else RocksStore
        return kind(url, self.app, self, **options)

    @property
    def store(self) -> AccountStore:
        """Where the states are."""
        store: AccountStore = self.data
        return store

    def changelog_partition(self, partition: int) -> TP:
        """The partition of the changelog that belongs to one of the transactions."""
        return TP(self.changelog_topic_name, partition)
