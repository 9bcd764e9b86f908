"""Compaction on a real server: last values, readers and producers that do not notice, races with appends, refusals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.logs import TOPIC, append, batches_of, broker, given_log, read, read_all
from tidegate.errors import KafkaError, StoreUnavailable
from tidegate.log import compaction, compactor
from tidegate.log.compaction import Compacted, compact
from tidegate.log.compactor import Compactor
from tidegate.log.partition import PartitionLog
from tidegate.monitoring.lag_reading import READ_LAG
from tidegate.records.batch import Batch, Codec
from tidegate.records.batch_header import DELETE_HORIZON
from tidegate.records.build import NewRecord, build_batch
from tidegate.records.record import read_records
from tidegate.settings import Settings
from tidegate.store.store import Store

Pairs = Sequence[tuple[bytes, bytes | None]]


def topic_of(**configs: Any) -> Any:
    config = replace(TOPIC.config, cleanup_policy=frozenset({"compact"}), **configs)
    return replace(TOPIC, config=config)


COMPACTED = topic_of()
ITEM = b"default/orders:0:" + TOPIC.topic_hex.encode()


def keyed(pairs: Pairs, timestamp: int = 1_000, codec: int = Codec.NONE, **fields: Any) -> Batch:
    records = [NewRecord(value, key, timestamp) for key, value in pairs]
    return Batch.parse(build_batch(records, codec=codec, **fields))


async def add(log: PartitionLog, *pairs: tuple[bytes, bytes | None], **fields: Any) -> int:
    """Append a batch; returns its base offset."""
    return (await append(log, keyed(pairs, **fields))).base_offset


async def compacted(log: PartitionLog) -> Compacted | None:
    """Compact what is there now, except the last entry."""
    return await compact(log, (await log.refresh()).end)


async def records(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    """Every record that a reader from the log start receives."""
    return [(one.offset, one.key, one.value) for batch in await read_all(log) for one in read_records(batch)]


async def new_streams(log: PartitionLog) -> list[bytes]:
    found: list[bytes] = await log.store.command("KEYS", log.keys.compacted("*"))
    return found


async def test_log_58_compaction_keeps_offsets_and_last_values(store: Store, settings: Settings) -> None:
    await given_log(store)
    topic = topic_of(delete_retention_ms=0, min_cleanable_dirty_ratio=0.0)
    async with broker(settings) as logs, broker(settings) as others:
        log, other = logs.partition(topic, 0), others.partition(topic, 0)
        await add(log, (b"k1", b"a"), (b"k2", b"b"), (b"k1", b"c"))
        await add(log, (b"k2", None))
        await add(log, (b"end", b"1"))
        assert len(await records(other)) == 5  # its cache holds the log as it was

        first = await compacted(log)
        await add(log, (b"end", b"2"))
        await add(log, (b"end", b"3"))
        await asyncio.sleep(0.01)  # the tombstone's horizon is in the past
        log.progress.write()
        second = await compacted(log)

        assert first is not None
        assert second is not None
        assert (first.offset, first.records_dropped, second.records_dropped) == (4, 2, 2)
        for one in (log, other):
            assert await records(one) == [(2, b"k1", b"c"), (5, b"end", b"2"), (6, b"end", b"3")]
            assert (await one.refresh()).end == 7
        (batch,) = batches_of(await read(other, 0, bytes_max=1))
        assert (batch.base_offset, batch.last_offset_delta, batch.record_count) == (0, 2, 1)
        assert (await other.refresh()).log_version == 2


async def test_log_139_tombstone_stays_until_its_horizon(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(topic_of(delete_retention_ms=3_600_000), 0)
        await add(log, (b"k", None), (b"l", b"v"), timestamp=5_000)
        await add(log, (b"end", b"1"))
        now_ms = int(time.time() * 1000)

        await compacted(log)

        batch = (await read_all(log))[0]
        assert batch.attributes & DELETE_HORIZON
        assert batch.base_timestamp >= now_ms + 3_000_000
        assert [one.timestamp for one in read_records(batch)] == [5_000, 5_000]


async def test_lag_times_of_a_compacted_log_are_those_of_the_next_records(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(topic_of(delete_retention_ms=3_600_000), 0)
        await add(log, (b"k", None), timestamp=5_000)  # 0: has a delete horizon
        await add(log, (b"a", b"1"), timestamp=6_000)  # 1: dropped
        await add(log, (b"a", b"2"), timestamp=7_000)
        await append(log, Batch.parse(build_batch([NewRecord(b"no key", None, 8_000)])))  # 3: emptied
        await add(log, (b"b", b"1"), timestamp=9_000)
        await compacted(log)

        reply = await store.run(READ_LAG, [log.keys.log, log.keys.meta], *range(6))

        assert await records(log) == [(0, b"k", None), (2, b"a", b"2"), (4, b"b", b"1")]
        assert list(map(int, reply[-6:])) == [5_000, 7_000, 7_000, 9_000, 9_000, -1]


@pytest.mark.parametrize("codec", list(Codec))
async def test_compaction_keeps_codec_and_drops_whole_batches(store: Store, settings: Settings, codec: Codec) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(COMPACTED, 0)
        for number in range(20):
            await add(log, (b"a", b"%d" % number), (b"only%d" % (number % 2), b"v" * 100), codec=codec)
        done = await compacted(log)

        assert done is not None
        assert done.records_dropped == 35
        assert [one[:2] for one in await records(log)] == [
            (35, b"only1"), (36, b"a"), (37, b"only0"), (38, b"a"), (39, b"only1"),
        ]  # fmt: skip
        assert {batch.codec for batch in await read_all(log)} == {codec}
        assert await store.command("XLEN", log.keys.log) == 3
        assert await new_streams(log) == []
        assert await store.command("PTTL", log.keys.log) == -1


async def test_compaction_reads_at_every_offset_return_the_next_record(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs, broker(settings) as others:
        log = logs.partition(COMPACTED, 0)
        for number in range(60):
            await add(log, (b"k%d" % (number % 7), b"%d" % number), (b"x", b"y"))
        await compacted(log)
        left = [offset for offset, _, _ in await records(log)]

        for one in (log, others.partition(COMPACTED, 0)):
            for offset in range(120):
                found = batches_of(await read(one, offset, bytes_max=1))
                assert found[0].next_offset > offset
                following = [
                    record.offset for batch in found for record in read_records(batch) if record.offset >= offset
                ]
                if following:
                    assert following[0] == next(kept for kept in left if kept >= offset)


async def test_compaction_last_batch_of_the_round_stays_without_records(store: Store, settings: Settings) -> None:
    """Its records have no key: they were appended before the topic was compacted."""
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(topic_of(min_cleanable_dirty_ratio=0.0), 0)
        await add(log, (b"a", b"1"))
        await append(log, count=2)
        await append(log, count=2)
        await add(log, (b"end", b"1"))
        done = await compacted(log)

        assert done is not None
        assert done.records_dropped == 4
        assert [(batch.base_offset, batch.record_count) for batch in await read_all(log)] == [(0, 1), (3, 0), (5, 1)]
        assert await log.max_timestamp() == (0, 1_000)
        await add(log, (b"end", b"2"))
        assert await compacted(log) is not None
        assert [batch.base_offset for batch in await read_all(log)] == [0, 5, 6]


async def test_compaction_keeps_producers_sequences(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs, broker(settings) as others:
        log, other = logs.partition(COMPACTED, 0), others.partition(COMPACTED, 0)
        producer = {"producer_id": 7, "producer_epoch": 0}
        assert await add(log, (b"a", b"1"), base_sequence=0, **producer) == 0
        for number in range(3):
            await add(log, (b"a", b"x%d" % number))
        await compacted(log)

        assert await add(other, (b"a", b"1"), base_sequence=0, **producer) == 0  # a duplicate
        assert await add(other, (b"b", b"2"), base_sequence=1, **producer) == 4
        assert [one[0] for one in await records(other)] == [2, 3, 4]


async def test_compaction_between_snapshot_and_pages_of_a_load_is_noticed(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first entry behind the older snapshot is kept, so no gap shows: the log has another version."""
    await given_log(store)
    async with broker(settings) as logs, broker(settings) as others:
        log, other = logs.partition(COMPACTED, 0), others.partition(COMPACTED, 0)
        producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        await add(log, (b"first", b"1"))
        assert await add(log, (b"a", b"1"), **producer) == 1
        for number in range(3):
            await add(log, (b"a", b"x%d" % number))
        rounds: list[Compacted | None] = []
        read = Store.read

        async def compacted_behind_the_snapshot(store: Store, *args: Any, **how: Any) -> Any:
            reply = await read(store, *args, **how)
            if args[0] == "HGETALL" and not rounds:
                rounds.append(None)
                rounds[0] = await compacted(log)
            return reply

        with monkeypatch.context() as patched:
            patched.setattr(Store, "read", compacted_behind_the_snapshot)
            await other.ensure()

        assert [one is not None for one in rounds] == [True]
        assert [one[0] for one in await records(log)] == [0, 3, 4]
        assert await add(other, (b"a", b"1"), **producer) == 1  # a duplicate


