"""Builders for tests of the log: batches, topics, brokers with a store each, and calls that can be awaited."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from crc32c import crc32c

from tidegate.log.append import ENTRY_BYTES_MAX, Appended
from tidegate.log.logs import Logs
from tidegate.log.partition import PartitionLog
from tidegate.log.partitions import create_partition
from tidegate.log.read import Slice
from tidegate.records.batch import Batch
from tidegate.settings import Settings
from tidegate.store.store import Store


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def batch_bytes(
    count: int = 1,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    timestamp: int | None = None,
    value: bytes = b"v",
    timestamps: list[int] | None = None,
) -> bytes:
    """An uncompressed batch of `count` records, as a client sends it."""
    now = int(time.time() * 1000) if timestamp is None else timestamp
    times = timestamps or [now] * count
    records = b""
    for i, record_time in enumerate(times):
        body = (
            b"\0"
            + _varint(record_time - times[0])
            + _varint(i)
            + _varint(-1)
            + _varint(len(value))
            + value
            + _varint(0)
        )
        records += _varint(len(body)) + body
    rest = struct.pack(">hiqqqhii", 0, len(times) - 1, times[0], max(times), producer_id, epoch, sequence, len(times))
    rest += records
    return struct.pack(">qiibI", 0, 9 + len(rest), -1, 2, crc32c(rest)) + rest


def batch(**fields: Any) -> Batch:
    """`batch_bytes`, parsed."""
    return Batch.parse(batch_bytes(**fields))


@dataclass(frozen=True, slots=True)
class FakeTopicConfig:
    """The configs that the log reads."""

    message_timestamp_type: str = "CreateTime"
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    retention_ms: int = -1
    retention_bytes: int = -1
    remote_storage: bool = False
    local_retention_ms: int = -1
    local_retention_bytes: int = -1
    is_record: bool = False
    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = (1 << 63) - 1
    min_cleanable_dirty_ratio: float = 0.5


@dataclass(frozen=True, slots=True)
class FakeTopic:
    """A topic as the log sees it."""

    org: str = "default"
    name: str = "orders"
    topic_hex: str = "ab" * 16
    partition_count: int = 1
    format: str = "batch"
    config: FakeTopicConfig = field(default_factory=FakeTopicConfig)


TOPIC: Any = FakeTopic()


async def given_log(store: Store, topic: Any = TOPIC, index: int = 0) -> None:
    """Make the partition."""
    await create_partition(store, store.log_keys(topic.org, topic.name, index, topic.topic_hex))


@asynccontextmanager
async def broker(settings: Settings, *, entry_bytes_max: int | None = None, **changes: Any) -> AsyncIterator[Logs]:
    """The logs of one more broker, with connections of its own; `entry_bytes_max` is for all brokers meanwhile."""
    with mock.patch("tidegate.log.append.ENTRY_BYTES_MAX", entry_bytes_max or ENTRY_BYTES_MAX):
        async with _broker(settings, **changes) as logs:
            yield logs


@asynccontextmanager
async def _broker(settings: Settings, **changes: Any) -> AsyncIterator[Logs]:
    own = Settings(**{**settings.model_dump(), **changes})
    store = Store(own)
    await store.start()
    store.clock.observe(int(time.time() * 1000), 0)  # as a renewal of the lease does
    logs = Logs(store, own)
    await logs.start()
    try:
        yield logs
    finally:
        await logs.close()
        await store.close()


def append_later(log: PartitionLog, item: Batch, acks_all: bool = True) -> asyncio.Future[Appended]:
    """File a batch; the future has its outcome."""
    future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

    def done(outcome: Appended | Exception) -> None:
        assert not future.done() or future.cancelled(), "answered twice"
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    log.append(item, done, acks_all=acks_all)
    return future


async def append(log: PartitionLog, item: Batch | None = None, **fields: Any) -> Appended:
    """Append a batch."""
    return await append_later(log, item if item is not None else batch(**fields))


async def read(
    log: PartitionLog, offset: int, bytes_max: int = 1 << 20, at_least_one: bool = True, committed: bool = False
) -> Slice:
    """Read a slice."""
    future: asyncio.Future[Slice | Exception] = asyncio.get_running_loop().create_future()
    log.read(offset, bytes_max, at_least_one, future.set_result, committed)
    outcome = await future
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def batches_of(found: Slice) -> list[Batch]:
    """The batches of a slice."""
    data = b"".join(bytes(buffer) for buffer in found.buffers)
    assert len(data) == found.size
    batches = []
    while data:
        parsed = Batch.parse(data)
        batches.append(parsed)
        data = data[parsed.size :]
    return batches


async def read_all(log: PartitionLog) -> list[Batch]:
    """Every batch from the log start to the end."""
    known = await log.end_offset()
    batches: list[Batch] = []
    offset = known.log_start_offset
    while offset < known.log_end_offset:
        found = await read(log, offset)
        assert found.end_offset > offset
        batches += batches_of(found)
        offset = found.end_offset
    return batches
