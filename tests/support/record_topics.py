"""Topics of format record written straight into Redis, as brokers and Redis programs leave them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.topics import PREFIX, WrittenTopic
from tests.support.whole_broker import WholeBroker
from tidegate.settings import Settings
from tidegate.store.keys import ClusterKeys, LogKeys
from tidegate_pipeline.topics import keys_of


class RecordTopic(WrittenTopic):
    """A topic of organisation `default`, with the default number of sequence bits."""

    bits = 10

    def _report(self, state: str) -> None:
        record = {"id": self.topic_id, "partitions": self.partitions, "wanted": self.partitions, "format": "record"}
        text = json.dumps({**record, "state": state, "config": 0})
        self.client.hset(ClusterKeys(PREFIX).topics, f"default/{self.name}", text)

    def keys(self, partition: int = 0) -> LogKeys:
        return keys_of(PREFIX, "default", self.name, partition, self.topic_id, self.bits)

    def add(self, entry_id: str, partition: int = 0, **fields: Any) -> int:
        """One entry; the offset of its record."""
        named = {name.replace("__", ":"): value for name, value in fields.items()} or {"value": "v"}
        self.client.xadd(self.keys(partition).log, named, id=entry_id)
        ms, _, sequence = entry_id.partition("-")
        return int(ms) << self.bits | int(sequence)


@asynccontextmanager
async def two_brokers(settings: Settings) -> AsyncIterator[list[WholeBroker]]:
    """Two brokers whose groups begin at once, and the topic `r` with one partition of ten records."""
    own = settings.model_copy(update={"group_initial_rebalance_delay_ms": 0})
    opened = [await WholeBroker(own, node_id).start() for node_id in (1, 2)]
    await opened[0].create("r", 1, tidegate_format="record")
    for broker in opened:
        await broker.context.catalog.refresh()
    await opened[0].client("producer").produce("r", 10)
    yield opened
    for broker in opened:
        await broker.close()
