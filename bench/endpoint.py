"""What a measure runs against: addresses and pids, and the few things every measure does first."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from kio.schema.errors import ErrorCode

from bench.kafka_wire import (
    CREATE_TOPICS,
    DELETE_TOPICS,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    MeasureFailed,
    Wire,
    request,
)

_READY_TIMEOUT_S: Final = 60.0
_LATEST: Final = -1


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Any Kafka endpoint. `pids` are all of its processes, Redis included."""

    bootstrap: str
    pids: Sequence[int] = field(default=())

    @property
    def first(self) -> str:
        """The first address."""
        return self.bootstrap.split(",")[0]

    async def wire(self) -> Wire:
        """A connection to the first address."""
        return await Wire.connect(self.first)

    async def check(self) -> None:
        """Whether it serves what is measured. Raises MeasureFailed, OSError."""
        wire = await self.wire()
        await wire.check_versions()
        wire.close()

    async def coordinator(self, wire: Wire, group_id: str) -> str:
        """host:port of a group's coordinator. Raises MeasureFailed."""
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while True:
            found = await wire.ask(request(FIND_COORDINATOR, key=group_id, key_type=0))
            if found.error_code is ErrorCode.none:
                return f"{found.host}:{found.port}"
            if time.monotonic() > deadline:
                raise MeasureFailed(f"FindCoordinator: {found.error_code.name}")
            await asyncio.sleep(0.1)

    @asynccontextmanager
    async def topic(self, name: str, partitions: int) -> AsyncIterator[tuple[str, list[str]]]:
        """A topic of that many partitions: its name, and each partition's leader; deleted at the end."""
        name = f"bench-{name}-{os.getpid()}-{time.monotonic_ns() // 1_000_000}"
        wire = await self.wire()
        await create_topics(wire, {name: partitions})
        try:
            yield name, await self._leaders(wire, name, partitions)
        finally:
            await wire.ask(request(DELETE_TOPICS, topic_names=(name,), timeout=30_000))
            wire.close()

    async def _leaders(self, wire: Wire, name: str, partitions: int) -> list[str]:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        wanted = request(
            METADATA, topics=[{"name": name}], allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False, include_topic_authorized_operations=False,
        )  # fmt: skip
        while time.monotonic() < deadline:
            reported = await wire.ask(wanted)
            addresses = {broker.node_id: f"{broker.host}:{broker.port}" for broker in reported.brokers}
            leaders = {part.partition_index: part.leader_id for part in reported.topics[0].partitions}
            if len(leaders) == partitions and all(leader in addresses for leader in leaders.values()):
                return [addresses[leaders[index]] for index in range(partitions)]
            await asyncio.sleep(0.05)
        raise MeasureFailed(f"{name} has no leaders")

    async def end_offsets(self, topic: str, leaders: Sequence[str]) -> list[int]:
        """The log end of each partition."""
        ends = []
        for index, address in enumerate(leaders):
            wire = await Wire.connect(address)
            part = {"partition_index": index, "timestamp": _LATEST}
            topics = [{"name": topic, "partitions": [part]}]
            reported: Any = await wire.ask(request(LIST_OFFSETS, replica_id=-1, isolation_level=0, topics=topics))
            ends.append(int(reported.topics[0].partitions[0].offset))
            wire.close()
        return ends


async def create_topics(wire: Wire, partition_counts: Mapping[str, int]) -> None:
    """Create topics without replicas. Raises MeasureFailed."""
    topics = [
        {"name": name, "num_partitions": count, "replication_factor": 1, "assignments": [], "configs": []}
        for name, count in partition_counts.items()
    ]
    made = await wire.ask(request(CREATE_TOPICS, topics=topics, timeout=90_000, validate_only=False), 120.0)
    if errors := {one.error_code.name for one in made.topics if one.error_code is not ErrorCode.none}:
        raise MeasureFailed(f"CreateTopics: {', '.join(sorted(errors))}")
