"""replay_append: each batch once, where the log ends, beside brokers that append at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support.logs import TOPIC, append, batch, batch_bytes, broker, given_log, read_all
from tests.support.valkey import ValkeyServer
from tidegate.log.logs import Logs
from tidegate.log.partitions import delete_partition
from tidegate.records.batch import Batch
from tidegate.settings import Settings
from tidegate.store.keys import LogKeys
from tidegate.store.store import Store
from tidegate_pipeline.errors import DataLoss, PipelineError
from tidegate_pipeline.redis_access import connect, run
from tidegate_pipeline.replay.batches import TargetBatch, without_producer
from tidegate_pipeline.replay.target import REPLAY_APPEND, Run, Target, read_server

SOURCE = "copy|old/00:0"


@pytest.fixture
def client(valkey: ValkeyServer) -> Iterator[Any]:
    """The pipeline's own connection."""
    opened = connect(valkey.url)
    yield opened
    opened.close()


@pytest.fixture
async def logs(store: Store, settings: Settings) -> AsyncIterator[Logs]:
    """A broker, and the target's log."""
    async with broker(settings) as opened:
        await given_log(store)
        yield opened


@pytest.fixture
def keys(store: Store) -> LogKeys:
    """Keys of the target's partition."""
    return store.log_keys(TOPIC.org, TOPIC.name, 0, TOPIC.topic_hex)


@pytest.fixture
def target(client: Any, keys: LogKeys) -> Target:
    """Where the replay writes."""
    return Target(client, "tidegate", keys, SOURCE, 0, "replay:copy", 0.5)


def target_batch(
    first: int, count: int = 1, timestamp: int = 1_000, start: int | None = None, **fields: Any
) -> TargetBatch:
    """A batch that stood at `first`; `start`: where the one before it ended."""
    stored = without_producer(batch(count=count, timestamp=timestamp, **fields))
    return TargetBatch(first if start is None else start, first, first + count - 1, stored, count)


async def test_replayed_batches_are_read_and_appended_to_by_brokers(logs: Logs, target: Target) -> None:
    log = logs.partition(TOPIC, 0)
    await append(log, count=2, producer_id=7, epoch=0, sequence=0)

    written = await asyncio.to_thread(
        target.append, [target_batch(10, 3, start=0), target_batch(13, 2), target_batch(20, 1, start=15)]
    )
    answer = await append(log, count=4, producer_id=7, epoch=0, sequence=2)  # its state is old by then

    assert written == 3
    assert answer.base_offset == 8
    assert [(b.base_offset, b.record_count, b.producer_id) for b in await read_all(log)] == [
        (0, 2, 7), (2, 3, -1), (5, 2, -1), (7, 1, -1), (8, 4, 7),
    ]  # fmt: skip
    for stored in await read_all(log):
        stored.verify_crc()
    assert target.runs(20) == [Run(10, 14, 2, 6), Run(20, 20, 7, 7)]


async def test_running_it_again_writes_nothing(logs: Logs, target: Target, keys: LogKeys, client: Any) -> None:
    await asyncio.to_thread(target.append, [target_batch(0, 2)])

    again = await asyncio.to_thread(
        target.append, [target_batch(0, 2), target_batch(2, 2)]
    )  # a reply was lost; more came since

    assert again == 1
    assert target.last_source_offset() == 3
    assert target.runs(3) == [Run(0, 1, 0, 1), Run(2, 3, 2, 3)]
    assert await asyncio.to_thread(target.append, [target_batch(0, 2), target_batch(2, 2)]) == 0
    assert client.xlen(keys.log) == 2
    assert client.hmget(keys.meta, "bytes", "batches") == [
        str(2 * len(target_batch(0, 2).batch)).encode(), b"2",
    ]  # fmt: skip


@pytest.mark.parametrize("first", [3, 6])
async def test_replay_gap_is_refused_before_anything_is_written(
    logs: Logs, keys: LogKeys, client: Any, first: int
) -> None:
    target = Target(client, "tidegate", keys, SOURCE, 0, "w", 0.05)
    await asyncio.to_thread(target.append, [target_batch(0, 5)])

    with pytest.raises(DataLoss, match=r"has source offsets up to 4 .* the next have"):
        await asyncio.to_thread(target.append, [target_batch(first, 4), target_batch(first + 4, 1)])

    assert client.xlen(keys.log) == 1


async def test_replay_later_task_waits_for_the_earlier_ones(
    logs: Logs, target: Target, client: Any, keys: LogKeys
) -> None:
    later = Target(client, "tidegate", keys, SOURCE, 0, "replay:copy", 5.0)

    waits = asyncio.create_task(asyncio.to_thread(later.append, [target_batch(4, 1)]))
    await asyncio.to_thread(target.append, [target_batch(0, 4)])

    assert await waits == 1
    assert target.runs(4) == [Run(0, 3, 0, 3), Run(4, 4, 4, 4)]


