"""Topics written straight into Redis, as brokers leave them: for tests of those who read them without a broker."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.logs import batch_bytes
from tidegate.records.batch import Batch
from tidegate.store.keys import ClusterKeys, LogKeys

PREFIX = "tidegate"
TIMESTAMP_MS = 1_700_000_000_000


@dataclass
class WrittenTopic:
    """A topic of organisation `default`; `ends` are the ends of its partitions."""

    client: Any
    name: str
    partitions: int = 1
    topic_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    ends: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for partition in range(self.partitions):
            self._make(partition)
        self._report("ready")

    def _make(self, partition: int) -> None:
        meta = {"state": "ready", "log_start": 0, "epochs": "0:0", "incarnation": 1}
        self.client.hset(self.keys(partition).meta, mapping=meta)

    def _report(self, state: str) -> None:
        record = {"id": self.topic_id, "partitions": self.partitions, "wanted": self.partitions, "format": "batch"}
        text = json.dumps({**record, "state": state, "config": 0})
        self.client.hset(ClusterKeys(PREFIX).topics, f"default/{self.name}", text)

    def keys(self, partition: int = 0) -> LogKeys:
        """The keys of a partition."""
        return LogKeys.of(PREFIX, "default", self.name, partition, self.topic_id)

    def grow(self, partitions: int) -> None:
        """Add partitions."""
        for partition in range(self.partitions, partitions):
            self._make(partition)
        self.partitions = partitions
        self._report("ready")

    def delete(self) -> None:
        """As a broker leaves a deleted topic."""
        for partition in range(self.partitions):
            self.client.unlink(self.keys(partition).log, self.keys(partition).meta)
            end = self.ends.get(partition, 0)
            self.client.hset(self.keys(partition).meta, mapping={"state": "deleted", "end": end})
        self.client.hdel(ClusterKeys(PREFIX).topics, f"default/{self.name}")

    def append(self, *batches: bytes, partition: int = 0, at: int | None = None) -> int:
        """One entry of these batches at the end, or at an offset above it; returns where it ends."""
        base = end = self.ends.get(partition, 0) if at is None else at
        fields: list[bytes] = [b"w", b"test:1"]
        for batch in batches:
            fields += [b"b", batch]
            end += Batch(memoryview(batch)).last_offset_delta + 1
        self.client.execute_command("XADD", self.keys(partition).log, f"{base}-1", *fields)
        self.ends[partition] = end
        return end

    def fill(self, counts: Sequence[int], partition: int = 0, **batch_fields: Any) -> int:
        """An entry of one batch for each count of records; returns where the last ends."""
        for count in counts:
            fields = {"timestamp": TIMESTAMP_MS + self.ends.get(partition, 0), **batch_fields}
            self.append(batch_bytes(count, **fields), partition=partition)
        return self.ends.get(partition, 0)

    def raise_log_start(self, offset: int, partition: int = 0, *, local: bool = False) -> None:
        """What retention does: the entries that end at or below the offset go, but for the last."""
        keys = self.keys(partition)
        self.client.hset(keys.meta, "local_start" if local else "log_start", offset)
        delayed_heartbeat = self.client.execute_command("XREVRANGE", keys.log, f"{offset}-1", "-", "COUNT", 1)
        self.client.execute_command("XTRIM", keys.log, "MINID", next(iter(delayed_heartbeat))[0])
