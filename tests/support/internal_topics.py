"""Brokers whose internal topics are published when a test asks for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.logs import read_all
from tests.support.transactions import Brokers, brokers_of
from tests.support.whole_broker import WholeBroker
from tidegate.apis import (
    classic_groups,
    committed_offsets,
    configs,
    consumer_groups,
    delete_records,
    fetch,
    group_admin,
    metadata,
    produce,
    share_groups,
    topics,
)
from tidegate.monitoring.internal_topics.publisher import PARTITIONS, InternalTopic
from tidegate.monitoring.internal_topics.services import internal_topics
from tidegate.records.batch import Batch
from tidegate.records.record import read_records
from tidegate.settings import Settings
from tidegate.store.keys import shard_of
from tidegate.topics.names import CONSUMER_OFFSETS

assert classic_groups and committed_offsets and configs and consumer_groups and delete_records  # registered
assert fetch and group_admin and metadata and produce and share_groups and topics


class PublishedTopics:
    """Brokers, each with its publisher; `leaders` are those that take themselves for the leader of everything."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.leaders = {0}
        self.publishers = [self._publishers(place, broker) for place, broker in enumerate(brokers.all)]

    def _publishers(self, place: int, broker: WholeBroker) -> list[InternalTopic]:
        context = broker.context
        leads = lambda topic_id, index: place in self.leaders  # noqa: E731 - one line
        records = context.transactions.records
        return internal_topics(broker.store, broker.settings, context.catalog, context.logs, records, leads)

    async def publish(self) -> None:
        """A round of every leader."""
        for place in sorted(self.leaders):
            for topic in self.publishers[place]:
                await topic.publish()

    async def records(self, group: str = "orders", name: str = CONSUMER_OFFSETS) -> list[tuple[bytes, bytes | None]]:
        """Keys and values of the partition of a group or transactional id, in order."""
        batches = await self.batches(group, name)
        return [(one.key or b"", one.value) for batch in batches for one in read_records(batch)]

    async def batches(self, group: str, name: str) -> list[Batch]:
        """The batches of that partition."""
        context = self.brokers.all[0].context
        await context.catalog.refresh()
        topic = context.catalog.get("default", name)
        assert topic is not None and topic.partition_count == PARTITIONS
        return await read_all(context.logs.batch_log(topic, shard_of(group, PARTITIONS)))


@asynccontextmanager
async def published_topics(settings: Settings) -> AsyncIterator[PublishedTopics]:
    """Two brokers with a topic `t` of two partitions."""
    own = settings.model_copy(update={"internal_topics_interval_ms": 1_000})
    async with brokers_of(own, 2) as brokers:
        await brokers.create("t", 2)
        yield PublishedTopics(brokers)
