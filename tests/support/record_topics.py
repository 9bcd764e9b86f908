"""Topics of format record written straight into Redis, as brokers and Redis programs leave them."""

from __future__ import annotations

import json
from typing import Any

from tests.support.topics import PREFIX, WrittenTopic
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
