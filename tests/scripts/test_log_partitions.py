"""create_log and delete_log: what the catalogue relies on."""

from __future__ import annotations

import pytest

from tidegate.errors import UnknownTopicOrPartition
from tidegate.log.partitions import DELETED_META_MS, create_partition, delete_partition
from tidegate.store.keys import LogKeys
from tidegate.store.store import Store


@pytest.fixture
def keys(store: Store) -> LogKeys:
    return store.log_keys("default", "orders", 0, "ab" * 16)


async def test_new_log_takes_offset_0_first(store: Store, keys: LogKeys) -> None:
    await create_partition(store, keys)

    assert await store.command("XLEN", keys.log) == 0
    assert await store.command("XADD", keys.log, "NOMKSTREAM", "0-1", "w", "x") == b"0-1"


async def test_creating_again_changes_nothing(store: Store, keys: LogKeys) -> None:
    await create_partition(store, keys)
    await store.command("XADD", keys.log, "NOMKSTREAM", "0-1", "w", "x")
    await store.command("HSET", keys.meta, "log_start", 7)
    await create_partition(store, keys)

    assert await store.command("XLEN", keys.log) == 1
    assert await store.command("HGET", keys.meta, "log_start") == b"7"


async def test_deleted_log_leaves_no_stream_and_no_ghost_returns(store: Store, keys: LogKeys) -> None:
    await create_partition(store, keys)
    await delete_partition(store, keys)
    await delete_partition(store, keys)

    assert await store.command("XADD", keys.log, "NOMKSTREAM", "0-1", "w", "x") is None
    with pytest.raises(UnknownTopicOrPartition):
        await create_partition(store, keys)
    assert 0 < await store.command("PTTL", keys.meta) <= DELETED_META_MS


async def test_deletion_wakes_its_readers(store: Store, keys: LogKeys) -> None:
    reported: list[bytes | None] = []
    await create_partition(store, keys)
    await store.pubsub.listen(keys.wake, reported.append)
    await delete_partition(store, keys)
    await store.command("PING")
    await store.push.call("PING")

    assert b"deleted" in reported
