"""The steps that create, grow and delete a topic. Each is idempotent, and any broker can resume them."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from tidegate.admissions import Admissions
from tidegate.errors import InvalidTopic, PolicyViolation, UnknownTopicOrPartition
from tidegate.store.keys import LogKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.topics import names
from tidegate.topics.model import Record, TopicState

CREATE_TOPIC = Script("topics/create_topic")
FINISH_TOPIC = Script("topics/finish_topic")
ADD_PARTITIONS = Script("topics/add_partitions")
CHECK_ORG_LIMITS = Script("topics/check_org_limits")
DELETE_TOPIC = Script("topics/delete_topic")
FORGET_TOPIC = Script("topics/forget_topic")
ALTER_CONFIGS = Script("topics/alter_configs")
RESTORE_TOPIC = Script("topics/restore_topic")

PARTITIONS_AT_ONCE: Final = 400
"""Partitions that a broker creates and deletes together: heartbeats and leases wait behind them in the control lane."""
_SLICE: Final = 100
"""Of one topic: another topic's partitions are next."""
_LIMITED: Final = "the organisation's limit of topics or partitions is reached (quotas topics_max, partitions_max)"


@dataclass(frozen=True, slots=True)
class PartitionStorage:
    """Creates and deletes a partition's keys. Both are idempotent; `make` refuses a deleted topic id.

    `make` raises UnknownTopicOrPartition if this topic id was deleted; both raise StoreUnavailable.
    """

    make: Callable[[Store, LogKeys], Awaitable[None]]
    remove: Callable[[Store, LogKeys], Awaitable[None]]


OnDeletedOffsets = Callable[[str, str, UUID, int], Awaitable[None]]
"""(org, topic, topic id, partitions): delete the offsets that groups committed for it. Idempotent."""


