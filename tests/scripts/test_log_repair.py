"""`topic repair`: the good entries in a new stream, for brokers that serve and append meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
import redis

from tests.scripts.test_log_stray_entries import STRAY
from tests.support.logs import TOPIC, append, batch, batches_of, broker, given_log, read, read_all
from tidegate.cli.client import log_repair
from tidegate.cli.client.stray_entries import Partition, examine_ends
from tidegate.cli.failures import CommandFailed
from tidegate.errors import KafkaStorageError
from tidegate.settings import Settings
from tidegate.store.store import Store

_ANSWER_S: Final = 40.0
_END: Final = 7


@pytest.fixture
def client(settings: Settings) -> Iterator[Any]:
    """As the commands have it."""
    with redis.Redis.from_url(settings.redis_url) as opened:
        yield opened


async def _partition(store: Store) -> Partition:
    """The partition, in the catalogue too."""
    await given_log(store)
    record = {"id": TOPIC.topic_hex, "partitions": 1, "wanted": 1, "format": "batch", "state": "ready", "config": 0}
    await store.command("HSET", store.cluster_keys.topics, "default/orders", json.dumps(record))
    return Partition("default", "orders", 0, TOPIC.topic_hex, store.log_keys("default", "orders", 0, TOPIC.topic_hex))


@pytest.mark.parametrize("removed", [False, True], ids=["stands", "removed"])
@pytest.mark.parametrize("kind", STRAY)
async def test_repair_lets_produce_and_fetch_continue(
    store: Store, settings: Settings, client: Any, kind: str, removed: bool
) -> None:
    async with broker(settings) as logs, broker(settings) as restarted:
        partition = await _partition(store)
        log = logs.partition(TOPIC, 0)
        await append(log, count=3)
        await append(log, count=4, producer_id=5, epoch=0, sequence=0)
        epoch = (await log.end_offset()).leader_epoch
        entry_id, fields = STRAY[kind]
        added = await store.command("XADD", log.keys.log, entry_id, *fields)
        await store.command("XGROUP", "CREATE", log.keys.log, "mine", added)
        if removed:
            await store.command("XDEL", log.keys.log, added)
        with pytest.raises(KafkaStorageError):
            await asyncio.wait_for(append(log), _ANSWER_S)

        (stopped,) = (await asyncio.to_thread(examine_ends, client, "tidegate")).stopped
        assert "{}-{}".format(*stopped.stray.entry_id).encode() == added
        assert stopped.stray.removed is removed
        end, left_out = await asyncio.to_thread(log_repair.repair, client, partition)

        assert end == _END
        assert ["{}-{}".format(*stray.entry_id).encode() for stray in left_out] == ([] if removed else [added])
        assert (await asyncio.to_thread(examine_ends, client, "tidegate")).stopped == []
        assert not (await asyncio.to_thread(log_repair.scan_partition, client, partition)).strays
        again = await asyncio.wait_for(append(log, count=4, producer_id=5, epoch=0, sequence=0), _ANSWER_S)
        assert again.base_offset == 3  # a retry is still known for one
        answer = await asyncio.wait_for(append(log, batch(producer_id=5, epoch=0, sequence=4)), _ANSWER_S)
        assert (answer.base_offset, answer.leader_epoch) == (_END, epoch)
        for one in (log, restarted.partition(TOPIC, 0)):
            assert [item.base_offset for item in await read_all(one)] == [0, 3, _END]
            assert await one.epoch_end(epoch) == (epoch, _END + 1)
            assert one.stray is None
        assert not logs.stray_logs
        (group,) = await store.read("XINFO", "GROUPS", log.keys.log)
        assert group[b"last-delivered-id"] == (b"%d-0" % _END)


async def test_repair_clamps_what_counted_on_the_stray_entry(store: Store, settings: Settings, client: Any) -> None:
    """Earlier versions fenced a log where the stray entry ended: the newest epoch stays, from the true end on."""
    async with broker(settings) as logs:
        partition = await _partition(store)
        log = logs.partition(TOPIC, 0)
        await append(log, count=_END)
        added = await store.command("XADD", log.keys.log, "*", "key", "a")
        far = added.partition(b"-")[0].decode()
        await store.command("HSET", log.keys.meta, "epochs", f"0:0 3:{far}", "log_start", far, "local_start", far)
        await store.command("HSET", log.keys.producers, "offset", far)

        await asyncio.to_thread(log_repair.repair, client, partition)

        log.void("load")
        known = await asyncio.wait_for(log.end_offset(), _ANSWER_S)
        assert (known.log_start_offset, known.high_watermark, known.leader_epoch) == (_END, _END, 3)
        assert await log.epoch_end(0) == (0, _END)
        assert await log.epoch_end(3) == (3, _END)
        assert (await asyncio.wait_for(append(log), _ANSWER_S)).base_offset == _END


async def test_repair_keeps_transactions_aborted_below_the_local_start(
    store: Store, settings: Settings, client: Any
) -> None:
    """Their batches are in the archive alone: no entry of the log leads to them."""
    async with broker(settings) as logs:
        partition = await _partition(store)
        log = logs.partition(TOPIC, 0)
        for _ in range(_END):
            await append(log)
        await store.command("XADD", log.keys.log, "*", "key", "a")
        await store.command("HSET", log.keys.meta, "local_start", 2)
        await store.command("HSET", log.keys.producers, "offset", _END + 9, "aborted", f"7:0:1:2,8:1:{_END + 5}:2")

        await asyncio.to_thread(log_repair.repair, client, partition)

        log.void("load")
        assert (await log.refresh()).transactions.aborted == [(7, 0, 1, 2)]


async def test_repair_removes_indexed_times_above_the_new_end(store: Store, settings: Settings, client: Any) -> None:
    """Records appended afterwards have other times at these offsets."""
    async with broker(settings, entry_bytes_max=1) as logs:
        partition = await _partition(store)
        log = logs.partition(TOPIC, 0)
        for number in range(200):
            await append(log, timestamp=1_000 + number)
            if number in {79, 159}:
                log.write_progress()
        await store.command("PING")
        assert await store.command("ZCARD", log.keys.times) == 2
        for number in range(100, 200):
            await store.command("XDEL", log.keys.log, f"{number}-1")

        end, _ = await asyncio.to_thread(log_repair.repair, client, partition)
        log.void("load")
        for number in range(50):
            await append(log, timestamp=2_000 + number)

        assert end == 100
        assert await log.offset_for_timestamp(1_050) == (50, 1_050)
        for number in range(50):
            assert await log.offset_for_timestamp(2_000 + number) == (100 + number, 2_000 + number)


async def test_repair_while_brokers_append_loses_nothing(store: Store, settings: Settings, client: Any) -> None:
    """A stray entry between good ones stops nobody: the copy continues until it has all."""
    async with broker(settings) as logs, broker(settings) as another:
        partition = await _partition(store)
        both = [one.partition(TOPIC, 0) for one in (logs, another)]
        await append(both[0], count=3)
        await store.command("XADD", both[0].keys.log, "0-7", "key", "a")
        for _ in range(200):
            await append(both[0])
        running = asyncio.create_task(asyncio.to_thread(log_repair.repair, client, partition))
        bases = [(await append(both[number % 2])).base_offset for number in range(300)]
        _, left_out = await running

        assert [stray.entry_id for stray in left_out] == [(0, 7)]
        assert bases == list(range(203, 503))
        assert [item.base_offset for item in await read_all(both[1])] == [0, *range(3, 503)]


async def test_repair_of_another_streams_swap_is_refused(
    store: Store, settings: Settings, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker(settings) as logs:
        partition = await _partition(store)
        log = logs.partition(TOPIC, 0)
        await append(log, count=3)
        await store.command("XADD", log.keys.log, "*", "key", "a")
        before = await store.read("XRANGE", log.keys.log, "-", "+")
        copied = log_repair._Copy.go_on

        def swapped_by_a_restore(copy: Any) -> None:
            copied(copy)
            client.hincrby(log.keys.meta, "log_version", 1)

        monkeypatch.setattr(log_repair._Copy, "go_on", swapped_by_a_restore)
        with pytest.raises(CommandFailed, match="nothing changed"):
            await asyncio.to_thread(log_repair.repair, client, partition)

        assert await store.read("XRANGE", log.keys.log, "-", "+") == before
        assert not await store.command("EXISTS", log.keys.restored)
        assert [item.base_offset for item in batches_of(await read(log, 0))] == [0]
