"""The offset source of a plan within a broker: committed offsets, topics and log offsets from the store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.apis.call import BrokerContext
from tidegate.apis.slices import in_slices
from tidegate.errors import UnknownTopicOrPartition
from tidegate.groups.offsets import parse_entry, split_field
from tidegate.groups.reset_plan import EARLIEST, LATEST, Partitions, TopicPartition

_NOWHERE: Final = -1
_AT_ONCE_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class StoredOffsets:
    """Offsets of one organisation. Methods raise KafkaError, StoreUnavailable."""

    context: BrokerContext
    org: str

    async def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Committed offsets of a group, for topics that exist."""
        stored = await self.context.store.read("HGETALL", self.context.store.group_keys(self.org, group_id).offsets)
        await self.context.catalog.refresh()
        found = {}
        async for name, value in in_slices(stored.items()):
            place = split_field(name.decode())
            topic = await self.context.catalog.find(self.org, place[0])
            if topic is None:
                continue
            entry = parse_entry(value)
            if entry.topic_id in ("", topic.topic_hex):
                found[place] = entry.offset
        return found

    async def partitions(self) -> Partitions:
        """All topics -> their partitions."""
        await self.context.catalog.refresh()
        return {topic.name: range(topic.partition_count) for topic in self.context.catalog.topics(self.org)}

    async def offsets_at(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """As ListOffsets: at a timestamp, ms, EARLIEST or LATEST; -1 without a record at or after it.

        Raises UnknownTopicOrPartition, StoreUnavailable, and OffsetNotAvailable while the high watermark is not known.
        """
        places, offsets = list(wanted), list[int]()
        for first in range(0, len(places), _AT_ONCE_MAX):
            some: Sequence[TopicPartition] = places[first : first + _AT_ONCE_MAX]
            offsets += await asyncio.gather(*(self._offset_at(place, wanted[place]) for place in some))
        return dict(zip(places, offsets, strict=True))

    def now_ms(self) -> int:
        """Redis's time."""
        return self.context.store.clock.now_ms()

    async def _offset_at(self, place: TopicPartition, timestamp: int) -> int:
        topic = await self.context.catalog.find(self.org, place[0])
        if topic is None or place[1] >= topic.partition_count:
            raise UnknownTopicOrPartition(f"{place[0]} {place[1]} was deleted meanwhile")
        log = self.context.logs.partition(topic, place[1])
        if timestamp == EARLIEST:
            return (await log.end_offset()).log_start_offset
        known = await log.latest()
        if timestamp == LATEST:
            return known.high_watermark
        found = await log.offset_for_timestamp(timestamp)
        return _NOWHERE if found is None or found[0] >= known.high_watermark else found[0]