async def test_compaction_while_brokers_append_loses_nothing(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs, broker(settings) as others:
        both = [one.partition(COMPACTED, 0) for one in (logs, others)]
        latest: dict[bytes, tuple[int, bytes]] = {}
        stop = False

        async def produce(log: PartitionLog, name: bytes) -> int:
            count = 0
            while not stop:
                key, value = b"%b-%d" % (name, count % 11), b"%d" % count
                latest[key] = await add(log, (key, value)), value
                count += 1
            return count

        running = [asyncio.create_task(produce(log, b"p%d" % number)) for number, log in enumerate(both)]
        runs = []
        while len(runs) < 8:
            await asyncio.sleep(0.05)
            await store.command("HSET", both[0].keys.meta, "bytes", 1 << 30)
            runs.append(await compacted(both[len(runs) % 2]))
        stop = True
        counts = await asyncio.gather(*running)

        end = (await both[0].refresh()).end
        assert sum(counts) == end
        assert sum(done is not None for done in runs) >= 2
        for log in both:
            assert {key: (offset, value) for offset, key, value in await records(log)} == latest
            assert len(await records(log)) < end


async def test_compaction_rounds_bound_the_map_of_keys(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "KEYS_MAX", 10)
    monkeypatch.setattr(compaction, "PAGE_BYTES", 1)
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(topic_of(min_cleanable_dirty_ratio=0.0), 0)
        for number in range(120):
            await add(log, (b"k%d" % (number % 40), b"%d" % number))
        done = await compacted(log)

        assert done is not None
        assert done.rounds > 5
        assert {key: offset for offset, key, _ in await records(log)} == {b"k%d" % (n % 40): n for n in range(80, 120)}


async def test_compaction_limits_lag_and_ratio(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        now_ms = int(time.time() * 1000)
        log = logs.partition(topic_of(min_compaction_lag_ms=60_000, min_cleanable_dirty_ratio=0.9), 0)
        await add(log, (b"a", b"1"), timestamp=now_ms - 120_000)
        await add(log, (b"a", b"2"), timestamp=now_ms - 90_000)
        await add(log, (b"a", b"3"), timestamp=now_ms)
        await add(log, (b"a", b"4"), timestamp=now_ms - 120_000)
        done = await compacted(log)
        assert done is not None
        assert done.offset == 2  # the third is too young, so nothing behind it is compacted
        assert [one[0] for one in await records(log)] == [1, 2, 3]

        log.topic = topic_of(min_cleanable_dirty_ratio=0.9)
        assert await compacted(log) is None  # half of it is new
        log.topic = topic_of(min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=600_000)
        assert await compacted(log) is None
        log.topic = topic_of(min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=1)
        assert await compacted(log) is not None
        assert [one[0] for one in await records(log)] == [2, 3]


async def test_compaction_ratio_ignores_what_was_trimmed(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings, entry_bytes_max=1) as logs:
        log = logs.partition(topic_of(min_cleanable_dirty_ratio=0.5), 0)
        for number in range(20):
            await add(log, (b"k%d" % number, b"1" * 100))
        await _noted_bytes(log)
        assert await compacted(log) is not None
        await log.delete_records(15)
        for _ in range(10):
            await add(log, (b"again", b"2" * 100))
        await _noted_bytes(log)
        assert await compacted(log) is not None


async def _noted_bytes(log: PartitionLog) -> None:
    """Write the log's size as brokers do each second, and wait until Redis has it."""
    before = await log.store.command("HGET", log.keys.meta, "bytes")
    log.write_progress()
    async with asyncio.timeout(30):
        while await log.store.command("HGET", log.keys.meta, "bytes") == before:
            await asyncio.sleep(0.01)


async def test_compaction_of_other_policies_does_nothing(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        for _ in range(3):
            await add(log, (b"a", b"1"))
        assert await compacted(log) is None
        log.topic = topic_of(remote_storage=True)
        assert await compacted(log) is None
        assert len(await records(log)) == 3


async def test_compaction_that_is_killed_leaves_an_expiring_stream(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(COMPACTED, 0)
        for _ in range(3):
            await add(log, (b"a", b"1"))
        paused, times_to_live = asyncio.Event(), []

        async def pause() -> None:
            for key in await new_streams(log):
                times_to_live.append(await store.command("PTTL", key))
            paused.set()
            await asyncio.sleep(3_600)

        running = asyncio.create_task(compact(log, 3, pause))
        await paused.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

        assert len(times_to_live) == 1
        assert 0 < times_to_live[0] <= 60_000
        assert len(await records(log)) == 3
        await add(log, (b"a", b"2"))
        assert await compacted(log) is not None
        assert [one[0] for one in await records(log)] == [2, 3]


CHANGES = {
    "trimmed": ("HSET", "meta", "log_start", "1"),
    "replaced": ("HINCRBY", "meta", "log_version", "1"),
    "failed over": ("HINCRBY", "meta", "incarnation", "1"),
    "without its snapshot": ("DEL", "producers"),
    "deleted": ("HSET", "meta", "state", "deleted"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_compaction_of_a_changed_log_is_refused(store: Store, settings: Settings, change: str) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(COMPACTED, 0)
        for _ in range(3):
            await add(log, (b"a", b"1"))
        command, key, *rest = CHANGES[change]

        async def interfere() -> None:
            await store.command(command, getattr(log.keys, key), *rest)

        before = await store.read("XRANGE", log.keys.log, "-", "+")
        with pytest.raises(KafkaError):
            await compact(log, 3, interfere)

        assert await store.read("XRANGE", log.keys.log, "-", "+") == before
        await store.command("PING")
        assert await new_streams(log) == []


async def test_compaction_into_a_stream_that_lost_entries_is_refused(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(COMPACTED, 0)
        for _ in range(3):
            await add(log, (b"a", b"1"))

        async def lose() -> None:
            for stream in await new_streams(log):
                await store.command("XTRIM", stream, "MAXLEN", 0)

        with pytest.raises(KafkaError):
            await compact(log, 3, lose)

        async def expire() -> None:
            for stream in await new_streams(log):
                await store.command("DEL", stream)

        with pytest.raises(StoreUnavailable):
            await compact(log, 3, expire)
        assert len(await records(log)) == 3


async def test_compactor_compacts_up_to_the_end_of_an_earlier_visit(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(COMPACTED, 0)
        for _ in range(3):
            await add(log, (b"a", b"1"))
        visits = Compactor(logs.store, 1_000)
        await visits.visit(log, ITEM)
        await visits.visit(log, ITEM)
        for _ in range(2):
            await add(log, (b"a", b"1"))
        assert len(await records(log)) == 5  # appends of unknown outcome may be that young

        monkeypatch.setattr(compactor, "OUTCOME_KNOWN_S", -1e9)
        monkeypatch.setattr(compactor, "_COMMAND_TIMEOUTS", -1_000_000)
        visits.start()
        visits.offer(log, ITEM)
        for _ in range(600):
            if len(await records(log)) == 3:
                break
            await asyncio.sleep(0.05)
        assert [one[0] for one in await records(log)] == [2, 3, 4]
        await visits.close()


async def test_compaction_after_trim_and_delete_records(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings, entry_bytes_max=1) as logs:
        log = logs.partition(topic_of(), 0)
        for number in range(30):
            await add(log, (b"k%d" % (number % 5), b"1"), (b"x", b"2"), timestamp=1_000 + number)
        await log.delete_records(21)
        done = await compacted(log)

        assert done is not None
        assert await log.max_timestamp() == (58, 1_029)
        left = [one[0] for one in await records(log)]
        assert left == [48, 50, 52, 54, 56, 57, 58, 59]
        assert await log.delete_records(51) == 51
        assert await log.offset_for_timestamp(1_026) == (52, 1_026)
        assert await log.max_timestamp() == (58, 1_029)
