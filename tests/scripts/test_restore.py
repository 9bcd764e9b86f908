"""Restore: what left Redis is there again, under its own ids, for brokers that serve and append meanwhile."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.logs import TOPIC, append, broker, given_log, read, read_all
from tests.support.segments import archive
from tidegate.errors import OffsetOutOfRange
from tidegate.log.logs import Logs
from tidegate.log.partition import PartitionLog
from tidegate.log.retention import Kept, trim
from tidegate.records.record import read_records
from tidegate.settings import Settings
from tidegate.store.keys import LogKeys
from tidegate.store.store import Store
from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.errors import ArchiveConflict, DataLoss, PipelineError, UsageError
from tidegate_pipeline.redis_access import connect
from tidegate_pipeline.replay import restore as restoring
from tidegate_pipeline.replay.restore import Restore, restore
from tidegate_pipeline.topics import Topic

COUNT = 40
TOPIC_OF_PIPELINE = Topic("default", TOPIC.name, TOPIC.topic_hex, 1)


@pytest.fixture
def client(settings: Settings) -> Iterator[Any]:
    """The pipeline's own connection."""
    opened = connect(settings.redis_url)
    yield opened
    opened.close()


@asynccontextmanager
async def two_tiers(
    store: Store, settings: Settings, root: Path, *, log_start: int, local_start: int = 60
) -> AsyncIterator[tuple[Logs, PartitionLog, list[bytes]]]:
    """80 records in 40 entries, the first 34 archived; Redis holds offsets from 60 on. And what there was before."""
    await given_log(store)
    async with broker(settings, archive_path=str(root), entry_bytes_max=1) as logs:
        log = logs.partition(TOPIC, 0)
        for number in range(COUNT):
            await append(log, count=2, value=b"%03d" % number * 50, timestamp=1_000 + number)
        before = [bytes(item.buffer) for item in await read_all(log)]
        await archive(log, root, 68)
        await trim(log, await log.refresh(), Kept(log_start, local_start, 0))
        yield logs, log, before


def one(client: Any, root: Path) -> Restore:
    return Restore(client, "tidegate", TOPIC_OF_PIPELINE, 0, ArchiveFolder.open(str(root)), 1.0)


async def call(client: Any, root: Path, start: int, **options: Any) -> dict[str, object]:
    (done,) = await asyncio.to_thread(
        restore, client, "tidegate", TOPIC_OF_PIPELINE, [0], start, options.pop("to", None),
        ArchiveFolder.open(str(root)), retry_s=1.0, **{"anyway": True, "dry_run": False} | options,
    )  # fmt: skip
    return done


async def serve(log: PartitionLog) -> list[bytes]:
    return [bytes(item.buffer) for item in await read_all(log)]


