"""The replay sink without Spark: tasks that fail at each step and are tried again, as Spark would."""

from __future__ import annotations

import asyncio
import pickle
import random
import shutil
from collections.abc import AsyncIterator, Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2

from tests.support.archive import raw_rows
from tests.support.logs import FakeTopic, broker, given_log, read_all
from tests.support.markers import build_marker
from tests.support.segments import placed
from tidegate.log.logs import Logs
from tidegate.records.batch import Codec
from tidegate.records.build import NewRecord, build_batch
from tidegate.records.record import read_records
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate_pipeline.errors import CorruptLimit, DataLoss, PipelineError, UsageError
from tidegate_pipeline.redis_access import connect
from tidegate_pipeline.replay import sink, target, translation
from tidegate_pipeline.replay.partitioner import murmur2, murmur2_of, partition_of
from tidegate_pipeline.replay.sink import Plan, Replayed, ReplayWriter, plan_of, ranges_of
from tidegate_pipeline.replay.translation import Row, translate
from tidegate_pipeline.topics import Topic

PARTITIONS = 3
TARGET: Any = FakeTopic(name="new", partition_count=PARTITIONS)

MakePlan = Callable[..., Plan]


@pytest.fixture
async def logs(store: Store, settings: Settings) -> AsyncIterator[Logs]:
    """A broker, and the target's logs."""
    async with broker(settings) as opened:
        for index in range(PARTITIONS):
            await given_log(store, TARGET, index)
        yield opened


@pytest.fixture
def plan(settings: Settings, tmp_path: Path) -> MakePlan:
    """Make a plan from `old` to `new`."""

    def make(**changes: Any) -> Plan:
        options: dict[str, Any] = {
            "url": settings.redis_url, "prefix": "tidegate", "job": "copy", "source_topic": "old", "source_id": "00",
            "target": Topic("default", "new", TARGET.topic_hex, PARTITIONS), "spread": 0, "records_per_s": 0.0,
            "batch_bytes_max": 1 << 20, "archive": str(tmp_path), "retry_s": 0.5,
        }  # fmt: skip
        return Plan(**options | changes)

    return make


def stored(base: int, count: int, *, keys: bool = False, **fields: Any) -> tuple[int, bytes]:
    """A batch of records that carry their own offset."""
    records = [
        NewRecord(b"%d" % (base + i), b"k%d" % ((base + i) % 7) if keys else None, 1_000 + base + i, [("h", b"1")])
        for i in range(count)
    ]
    return base, build_batch(records, **fields)


