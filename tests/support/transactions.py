"""Transactional producers without sockets: requests of any version, each sent to the next of one or more brokers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.logs import batch_bytes
from tests.support.whole_broker import ClientOf, WholeBroker
from tidegate.apis import (
    committed_offsets,
    discovery,
    fetched_offsets,
    positions,
    topics,
    transaction_admin,
    transactional_offsets,
    transactions,
)
from tidegate.records.batch import Batch, iter_headers
from tidegate.records.control import Marker, read_marker
from tidegate.settings import Settings

_HANDLERS = (
    committed_offsets,
    discovery,
    fetched_offsets,
    positions,
    topics,
    transaction_admin,
    transactional_offsets,
    transactions,
)  # importing registers them

NONE = ErrorCode.none
MARKER_WAIT_S = 30.0
_TRANSACTIONAL = 0x10


def transactional(raw: bytes) -> bytes:
    """A batch with the transactional bit."""
    changed = bytearray(raw)
    (attributes,) = struct.unpack_from(">h", changed, 21)
    struct.pack_into(">h", changed, 21, attributes | _TRANSACTIONAL)
    struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[21:]))
    return bytes(changed)


@dataclass(slots=True)
class Fetched:
    """What a fetch answered of one partition."""

    batches: list[Batch]
    high_watermark: int
    last_stable_offset: int
    aborted: list[tuple[int, int]] | None

    @property
    def offsets(self) -> list[int]:
        """Offsets of the records, without markers."""
        found = [range(b.base_offset, b.next_offset) for b in self.batches if not b.is_control]
        return [offset for one in found for offset in one]

    @property
    def markers(self) -> list[tuple[int, Marker]]:
        """The markers, each with its offset."""
        found = [(b.base_offset, read_marker(b.buffer)) for b in self.batches if b.is_control]
        return [(offset, marker) for offset, marker in found if marker is not None]


@dataclass(slots=True)
class Brokers:
    """The brokers of one Redis; requests go to them in turn."""

    all: list[WholeBroker]
    clients: list[ClientOf] = field(init=False)
    iteration: int = 0

    def __post_init__(self) -> None:
        self.clients = [broker.client() for broker in self.all]

    async def ask(self, asked: Any) -> Any:
        """The answer of the next broker."""
        self.iteration += 1
        return await self.clients[self.iteration % len(self.clients)].ask(asked)

    async def create(self, name: str, partition_count: int = 1, **configs: str) -> None:
        """Make a topic that every broker knows."""
        await self.all[0].create(name, partition_count, **configs)
        for broker in self.all:
            await broker.context.catalog.refresh()

    def producer(self, transactional_id: str = "T") -> Producer:
        """A producer that has not asked for its id yet."""
        return Producer(self, transactional_id)

    async def fetch(
        self,
        topic: str,
        offset: int = 0,
        index: int = 0,
        *,
        committed: bool = False,
        max_wait_ms: int = 0,
        end: int = 0,
    ) -> Fetched:
        """Fetch v12 of one partition; again until the high watermark, which a broker caches, has reached `end`."""
        async with asyncio.timeout(MARKER_WAIT_S):
            while True:
                found = await self._fetch(topic, offset, index, committed, max_wait_ms)
                if found.high_watermark >= end:
                    return found
                await asyncio.sleep(0.02)

    async def _fetch(self, topic: str, offset: int, index: int, committed: bool, max_wait_ms: int) -> Fetched:
        partition = {
            "partition": index, "current_leader_epoch": -1, "fetch_offset": offset,
            "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1 << 20,
        }  # fmt: skip
        answer = await self.ask(
            request(
                1, 12, max_wait=timedelta(milliseconds=max_wait_ms), min_bytes=1, max_bytes=1 << 24,
                isolation_level=int(committed), session_id=0, session_epoch=-1, forgotten_topics_data=(), rack_id="",
                replica_id=-1,
                topics=[{"topic": topic, "partitions": [partition]}],
            )
        )  # fmt: skip
        [found] = answer.responses[0].partitions
        assert found.error_code is NONE, found
        aborted = found.aborted_transactions
        return Fetched(
            list(iter_headers(found.records or b"")),
            found.high_watermark,
            found.last_stable_offset,
            None if aborted is None else [(int(one.producer_id), int(one.first_offset)) for one in aborted],
        )

    async def until_marked(self, topic: str, count: int, index: int = 0) -> Fetched:
        """Wait until a partition has so many markers."""
        async with asyncio.timeout(MARKER_WAIT_S):
            while len((found := await self.fetch(topic, index=index)).markers) < count:
                await asyncio.sleep(0.02)
        return found

    async def committed(self, group: str, *, stable: bool, everything: bool = False) -> tuple[ErrorCode, int] | None:
        """OffsetFetch v7 of `t` 0, or of everything: code and offset; None without an answer for it."""
        wanted = [{"name": "t", "partition_indexes": (0,)}]
        answer = await self.ask(
            request(9, 7, group_id=group, require_stable=stable, topics=None if everything else wanted)
        )
        found = [one for topic in answer.topics for one in topic.partitions]
        assert answer.error_code is NONE
        return (found[0].error_code, int(found[0].committed_offset)) if found else None

    async def list_offset(self, topic: str, timestamp: int = -1, *, committed: bool = False) -> int:
        """ListOffsets v5."""
        partition = {
            "partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp,
        }  # fmt: skip
        answer = await self.ask(
            request(
                2, 5, replica_id=-1, isolation_level=int(committed),
                topics=[{"name": topic, "partitions": [partition]}],
            )
        )  # fmt: skip
        offset: int = answer.topics[0].partitions[0].offset
        return offset


@dataclass(slots=True)
class Producer:
    """A transactional producer. `version` 2 is KIP-890's protocol."""

    brokers: Brokers
    transactional_id: str | None
    id: int = -1
    epoch: int = -1
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)

    async def try_init(
        self, producer_id: int = -1, epoch: int = -1, *, version: int = 4, timeout_ms: int = 60_000
    ) -> tuple[ErrorCode, int, int]:
        """InitProducerId: code, id and epoch."""
        own = {"producer_id": producer_id, "producer_epoch": epoch} if version >= 3 else {}
        answer = await self.brokers.ask(
            request(
                22, version, transactional_id=self.transactional_id,
                transaction_timeout=timedelta(milliseconds=timeout_ms), **own,
            )
        )  # fmt: skip
        return answer.error_code, int(answer.producer_id), int(answer.producer_epoch)

    async def init(self, producer_id: int = -1, epoch: int = -1, *, timeout_ms: int = 60_000) -> Producer:
        """InitProducerId, repeated while a transaction is being ended, as clients do."""
        async with asyncio.timeout(MARKER_WAIT_S):
            while True:
                code, *identity = await self.try_init(producer_id, epoch, timeout_ms=timeout_ms)
                if code is not ErrorCode.concurrent_transactions:
                    break
                await asyncio.sleep(0.02)
        assert code is NONE, code
        self.id, self.epoch = identity
        self.sequences.clear()
        return self

    async def add(self, *partitions: tuple[str, int], version: int = 3, epoch: int | None = None) -> list[ErrorCode]:
        """AddPartitionsToTxn: a code for each partition."""
        answer = await self.brokers.ask(
            request(
                24, version, v3_and_below_transactional_id=self.transactional_id, v3_and_below_producer_id=self.id,
                v3_and_below_producer_epoch=self.epoch if epoch is None else epoch,
                v3_and_below_topics=[
                    {"name": topic, "partitions": (index,)}
                    for topic, index in partitions
                ],
            )
        )  # fmt: skip
        return [
            one.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        ]

    async def produce(
        self, topic: str, count: int = 1, *, index: int = 0, version: int = 12, epoch: int | None = None,
        sequence: int | None = None, transactional_id: str | None = None, plain: bool = False,
    ) -> tuple[ErrorCode, int]:  # fmt: skip
        """One batch with the next sequence, or with the given one; its code and base offset."""
        epoch = self.epoch if epoch is None else epoch
        first = self.sequences.get((topic, index), 0) if sequence is None else sequence
        raw = batch_bytes(count, self.id, epoch, first)
        answer = await self.brokers.ask(
            request(
                0, version, transactional_id=transactional_id or self.transactional_id, acks=-1,
                timeout=timedelta(seconds=30),
                topic_data=[{"name": topic, "partition_data": [{
                    "index": index, "records": raw if plain else transactional(raw),
                }]}],
            )
        )  # fmt: skip
        found = answer.responses[0].partition_responses[0]
        if found.error_code is NONE and sequence is None:
            self.sequences[topic, index] = first + count
        return found.error_code, int(found.base_offset)

    async def write(self, topic: str, count: int = 1, *, index: int = 0) -> int:
        """One batch that must be accepted; its base offset."""
        code, offset = await self.produce(topic, count, index=index)
        assert code is NONE, code
        return offset

    async def try_end(
        self, is_commit: bool, *, version: int = 5, epoch: int | None = None, producer_id: int | None = None
    ) -> tuple[ErrorCode, int, int]:
        """EndTxn: code, and the next id and epoch (from version 5 on)."""
        answer = await self.brokers.ask(
            request(
                26, version, transactional_id=self.transactional_id,
                producer_id=self.id if producer_id is None else producer_id,
                producer_epoch=self.epoch if epoch is None else epoch, committed=is_commit,
            )
        )  # fmt: skip
        if version < 5:
            return answer.error_code, -1, -1
        return answer.error_code, int(answer.producer_id), int(answer.producer_epoch)

    async def end(self, is_commit: bool, *, version: int = 5) -> None:
        """EndTxn that must succeed; takes on the next identity."""
        code, *identity = await self.try_end(is_commit, version=version)
        assert code is NONE, code
        if version >= 5:
            self.id, self.epoch = identity
            self.sequences.clear()

    async def add_offsets(self, group: str, version: int = 3) -> ErrorCode:
        """AddOffsetsToTxn."""
        answer = await self.brokers.ask(
            request(
                25, version, transactional_id=self.transactional_id, producer_id=self.id, producer_epoch=self.epoch,
                group_id=group,
            )
        )  # fmt: skip
        code: ErrorCode = answer.error_code
        return code

    async def commit_offset(
        self, group: str, offset: int, *, version: int = 5, generation: int = -1, member_id: str = "",
        instance_id: str | None = None, topic: str | UUID | None = "t", metadata: str = "",
    ) -> ErrorCode:  # fmt: skip
        """TxnOffsetCommit of one partition; the topic by its id from version 6 on."""
        label = "topic_id" if version >= 6 else "name"
        member = {"generation_id": generation, "member_id": member_id, "group_instance_id": instance_id}
        partition = {
            "partition_index": 0, "committed_offset": offset,
            "committed_leader_epoch": -1, "committed_metadata": metadata,
        }  # fmt: skip
        answer = await self.brokers.ask(
            request(
                28, version, transactional_id=self.transactional_id, group_id=group, producer_id=self.id,
                producer_epoch=self.epoch, **(member if version >= 3 else {}),
                topics=[{label: topic, "partitions": [partition]}],
            )
        )  # fmt: skip
        code: ErrorCode = answer.topics[0].partitions[0].error_code
        return code


@asynccontextmanager
async def brokers_of(settings: Settings, count: int) -> AsyncIterator[Brokers]:
    """So many brokers on one Redis."""
    opened: Sequence[WholeBroker] = [WholeBroker(settings, node_id) for node_id in range(1, count + 1)]
    try:
        for broker in opened:
            await broker.start()
        yield Brokers(list(opened))
    finally:
        for broker in opened:
            await broker.context.transactions.close()
            await broker.close()
