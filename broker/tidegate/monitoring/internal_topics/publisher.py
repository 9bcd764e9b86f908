"""Kafka's internal topics as compacted topics that only brokers write, for tools that read Kafka's.

The coordinators' keys in Redis stay the truth. Each `internal_topics_interval_ms` the leader of a partition reads what
Kafka would put there, and appends a record for each key that differs from the newest one in the log, or a tombstone for
what is gone. As in a compacted log, not every change between two rounds is there; the last one is. The log is also the
leader's memory: a leader that finds appends of another broker reads it again, so that two leaders for a moment end with
the right values.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol
from urllib.parse import unquote
from uuid import UUID

from tidegate.errors import KafkaError, TopicAlreadyExists, UnknownTopicOrPartition
from tidegate.log.logs import Logs
from tidegate.log.outgoing import Appended
from tidegate.log.partition import PartitionLog
from tidegate.records.batch import Batch, iter_headers
from tidegate.records.build import NewRecord, build_batch
from tidegate.records.record import read_records
from tidegate.settings import Settings
from tidegate.store.calls import gather_readable, log_faulty, parsed, result_of
from tidegate.store.keys import shard_of
from tidegate.store.outcome import FaultyKeys
from tidegate.store.store import Store
from tidegate.telemetry.background_tasks import BackgroundTasks
from tidegate.topics.catalog import Catalog
from tidegate.topics.model import Topic

PARTITIONS: Final = 50
"""`offsets.topic.num.partitions` and `transaction.state.log.num.partitions` of Kafka."""
_RECORDS_PER_BATCH_MAX: Final = 200
_BATCH_BYTES: Final = 512 * 1024
"""Values of a batch; a value alone may be larger."""
_READ_BYTES: Final = 1 << 20
_OWNERS_AT_ONCE: Final = 20

Leads = Callable[[UUID, int], bool]
Values = dict[bytes, bytes | None]
"""Key -> value of a record; None: as it was, because its owner is between two states."""


class Source(Protocol):
    """What an internal topic shows. An owner is a group or a transactional id: <org>/<percent-encoded id>."""

    @property
    def topic(self) -> str:
        """The topic's name."""

    @property
    def configs(self) -> Mapping[str, str]:
        """The configs that it is created with."""

    async def owners(self) -> tuple[Sequence[str], Mapping[str, FaultyKeys]]:
        """All owners of records, and the keys of names that cannot be read. Raises StoreUnavailable."""

    async def values_of(self, owner: str) -> Values:
        """The records of an owner, as they are now. Raises StoreUnavailable."""


@dataclass(slots=True)
class Published:
    """What a partition's log holds up to `end`: key -> digest of the newest value."""

    end: int
    digests: dict[bytes, bytes] = field(default_factory=dict)

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """A record is in the log."""
        if value is None:
            self.digests.pop(key or b"", None)
        elif key is not None:
            self.digests[key] = _digest(value)