def some_batches(keys: bool = False) -> list[tuple[int, bytes]]:
    """60 records with all codecs, a hole at 30, a producer with a transaction and its marker at 45."""
    found = [stored(base, 5, keys=keys, codec=base // 5 % 5) for base in range(0, 30, 5)]
    found.append(stored(31, 14, keys=keys, producer_id=4, producer_epoch=2, base_sequence=7, attributes=0x10))
    found.append(
        (45, build_marker(producer_id=4, producer_epoch=2, coordinator_epoch=0, committed=True, timestamp_ms=5))
    )
    return [*found, stored(46, 14, keys=keys, codec=Codec.LZ4)]


EXPECTED = [*range(30), *range(31, 45), *range(46, 60)]


def attempt(plan: Plan, batches: list[tuple[int, bytes]], source: int = 0) -> None:
    """A micro-batch of one task, as Spark runs it: the writer is pickled for the task and made again for the commit."""
    writer = pickle.loads(pickle.dumps(ReplayWriter(plan)))
    half = len(batches) // 2
    parts = [part for part in (batches[:half], batches[half:]) if part]
    following = batches[0][0]
    rows = []
    for part in parts:
        placed_there = [placed(batch, base) for base, batch in part]
        rows.append(raw_rows(placed_there, topic="old", partition=source, topic_id="00", from_offset=following))
        following = rows[-1].column("last_offset")[-1].as_py() + 1
    message = pickle.loads(pickle.dumps(writer.write(iter(rows))))
    assert isinstance(message, Replayed)
    ReplayWriter(plan).commit([message, None], 0)


async def values(logs: Logs, index: int) -> list[int]:
    """What the records of a target partition carry, in order; each batch is checked."""
    found: list[int] = []
    for batch in await read_all(logs.partition(TARGET, index)):
        batch.verify_crc()
        assert not batch.is_transactional
        assert not batch.is_control
        assert batch.producer_id == -1
        found += [int(record.value or b"-1") for record in read_records(batch)]
    return found


async def check(logs: Logs, plan: Plan, indexes: list[int], source: int = 0) -> None:
    """Every record once and in order, and every offset translated to where its record stands."""
    by_partition = {index: await values(logs, index) for index in indexes}
    assert sorted(value for found in by_partition.values() for value in found) == EXPECTED
    assert all(found == sorted(found) for found in by_partition.values())
    rows = plan.table.read(source)
    assert sum(row.target_last - row.target_base + 1 for row in rows) == len(EXPECTED)
    for offset in range(60):
        positions = translate({source: rows}, {source: offset})
        for index, position in positions.items():
            left = [value for value in by_partition[index] if value >= offset]
            passed_over = set(left) - set(by_partition[index][position:])
            assert passed_over == set()
            if not plan.spread:
                assert by_partition[index][position:] == left
    assert translate({source: rows}, {source: 60}) == {i: len(found) for i, found in by_partition.items() if found}
    for index in indexes:
        assert not await logs.store.read("EXISTS", plan.target.keys("tidegate", index).translations)


def failing_after(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, calls: int, after: bool) -> None:
    """Let the call after `calls` good ones fail, before or after it did its work."""
    real, counted = getattr(where, name), [0]

    def faulty(*args: Any, **kwargs: Any) -> Any:
        counted[0] += 1
        if counted[0] <= calls:
            return real(*args, **kwargs)
        if after:
            real(*args, **kwargs)
        raise PipelineError("injected")

    monkeypatch.setattr(where, name, faulty)


@pytest.mark.parametrize("spread", [0, PARTITIONS])
@pytest.mark.parametrize(
    ("where", "name", "calls", "after"),
    [
        (target, "run", 0, False),
        (target, "run", 0, True),
        (target, "run", 1, True),
        (target, "run", 4, True),
        (sink, "Replayed", 0, False),
        (translation.Table, "add", 0, False),
        (translation.pq, "write_table", 0, False),
        (translation.pq, "write_table", 0, True),
        (translation.Table, "add", 0, True),
        (target.Target, "forget", 0, False),
        (target.Target, "forget", 0, True),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_failing_at_each_step_and_trying_again_writes_each_record_once(
    logs: Logs, plan: MakePlan, monkeypatch: pytest.MonkeyPatch, spread: int, where: Any, name: str, calls: int,
    after: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(sink, "entries_of", lambda batches, _: ([one] for one in batches))
    made, batches = plan(spread=spread), some_batches(keys=True)
    with monkeypatch.context() as failing:
        failing_after(failing, where, name, calls, after)
        with pytest.raises(PipelineError, match="injected"):
            await asyncio.to_thread(attempt, made, batches)

    await asyncio.to_thread(attempt, made, batches)
    await asyncio.to_thread(attempt, made, batches)  # a lost checkpoint

    await check(logs, made, list(range(PARTITIONS)) if spread else [0])


@pytest.mark.parametrize("spread", [0, PARTITIONS])
@pytest.mark.parametrize(("where", "name"), [(translation.Table, "add"), (target.Target, "forget")])
async def test_lost_checkpoint_and_other_micro_batches(
    logs: Logs, plan: MakePlan, monkeypatch: pytest.MonkeyPatch, spread: int, where: Any, name: str
) -> None:
    made, batches = plan(spread=spread), some_batches(keys=True)
    with monkeypatch.context() as failing:
        failing_after(failing, where, name, 0, after=False)
        with pytest.raises(PipelineError, match="injected"):
            await asyncio.to_thread(attempt, made, batches[:6])

    for part in (batches[:2], batches[2:7], batches[7:]):
        await asyncio.to_thread(attempt, made, [*part])

    await check(logs, made, list(range(PARTITIONS)) if spread else [0])


@pytest.mark.parametrize("spread", [0, PARTITIONS])
async def test_batches_lost_by_a_fail_over_are_written_and_translated_again(
    logs: Logs, plan: MakePlan, settings: Settings, spread: int
) -> None:
    made, batches = plan(spread=spread, retry_s=0.1), some_batches(keys=True)
    await asyncio.to_thread(attempt, made, batches)
    client = connect(settings.redis_url)
    indexes = list(range(PARTITIONS)) if spread else [0]
    for index in indexes:  # the first half of the writes is left
        keys = made.target.keys("tidegate", index)
        for name in (keys.log, keys.replayed, keys.producers, keys.times):
            client.delete(name)
        client.execute_command("XGROUP", "CREATE", keys.log, "made", "0-0", "MKSTREAM")
    logs.drop_states()
    shutil.rmtree(made.archive)
    half = [*batches[:4]]
    await asyncio.to_thread(attempt, made, half)
    left = made.table.read(0)
    made.table.add(row._replace(source_base=row.source_base + 20, source_last=row.source_last + 20) for row in left)

    made.table.truncate(0, 20)  # as the job does when it starts
    assert made.table.read(0) == left
    with pytest.raises(DataLoss, match="a fail-over lost those between"):
        await asyncio.to_thread(attempt, made, batches[6:])
    await asyncio.to_thread(attempt, made, batches)

    await check(logs, made, indexes)
    client.close()


async def test_offset_range_slices_batches(logs: Logs, plan: MakePlan) -> None:
    made = plan(ranges={1: (3, 48)})

    await asyncio.to_thread(attempt, made, some_batches(), 1)

    found = await values(logs, 1)
    assert found == [value for value in EXPECTED if 3 <= value < 48]
    rows = made.table.read(1)
    assert translate({1: rows}, {1: 3}) == {1: 0}
    assert translate({1: rows}, {1: 40}) == {1: found.index(40)}
    assert translate({1: rows}, {1: 47}) == {1: found.index(47)}


@pytest.mark.parametrize("spread", [0, 2])
async def test_offset_range_widened_continues_within_the_last_batch(logs: Logs, plan: MakePlan, spread: int) -> None:
    for end in (33, 48, 60):
        made = plan(ranges={0: (3, end)}, spread=spread)
        await asyncio.to_thread(attempt, made, some_batches(keys=True), 0)

    found = [value for index in range(spread or 1) for value in await values(logs, index)]
    assert sorted(found) == [value for value in EXPECTED if value >= 3]
    assert sum(row.target_last - row.target_base + 1 for row in made.table.read(0)) == len(found)


@pytest.mark.parametrize("spread", [0, 2])
async def test_range_may_end_in_a_batch_that_two_tasks_share(logs: Logs, plan: MakePlan, spread: int) -> None:
    """As where the log start was raised into a batch: the archive's task has a hole, Redis's the batch, whole."""
    batches = [placed(batch, base) for base, batch in (stored(0, 5), stored(6, 4, codec=Codec.LZ4), stored(10, 5))]
    offsets = [*range(5), *range(6, 15)]
    fields: dict[str, Any] = {"topic": "old", "topic_id": "00"}
    for border in (7, 9):
        before = raw_rows([batches[0], (5, 5), (6, border - 1)], from_offset=0, **fields)
        after = raw_rows(batches[1:], from_offset=border, **fields)
        for end in range(1, 16):
            was = [await values(logs, index) for index in range(spread or 1)]
            for later in (end, 15):
                made = plan(job=f"{border}-{end}", ranges={0: (0, later)}, spread=spread)
                for rows in (before, after):
                    await asyncio.to_thread(ReplayWriter(made).write, iter([rows]))
                now = [await values(logs, index) for index in range(spread or 1)]
                found = [found[len(old) :] for old, found in zip(was, now, strict=True)]
                assert sorted(chain(*found)) == [offset for offset in offsets if offset < later], (border, end)
                assert all(one == sorted(one) for one in found)


async def test_timestamps_codecs_and_headers_stay(logs: Logs, plan: MakePlan) -> None:
    await asyncio.to_thread(attempt, plan(spread=1, target=plan().target), [stored(0, 3, codec=Codec.ZSTD, keys=True)])

    (batch,) = await read_all(logs.partition(TARGET, 0))
    assert batch.codec == Codec.ZSTD
    assert [(r.timestamp, r.key, r.headers) for r in read_records(batch)] == [
        (1_000, b"k0", (("h", b"1"),)), (1_001, b"k1", (("h", b"1"),)), (1_002, b"k2", (("h", b"1"),)),
    ]  # fmt: skip


async def test_refusals_name_the_remedy(logs: Logs, plan: MakePlan) -> None:
    base, good = stored(0, 3)
    bad = bytearray(good)
    bad[-1] ^= 1
    with pytest.raises(CorruptLimit, match="the batch at offset 0 of partition 0 is corrupt"):
        await asyncio.to_thread(attempt, plan(), [(base, bytes(bad))])
    with pytest.raises(UsageError, match=r"raise max\.message\.bytes of new"):
        await asyncio.to_thread(attempt, plan(batch_bytes_max=10), [(base, good)])
    assert await values(logs, 0) == []
    with pytest.raises(UsageError, match=r"set archive\.path"):
        await asyncio.to_thread(attempt, plan(archive=""), [(base, good)])
    with pytest.raises(UsageError, match="no password in an option"):
        plan_of({"topic": "new", "redis.url": "redis://:secret@r:1/0"})


async def test_retention_finds_what_only_a_replay_wrote(logs: Logs, plan: MakePlan, store: Store) -> None:
    await asyncio.to_thread(attempt, plan(), [stored(0, 1)])

    assert await store.read("ZRANGE", store.cluster_keys.upkeep, 0, -1) == [
        f"default/new:0:{TARGET.topic_hex}".encode()
    ]


def test_keys_map_to_the_partitions_of_kafka() -> None:
    for length in range(40):
        for seed in range(20):
            key = bytes((seed * 37 + i * 11) % 256 for i in range(length))
            assert murmur2(key) == aiokafka_murmur2(key) & 0xFFFFFFFF
            assert 0 <= partition_of(key, 7) < 7


def test_keys_of_a_column_are_hashed_as_each_by_itself() -> None:
    chance = random.Random(1)
    keys = [chance.choice([None, chance.randbytes(chance.randrange(40))]) for _ in range(500)]
    column = pa.array(keys, pa.binary())

    for first, count in ((0, 500), (7, 100), (3, 0)):
        expected = [murmur2(key or b"") for key in keys[first : first + count]]
        assert murmur2_of(column.slice(first, count)).tolist() == expected
    assert murmur2_of(pa.nulls(2, pa.binary())).tolist() == [murmur2(b"")] * 2


def test_positions_of_spread_partitions_pass_nothing_over() -> None:
    rows = {0: [Row(0, 0, 9, 0, 0, 3), Row(0, 10, 19, 0, 10, 13)], 1: [Row(1, 0, 9, 0, 4, 9), Row(1, 0, 9, 1, 0, 3)]}

    assert translate(rows, {0: 10, 1: 10}) == {0: 10, 1: 4}
    assert translate(rows, {0: 20, 1: 5}) == {0: 4, 1: 0}
    assert translate(rows, {0: 20, 1: 10}) == {0: 14, 1: 4}


def test_ranges() -> None:
    assert ranges_of("0:100-200,3:0-9") == {0: (100, 200), 3: (0, 9)}
    assert ranges_of("") == {}