async def test_offsets_without_a_batch_are_noted(logs: Logs, target: Target, client: Any, keys: LogKeys) -> None:
    await asyncio.to_thread(target.append, [TargetBatch(0, 0, 9, b"", 0)])
    assert (target.last_source_offset(), client.exists(keys.log), client.xlen(keys.log)) == (9, 1, 0)

    await asyncio.to_thread(target.append, [target_batch(12, start=10), TargetBatch(13, 13, 20, b"", 0)])
    assert (target.last_source_offset(), target.runs(99)) == (20, [Run(12, 12, 0, 0)])


async def test_replay_states_in_the_table_are_dropped(logs: Logs, target: Target, client: Any, keys: LogKeys) -> None:
    other = Target(client, "tidegate", keys, "copy|old/00:1", 0, "replay:copy", 0.5)
    for start, first in ((0, 0), (1, 10), (11, 20)):
        await asyncio.to_thread(target.append, [target_batch(first, start=start)])
        await asyncio.to_thread(other.append, [target_batch(first, start=start)])

    target.forget(10)

    assert target.runs(100) == [Run(20, 20, 4, 4)]
    assert target.runs(19) == []
    assert [run.target_base for run in other.runs(100)] == [1, 3, 5]


async def test_view_starts_behind_what_was_put_there(logs: Logs, target: Target, settings: Settings) -> None:
    """The snapshot moves on where it stood at the end: nobody has to read a long replay to load a state."""
    await asyncio.to_thread(target.append, [target_batch(0, timestamp=500), target_batch(1, timestamp=900)])
    await asyncio.to_thread(target.append, [target_batch(2, timestamp=700)])

    async with broker(settings) as another:
        state = await another.partition(TOPIC, 0).load()
        found = await another.partition(TOPIC, 0).offset_for_timestamp(600)

    assert (state.snapshot_offset, state.end, state.max_timestamp, state.max_timestamp_base) == (3, 3, 900, 0)
    assert found == (1, 900)


async def test_snapshot_behind_the_end_is_left_alone(
    logs: Logs, target: Target, keys: LogKeys, client: Any, settings: Settings
) -> None:
    await append(logs.partition(TOPIC, 0), producer_id=7, epoch=0, sequence=0)

    await asyncio.to_thread(target.append, [target_batch(0)])

    assert client.exists(keys.producers, keys.times) == 0
    async with broker(settings) as another:
        assert 7 in (await another.partition(TOPIC, 0).load()).producers


async def test_replay_notifies_subscribers(logs: Logs, target: Target, keys: LogKeys, client: Any) -> None:
    reported = client.pubsub()
    reported.subscribe(keys.wake)
    assert reported.get_message(timeout=30)["type"] == "subscribe"

    await asyncio.to_thread(target.append, [target_batch(0, 3)])

    assert reported.get_message(timeout=30)["data"] == b"3:replay:copy"
    reported.close()


async def test_deleted_and_never_made(logs: Logs, target: Target, store: Store, keys: LogKeys, client: Any) -> None:
    await delete_partition(store, keys)
    with pytest.raises(DataLoss, match="the target is gone"):
        await asyncio.to_thread(target.append, [target_batch(0)])

    never = LogKeys.of("tidegate", "default", "never", 0, "cd" * 16)
    with pytest.raises(DataLoss):
        await asyncio.to_thread(Target(client, "tidegate", never, SOURCE, 0, "w", 0.5).append, [target_batch(0)])
    assert client.exists(never.log, never.meta, keys.log) == 0


async def test_replay_other_server_or_later_failover_epoch_is_asked_again(
    logs: Logs, target: Target, keys: LogKeys, client: Any, store: Store
) -> None:
    server = read_server(client, "tidegate", keys, 1.0)
    names = [keys.log, keys.meta, keys.times, keys.producers, keys.replayed, keys.translations]
    batches = (0, 0, 0, 0, target_batch(0).batch)
    elsewhere = run(client, REPLAY_APPEND, names, SOURCE, server.failover_epoch, "ab" * 20, keys.wake, "w", *batches)
    client.hset(keys.meta, "incarnation", server.failover_epoch + 1)
    earlier = run(client, REPLAY_APPEND, names, SOURCE, server.failover_epoch, server.replid, keys.wake, "w", *batches)

    assert elsewhere == earlier == [74]
    assert client.xlen(keys.log) == 0

    client.hset(store.cluster_keys.info, "incarnation", server.failover_epoch + 1)
    assert await asyncio.to_thread(target.append, [target_batch(0)]) == 1