class TopicSteps:
    """The steps of one catalog. A step that raises StoreUnavailable can be called again."""

    def __init__(self, store: Store, storage: PartitionStorage, on_deleted_offsets: OnDeletedOffsets | None) -> None:
        self._store = store
        self._keys = store.cluster_keys
        self._storage = storage
        self._on_deleted_offsets = on_deleted_offsets
        self._partitions = Admissions(PARTITIONS_AT_ONCE)

    async def take_name(
        self, org: str, name: str, topic_id: UUID, partition_count: int, log_format: str, overrides: Mapping[str, str]
    ) -> Record:
        """Reserve the name; returns the new record, or the existing one. Raises InvalidTopic, PolicyViolation."""
        keys, field = self._keys, f"{org}/{name}"
        pairs = [text for pair in overrides.items() for text in pair]
        try:
            (text,) = await self._store.run(
                CREATE_TOPIC,
                [keys.topics, keys.topic(org, name), keys.topic_names, keys.info, keys.quotas],
                *(field, _plain_field(org, name), topic_id.hex, partition_count, log_format, keys.topic_changes),
                *pairs,
            )
        except InvalidTopic:
            raise InvalidTopic(f"a topic exists whose name differs from {name!r} only by '.' and '_'") from None
        except PolicyViolation:
            raise PolicyViolation(_LIMITED) from None
        return Record.parse(text)

    async def want_partitions(self, org: str, name: str, topic_id: UUID, count: int) -> Record:
        """Set a higher target count of partitions.

        Raises UnknownTopicOrPartition, InvalidPartitions, PolicyViolation.
        """
        keys = self._keys
        try:
            (text,) = await self._store.run(
                ADD_PARTITIONS,
                [keys.topics, keys.info, keys.quotas],
                *(f"{org}/{name}", topic_id.hex, count, keys.topic_changes),
            )
        except PolicyViolation:
            raise PolicyViolation(_LIMITED) from None
        return Record.parse(text)

    async def check_org_limits(self, org: str, name: str, count: int) -> None:
        """Raise what `take_name` or `want_partitions` would: PolicyViolation. Raises StoreUnavailable."""
        keys = self._keys
        try:
            await self._store.run(CHECK_ORG_LIMITS, [keys.topics, keys.quotas], f"{org}/{name}", count)
        except PolicyViolation:
            raise PolicyViolation(_LIMITED) from None

    async def replace_configs(
        self, org: str, name: str, topic_id: UUID, planned_on: int, overrides: Mapping[str, str]
    ) -> bool:
        """Replace a topic's configs; False if they changed since `planned_on`. Raises UnknownTopicOrPartition."""
        keys = self._keys
        pairs = [text for pair in overrides.items() for text in pair]
        (replaced,) = await self._store.run(
            ALTER_CONFIGS,
            [keys.topics, keys.topic(org, name), keys.info],
            *(f"{org}/{name}", topic_id.hex, planned_on, keys.topic_changes),
            *pairs,
        )
        return bool(replaced)

    async def hide(self, org: str, name: str, topic_id: UUID) -> Record:
        """Start the deletion. Raises UnknownTopicOrPartition."""
        keys = self._keys
        (text,) = await self._store.run(
            DELETE_TOPIC, [keys.topics, keys.info], f"{org}/{name}", topic_id.hex, keys.topic_changes
        )
        return Record.parse(text)

    async def restore(self, org: str, name: str, topic_id: UUID, stored: bytes, overrides: Mapping[str, str]) -> bool:
        """Store a lost record again; False if the topic was deleted: then its partition 0 exists no more."""
        keys = self._keys
        meta = self._store.log_keys(org, name, 0, topic_id.hex).meta
        if await self._store.command("HGET", meta, "state") != b"ready":
            return False
        pairs = [text for pair in overrides.items() for text in pair]
        await self._store.run(
            RESTORE_TOPIC,
            [keys.topics, keys.topic_names, keys.topic(org, name), keys.info],
            *(f"{org}/{name}", _plain_field(org, name), stored.decode(), keys.topic_changes, *pairs),
        )
        return True

    async def finish(self, org: str, name: str, record: Record) -> None:
        """Complete the remaining steps. Raises UnknownTopicOrPartition if the topic was deleted meanwhile."""
        if record.state is TopicState.DELETING:
            await self._finish_deletion(org, name, record)
        elif record.under_way:
            await self._finish_making(org, name, record)

    async def _finish_making(self, org: str, name: str, record: Record) -> None:
        first = 0 if record.state is TopicState.CREATING else record.partitions
        try:
            await self._each_partition(self._storage.make, org, name, record, range(first, record.wanted))
        except UnknownTopicOrPartition:
            # Its partitions were deleted during creation: free the name here.
            await self._finish_deletion(org, name, await self.hide(org, name, record.topic_id))
            raise
        keys = self._keys
        await self._store.run(
            FINISH_TOPIC,
            [keys.topics, keys.info],
            *(f"{org}/{name}", record.topic_id.hex, record.wanted, keys.topic_changes),
        )

    async def _finish_deletion(self, org: str, name: str, record: Record) -> None:
        await self._each_partition(self._storage.remove, org, name, record, range(record.wanted))
        if self._on_deleted_offsets is not None:
            await self._on_deleted_offsets(org, name, record.topic_id, record.wanted)
        keys = self._keys
        await self._store.run(
            FORGET_TOPIC,
            [keys.topics, keys.topic(org, name), keys.topic_names, keys.info],
            *(f"{org}/{name}", _plain_field(org, name), record.topic_id.hex, keys.topic_changes),
        )

    async def _each_partition(
        self,
        step: Callable[[Store, LogKeys], Awaitable[None]],
        org: str,
        name: str,
        record: Record,
        partitions: range,
    ) -> None:
        for start in range(partitions.start, partitions.stop, _SLICE):
            some = range(start, min(start + _SLICE, partitions.stop))
            admission = await self._partitions.admit(len(some))
            try:
                await asyncio.gather(
                    *(step(self._store, self._log_keys(org, name, partition, record)) for partition in some)
                )
            finally:
                admission.end()

    def _log_keys(self, org: str, name: str, partition: int, record: Record) -> LogKeys:
        return self._store.log_keys(org, name, partition, record.topic_id.hex, record.format)


def new_topic_id() -> UUID:
    """A random topic id. Like Kafka's, its text never starts with '-', which a command line parses as an option."""
    while True:
        topic_id = uuid.uuid4()
        if not base64.urlsafe_b64encode(topic_id.bytes).startswith(b"-"):
            return topic_id


def _plain_field(org: str, name: str) -> str:
    plain_name = names.plain(name)
    return f"{org}/{plain_name}" if plain_name else ""