class InternalTopic:
    """Publishes the partitions of one internal topic that this broker leads."""

    def __init__(
        self, store: Store, settings: Settings, catalog: Catalog, logs: Logs, leads: Leads, source: Source
    ) -> None:
        self._store, self._catalog, self._logs, self._leads, self._source = store, catalog, logs, leads, source
        self._interval_ms = settings.internal_topics_interval_ms
        self._published: dict[tuple[str, int], Published] = {}
        self._loops = BackgroundTasks()

    async def start(self) -> None:
        """Start to publish, if it is enabled."""
        if self._interval_ms:
            self._loops.every(self._source.topic, self._interval_ms, self.publish)

    async def close(self) -> None:
        """Stop."""
        await self._loops.close()

    async def publish(self) -> None:
        """One round over all partitions that this broker leads. Raises KafkaError."""
        owners, is_whole = await self._owners()
        topics = {topic.org: topic for topic in self._catalog.all_topics() if topic.name == self._source.topic}
        for org in {org for org, _ in owners}:
            if org not in topics:
                topics[org] = await self._create(org)
        led = [(topic, index) for topic in topics.values() for index in range(topic.partition_count)
               if self._leads(topic.topic_id, index)]  # fmt: skip
        places = {(topic.topic_hex, index) for topic, index in led}
        self._published = {place: known for place, known in self._published.items() if place in places}
        for topic, index in led:
            await self._publish(topic, index, owners[topic.org, index], is_whole)

    async def _owners(self) -> tuple[defaultdict[tuple[str, int], list[str]], bool]:
        """The owners by organisation and partition, and whether they are all."""
        found: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        owners, faulty = await self._source.owners()
        log_faulty(self._source.topic, faulty)
        for owner in owners:
            org, _, encoded = owner.partition("/")
            found[org, shard_of(unquote(encoded), PARTITIONS)].append(owner)
        return found, not faulty

    async def _create(self, org: str) -> Topic:
        name = self._source.topic
        try:
            return await self._catalog.create(org, name, PARTITIONS, self._source.configs)
        except TopicAlreadyExists:
            topic = await self._catalog.find(org, name)
            if topic is None:
                raise UnknownTopicOrPartition from None
            return topic

    async def _publish(self, topic: Topic, index: int, owners: list[str], is_whole: bool) -> None:
        """Publish one partition; of owners that cannot be read, what is there stays."""
        log = self._logs.batch_log(topic, index)
        known = await self._known(log)
        current: Values = {}
        for at in range(0, len(owners), _OWNERS_AT_ONCE):
            calls = {owner: parsed(self._source.values_of(owner)) for owner in owners[at : at + _OWNERS_AT_ONCE]}
            found, faulty = await gather_readable(calls)
            log_faulty(self._source.topic, faulty)
            is_whole = is_whole and not faulty
            for values in found.values():
                current |= values
        changes: list[tuple[bytes, bytes | None]] = [
            (key, value)
            for key, value in current.items()
            if value is not None and known.digests.get(key) != _digest(value)
        ]
        if is_whole:
            changes += [(key, None) for key in known.digests if key not in current]
        now_ms = self._store.clock.now_ms()
        while changes:
            some, changes = _next_batch(changes)
            batch = build_batch([NewRecord(value, key, now_ms) for key, value in some])
            appended = await _append(log, Batch.parse(batch))
            if appended.base_offset != known.end:
                break  # another broker appended: the next round reads it first
            known.end += len(some)
            for key, value in some:
                known.apply(key, value)

    async def _known(self, log: PartitionLog) -> Published:
        """What the log holds, read again if this broker did not append all of it. Raises KafkaError."""
        place = log.topic.topic_hex, log.index
        known, offsets = self._published.get(place), await log.end_offset()
        if known is None or known.end != offsets.log_end_offset:
            known = self._published[place] = await _read(log, offsets.log_start_offset, offsets.log_end_offset)
        return known


# -- the log


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()


def _next_batch(
    changes: list[tuple[bytes, bytes | None]],
) -> tuple[list[tuple[bytes, bytes | None]], list[tuple[bytes, bytes | None]]]:
    """The records of the next batch, and the others."""
    size = 0
    for count, (key, value) in enumerate(changes[:_RECORDS_PER_BATCH_MAX]):
        size += len(key) + len(value or b"")
        if count and size > _BATCH_BYTES:
            return changes[:count], changes[count:]
    return changes[:_RECORDS_PER_BATCH_MAX], changes[_RECORDS_PER_BATCH_MAX:]


async def _append(log: PartitionLog, batch: Batch) -> Appended:
    """Raises KafkaError."""
    return await result_of(partial(log.append, batch))


async def _read(log: PartitionLog, start: int, end: int) -> Published:
    """Read the newest value of every key between two offsets. Raises KafkaError."""
    known = Published(end)
    offset = start
    while offset < end:
        found = await result_of(partial(log.read, offset, _READ_BYTES, True))
        if found.end_offset <= offset:
            raise KafkaError(f"{log.keys.log} cannot be read beyond {offset}")
        for batch in iter_headers(b"".join(bytes(buffer) for buffer in found.buffers)):
            for record in read_records(batch):
                known.apply(record.key, record.value)
        offset = found.end_offset
    return known