async def test_replay_first_append_of_a_failover_epoch_is_fenced(
    logs: Logs, target: Target, keys: LogKeys, client: Any, store: Store
) -> None:
    await asyncio.to_thread(target.append, [target_batch(0, 4)])
    client.hset(store.cluster_keys.info, "incarnation", 5)
    client.hset(keys.meta, "replid", "b" * 40)  # another server, which may have had more
    target = Target(client, "tidegate", keys, SOURCE, 0, "w", 0.5)

    await asyncio.to_thread(target.append, [target_batch(4)])

    assert client.hmget(keys.meta, "incarnation", "epochs") == [b"5", b"0:0 4:4"]


async def test_without_a_broker_that_knows_the_server_nothing_is_written(
    logs: Logs, target: Target, client: Any, store: Store
) -> None:
    client.hset(store.cluster_keys.info, "master_replid", "00" * 20)

    with pytest.raises(PipelineError, match="no broker has connected to this Redis server"):
        await asyncio.to_thread(target.append, [target_batch(0)])


async def test_full_redis_refuses_cleanly(settings: Settings) -> None:
    server = ValkeyServer()
    try:
        changed = Settings(**{**settings.model_dump(), "redis_url": server.url})
        async with broker(changed) as logs:
            await given_log(logs.store)
            client = connect(server.url)
            keys = logs.store.log_keys(TOPIC.org, TOPIC.name, 0, TOPIC.topic_hex)
            target = Target(client, "tidegate", keys, SOURCE, 0, "w", 0.5)
            await asyncio.to_thread(target.append, [target_batch(0)])
            client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)  # what it uses may fall by itself

            with pytest.raises(PipelineError, match="Redis is full"):
                await asyncio.to_thread(target.append, [target_batch(1)])

            assert (client.xlen(keys.log), target.last_source_offset()) == (1, 0)
            client.config_set("maxmemory", 0)
            assert await asyncio.to_thread(target.append, [target_batch(1)]) == 1
            client.close()
    finally:
        server.stop()


async def test_entry_that_the_stream_refuses_is_not_noted(
    logs: Logs, target: Target, keys: LogKeys, client: Any
) -> None:
    await asyncio.to_thread(target.append, [target_batch(0)])
    client.execute_command("XSETID", keys.log, "900-1")  # what no broker does

    with pytest.raises(PipelineError, match="nothing was written: The ID specified in XADD is equal or smaller"):
        await asyncio.to_thread(target.append, [target_batch(1)])

    assert (target.last_source_offset(), target.runs(9)) == (0, [Run(0, 0, 0, 0)])


async def test_two_brokers_and_two_replays_of_one_job_at_once(
    logs: Logs, settings: Settings, keys: LogKeys, client: Any, valkey: ValkeyServer
) -> None:
    """Whoever comes first, each batch stands once, in its source's order, without gap or overlap."""
    replays = [Target(connect(valkey.url), "tidegate", keys, SOURCE, 0, f"w{i}", 5.0) for i in range(2)]
    sent = [target_batch(5 * i, 5) for i in range(60)]

    def replay(target: Target) -> int:
        return sum(target.append([one]) for one in sent)

    async def produce(own: Logs) -> None:
        for i in range(40):
            await append(own.partition(TOPIC, 0), batch(count=3, value=b"%d" % i, timestamp=2_000))

    async with broker(settings) as another:
        counts = await asyncio.gather(
            *(asyncio.to_thread(replay, target) for target in replays), produce(logs), produce(another)
        )
        stored = await read_all(another.partition(TOPIC, 0))

    assert counts[0] + counts[1] == 60
    ends = [0, *(b.base_offset + b.last_offset_delta + 1 for b in stored)]
    assert [b.base_offset for b in stored] == ends[:-1]
    assert len(stored) == 60 + 2 * 40
    runs = replays[0].runs(300)
    assert sum(one.source_last - one.source_base + 1 for one in runs) == 300
    replayed_bases = sorted(base for one in runs for base in range(one.target_base, one.target_last + 1, 5))
    assert replayed_bases == [b.base_offset for b in stored if b.record_count == 5]
    assert [one.target_base for one in runs] == sorted(one.target_base for one in runs)


def test_stored_bytes_stay_where_there_was_no_producer() -> None:
    plain, owned = batch_bytes(count=2), batch_bytes(count=2, producer_id=9, epoch=1, sequence=5)

    assert without_producer(Batch.parse(plain)) == plain
    cleared = Batch.parse(without_producer(Batch.parse(owned)))
    cleared.verify_crc()
    assert (cleared.producer_id, cleared.producer_epoch, cleared.base_sequence) == (-1, -1, -1)
    assert bytes(cleared.records) == bytes(Batch.parse(owned).records)