@pytest.mark.parametrize(("log_start", "start"), [(60, 0), (60, 21), (0, 0), (10, 20)])
async def test_restored_log_is_served_and_appended_to(
    store: Store, settings: Settings, tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch, log_start: int,
    start: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(restoring, "ENTRY_BATCHES_MAX", 4)
    async with two_tiers(store, settings, tmp_path, log_start=log_start) as (_, log, before):
        assert await serve(log) == before[log_start // 2 :]
        await store.command("XGROUP", "CREATE", log.keys.log, "billing", "62-1")

        done = await call(client, tmp_path, start)
        first_of_redis = await store.read("XRANGE", log.keys.log, "-", "+", "COUNT", 1)
        known = await log.end_offset()

        assert done == {"partition": 0, "from": start, "to": 60, "batches": 30 - start // 2}
        assert (known.log_start_offset, known.local_start_offset) == (min(log_start, start), start)
        assert first_of_redis[0][0] == b"%d-1" % (start - start % 2)
        assert await store.read("XLEN", log.keys.log) == 10 + -(-(30 - start // 2) // 4)
        shutil.rmtree(tmp_path / "raw")  # what is in Redis needs no file
        log.archive_files._footers.clear()
        log.archive_files._row_groups.clear()
        appended = await append(log, count=2, value=b"new", timestamp=2_000)
        assert appended.base_offset == 80
        for offset in range(start, 82):
            found = await read(log, offset, bytes_max=1)
            assert found.end_offset == offset - offset % 2 + 2
        groups = await store.read("XINFO", "GROUPS", log.keys.log)
        assert [(group[b"name"], group[b"last-delivered-id"]) for group in groups] == [(b"billing", b"62-1")]
        assert await call(client, tmp_path, start) == {"partition": 0, "from": start, "to": start, "batches": 0}
        async with broker(settings) as another:
            assert (await another.partition(TOPIC, 0).end_offset()).local_start_offset == start


async def test_brokers_append_meanwhile(store: Store, settings: Settings, tmp_path: Path, client: Any) -> None:
    async with two_tiers(store, settings, tmp_path, log_start=60) as (_, log, before), broker(settings) as another:
        running = asyncio.create_task(call(client, tmp_path, 0))
        for number in range(300):
            await append((log, another.partition(TOPIC, 0))[number % 2], count=1, value=b"%d" % number)
        await running

        read_back = await read_all(log)
        assert [bytes(item.buffer) for item in read_back[:COUNT]] == before
        values = [int(record.value or b"") for item in read_back[COUNT:] for record in read_records(item)]
        assert values == list(range(300))


async def test_without_the_restore_the_offsets_are_out_of_range(
    store: Store, settings: Settings, tmp_path: Path
) -> None:
    async with two_tiers(store, settings, tmp_path, log_start=60) as (_, log, _):
        with pytest.raises(OffsetOutOfRange):
            await read(log, 0)


async def state_of(store: Store, keys: LogKeys) -> tuple[dict[bytes, bytes], int]:
    """The log's meta without the tallies, which its broker adds to about once a second, and its number of entries."""
    meta, entry_count = await store.read("HGETALL", keys.meta), await store.read("XLEN", keys.log)
    return {name: value for name, value in meta.items() if name not in (b"bytes", b"batches")}, entry_count


async def test_restore_impossible_target_is_refused_and_changes_nothing(
    store: Store, settings: Settings, tmp_path: Path, client: Any
) -> None:
    async with two_tiers(store, settings, tmp_path, log_start=60) as (_, log, _):
        keys = log.keys
        before = await state_of(store, keys)

        with pytest.raises(UsageError, match=r"retention\.ms is 604800000, so brokers would delete it again"):
            await call(client, tmp_path, 0, anyway=False)
        with pytest.raises(UsageError, match="--to must reach 60"):
            await call(client, tmp_path, 0, to=30)
        await store.command("HSET", keys.archive, "start", 10)
        with pytest.raises(DataLoss, match="from 0 on there would be a hole"):
            await call(client, tmp_path, 0)
        await store.command("HSET", keys.archive, "start", 0)
        (tmp_path / one(client, tmp_path)._index.segments(0)[1].file).unlink()
        with pytest.raises(DataLoss, match="the log was not changed"):
            await call(client, tmp_path, 0)
        client.zremrangebyrank(keys.segments, 1, 1)  # as gc does where it forgets what no broker serves
        with pytest.raises(DataLoss, match="names no segment with offset 16"):
            await call(client, tmp_path, 0)
        client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)  # what it uses may fall by itself
        with pytest.raises(UsageError, match="raise maxmemory, or restore less"):
            await call(client, tmp_path, 0)
        client.config_set("maxmemory", 0)

        after = await state_of(store, keys)
        assert after == before
        assert not await store.read("EXISTS", keys.restored)


async def test_stream_of_another_restore_or_server_is_not_replaced(
    store: Store, settings: Settings, tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_tiers(store, settings, tmp_path, log_start=60) as (_, log, _):
        asked = one(client, tmp_path)
        plan = asked.plan(0)
        assert plan is not None
        copy = Restore._copy

        def copied(self: Restore, after: str) -> str:
            last = copy(self, after)
            client.hincrby(log.keys.meta, "log_version", 1)  # another one was first
            return last

        monkeypatch.setattr(Restore, "_copy", copied)
        with pytest.raises(ArchiveConflict, match="was replaced"):
            await asyncio.to_thread(asked.run, plan)

        monkeypatch.setattr(Restore, "_copy", lambda self, after: after)
        monkeypatch.setattr(restoring, "_LAST_ENTRIES", 3)
        with pytest.raises(PipelineError, match="grows faster than it can be copied"):
            await asyncio.to_thread(asked.run, plan)
        assert await store.read("XLEN", log.keys.log) < 40


async def test_trim_while_the_new_stream_is_filled_leaves_the_log_as_it_was(
    store: Store, settings: Settings, tmp_path: Path, client: Any
) -> None:
    """What went before it was copied would be a hole that nobody sees."""
    async with two_tiers(store, settings, tmp_path, log_start=0) as (_, log, before):
        asked = one(client, tmp_path)
        plan = asked.plan(0)
        assert plan is not None
        await trim(log, await log.refresh(), Kept(0, 66, 0))

        with pytest.raises(ArchiveConflict, match="brokers trimmed Redis meanwhile"):
            await asyncio.to_thread(asked.run, plan)
        assert (await log.end_offset()).local_start_offset == 66
        assert await call(client, tmp_path, 0) == {"partition": 0, "from": 0, "to": 66, "batches": 33}
        assert await serve(log) == before


async def test_two_restores_at_once_leave_the_log_as_it_was(
    store: Store, settings: Settings, tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second removes what the first has filled: what that continues to copy is not the whole log."""
    async with two_tiers(store, settings, tmp_path, log_start=60) as (_, log, before):
        first, copy = one(client, tmp_path), Restore._copy
        plan = first.plan(0)
        assert plan is not None

        def copied(self: Restore, after: str) -> str:
            if self is first:
                second = one(client, tmp_path)
                monkeypatch.setattr(second, "_swap", lambda *_: None)
                second.run(plan)
            return copy(self, after)

        monkeypatch.setattr(Restore, "_copy", copied)
        with pytest.raises(ArchiveConflict, match="one of the streams, was replaced"):
            await asyncio.to_thread(first.run, plan)
        assert [bytes(item.buffer) for item in await read_all(log)] == before[30:]


async def test_restore_dry_run_lists_its_steps(store: Store, settings: Settings, tmp_path: Path, client: Any) -> None:
    async with two_tiers(store, settings, tmp_path, log_start=60) as (_, log, _):
        length = await store.read("XLEN", log.keys.log)

        assert await call(client, tmp_path, 7, dry_run=True) == {"partition": 0, "from": 7, "to": 60}
        assert await store.read("XLEN", log.keys.log) == length
