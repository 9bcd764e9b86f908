"""Offsets that left Redis are read from the archive, byte for byte, across the border and while it moves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.support.logs import TOPIC, append, batches_of, broker, given_log, read, read_all
from tests.support.segments import archive, publish, write_segment
from tidegate.errors import KafkaStorageError, OffsetOutOfRange
from tidegate.log import archive_files
from tidegate.log.archive_files import ArchiveFiles
from tidegate.log.logs import Logs
from tidegate.log.partition import PartitionLog
from tidegate.log.retention import Kept, trim
from tidegate.records.batch import Batch
from tidegate.records.segment_file import SegmentFile
from tidegate.records.segments import Segment
from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.store.store import Store

COUNT = 40


async def given_two_tiers(log: PartitionLog, root: Path, border: int = 30, **options: Any) -> list[bytes]:
    """40 batches of 2 records; offsets below `2 * border` are in the archive alone. Returns what was there before."""
    for number in range(COUNT):
        await append(log, count=2, value=b"%03d" % number * 50, timestamp=1_000 + number)
    before = [bytes(item.buffer) for item in await read_all(log)]
    await archive(log, root, 2 * (border + 4), **options)
    await trim(log, await log.refresh(), Kept(0, 2 * border, 0))
    log.void("what is cached would be read")
    return before


def files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.parquet"))


@asynccontextmanager
async def cold_broker(settings: Settings, root: Path, **changes: Any) -> AsyncIterator[Logs]:
    async with broker(settings, archive_path=str(root), entry_bytes_max=1, **changes) as logs:
        yield logs


def same(batches: list[Batch], expected: list[bytes]) -> bool:
    return [bytes(item.buffer) for item in batches] == expected


@pytest.mark.parametrize("kept_bytes", [0, 64 << 20])
async def test_log_is_read_whole_across_the_border(
    store: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_bytes: int
) -> None:
    monkeypatch.setattr(archive_files, "CACHE_BYTES_MAX", kept_bytes)
    await given_log(store)
    async with cold_broker(settings, tmp_path) as logs:
        log = logs.partition(TOPIC, 0)
        before = await given_two_tiers(log, tmp_path)
        known = await log.end_offset()

        assert (known.log_start_offset, known.local_start_offset) == (0, 60)
        first = await store.command("XRANGE", log.keys.log, "-", "+", "COUNT", 1)
        assert same(await read_all(log), before)
        for offset in range(2 * COUNT):
            found = batches_of(await read(log, offset, bytes_max=1))
            assert same(found, [before[offset // 2]])
        assert logs.archive_files.failures == 0
        assert first is not None


async def test_read_takes_whole_batches_within_its_bytes(store: Store, settings: Settings, tmp_path: Path) -> None:
    await given_log(store)
    async with cold_broker(settings, tmp_path) as logs:
        log = logs.partition(TOPIC, 0)
        before = await given_two_tiers(log, tmp_path)
        size = len(before[0])
        await read(log, 0)  # keeps the first row group

        assert same(batches_of(await read(log, 0, 3 * size - 1)), before[:2])
        assert same(batches_of(await read(log, 0, 3 * size)), before[:3])
        assert same(batches_of(await read(log, 3, 0)), before[1:2])
        nothing = await read(log, 3, size - 1, at_least_one=False)
        assert (nothing.size, nothing.end_offset, nothing.log_start_offset) == (0, 3, 0)


async def test_archive_read_ahead_serves_sequential_readers(store: Store, settings: Settings, tmp_path: Path) -> None:
    await given_log(store)
    async with cold_broker(settings, tmp_path) as logs:
        log = logs.partition(TOPIC, 0)
        before = await given_two_tiers(log, tmp_path)
        size = len(before[0])
        archived_reads = logs.archive_files
        await read(log, 0, 4 * size)
        assert archived_reads.row_groups_read == 1
        await read(log, 8, 2 * size)
        while archived_reads.row_groups_read < 3:
            await asyncio.sleep(0.001)
        assert same(batches_of(await read(log, 12, 4 * size)), before[6:10])  # the rest, and of what was read ahead
        await read(log, 40, size)  # a seek is no going on
        await asyncio.sleep(0.05)
        assert archived_reads.row_groups_read <= 5


async def test_readers_of_one_offset_share_one_read(
    store: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given_log(store)
    async with cold_broker(settings, tmp_path) as logs:
        log = logs.partition(TOPIC, 0)
        before = await given_two_tiers(log, tmp_path)
        reads: list[int] = []
        whole = SegmentFile.read
        monkeypatch.setattr(SegmentFile, "read", lambda self, index: (reads.append(index), whole(self, index))[1])
        found = await asyncio.gather(*(read(log, 10, len(before[0])) for _ in range(50)))

        assert all(same(batches_of(one), before[5:6]) for one in found)
        assert reads == [1]


async def test_archive_slow_file_delays_only_its_reader(
    store: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given_log(store)
    async with cold_broker(settings, tmp_path) as logs:
        log = logs.partition(TOPIC, 0)
        before = await given_two_tiers(log, tmp_path)
        go, whole = threading.Event(), SegmentFile.read
        monkeypatch.setattr(SegmentFile, "read", lambda self, index: (go.wait(60), whole(self, index))[1])
        try:
            logs.archive_files.timeout_s = 60
            slow = asyncio.ensure_future(read(log, 0))
            assert same(batches_of(await read(log, 70)), before[35:])
            assert not slow.done()
            slow.cancel()
            logs.archive_files.timeout_s = 0.5
            with pytest.raises(KafkaStorageError, match=r"no answer from the archive within 0\.5 s"):
                await read(log, 0)
        finally:
            go.set()
        assert same(batches_of(await read(log, 0, 1)), before[:1])


async def test_stale_log_state_learns_that_offsets_are_archived(
    store: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.log.logs.POLL_MS", 60_000)
    await given_log(store)
    async with (
        cold_broker(settings, tmp_path) as others,
        cold_broker(settings, tmp_path) as logs,
    ):
        log, stale = logs.partition(TOPIC, 0), others.partition(TOPIC, 0)
        await stale.end_offset()
        for number in range(COUNT):
            await append(log, count=2, value=b"x" * 3_000, timestamp=number)
        before = [bytes(item.buffer) for item in await read_all(log)]
        await stale.end_offset()
        await archive(log, tmp_path, 80)
        await trim(log, await log.refresh(), Kept(0, 60, 0))
        stale.pages.clear()
        assert stale.state is not None and stale.state.local_start == 0

        for offset in (0, 31, 59, 60):
            found = batches_of(await read(stale, offset, 1))
            assert same(found, before[offset // 2 : offset // 2 + 1])


async def test_offset_below_the_log_start_is_out_of_range_in_either_tier(
    store: Store, settings: Settings, tmp_path: Path
) -> None:
    await given_log(store)
    async with cold_broker(settings, tmp_path) as logs:
        log = logs.partition(TOPIC, 0)
        await given_two_tiers(log, tmp_path)
        assert await log.delete_records(20) == 20
        known = await log.end_offset()

        assert (known.log_start_offset, known.local_start_offset) == (20, 60)
        with pytest.raises(OffsetOutOfRange):
            await read(log, 19)
        assert (await read(log, 20)).log_start_offset == 20


async def test_archive_compacted_segment_is_located_again(
    store: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_files, "CACHE_BYTES_MAX", 0)
    await given_log(store)
    async with cold_broker(settings, tmp_path) as logs:
        log = logs.partition(TOPIC, 0)
        before = await given_two_tiers(log, tmp_path)
        old = await store.command("ZRANGE", log.keys.segments, 0, -1)
        assert same(batches_of(await read(log, 0, 1)), before[:1])
        await publish(log, write_segment(tmp_path, before[:34], row_group_batches=5))
        await store.command("ZREM", log.keys.segments, *old)
        for path in files(tmp_path):
            if path.name.encode() in b"".join(old):
                path.unlink()

        assert same(await read_all(log), before)
        assert logs.archive_files.failures == 0


async def test_segments_that_are_compacted_while_many_read_lose_and_repeat_nothing(
    store: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_files, "CACHE_BYTES_MAX", 4_000)
    await given_log(store)
    async with cold_broker(settings, tmp_path) as logs:
        log = logs.partition(TOPIC, 0)
        before = await given_two_tiers(log, tmp_path, segment_batches=2, row_group_batches=2)

        async def consume(bytes_max: int) -> list[Batch]:
            batches: list[Batch] = []
            for _ in range(4):
                offset = 0
                while offset < 60:
                    found = await read(log, offset, bytes_max)
                    batches += batches_of(found)
                    offset = found.end_offset
            return batches

        async def compactions() -> None:
            for size in (4, 8, 16, 34):
                for at in range(0, 34, size):
                    old = await store.command("ZRANGE", log.keys.segments, 2 * at, 2 * (at + size) - 1, "BYSCORE")
                    merged = write_segment(tmp_path, before[at : min(at + size, 34)], row_group_batches=2)
                    await publish(log, merged)
                    await store.command("ZREM", log.keys.segments, *old)
                    for member in old:
                        (tmp_path / Segment.from_json(member).file).unlink()

        *found, _ = await asyncio.gather(*(consume(size) for size in (1, 900, 2_000, 10_000)), compactions())

        assert all(
            same([one for one in batches if one.base_offset < 60], before[:30] * 4) for batches in found if batches
        )
        assert len(files(tmp_path)) == 1
        assert logs.archive_files.failures == 0


async def test_file_that_is_replaced_again_and_again_is_followed(
    store: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given_log(store)
    async with cold_broker(settings, tmp_path) as logs:
        log, opened, sizes = logs.partition(TOPIC, 0), logs.archive_files.footer, [4, 8, 16]
        before = await given_two_tiers(log, tmp_path, segment_batches=2, row_group_batches=2)

        async def replaced_first(path: str) -> Any:
            if sizes:
                old = await store.command("ZRANGE", log.keys.segments, 0, -1)
                size = sizes.pop(0)
                for at in range(0, 34, size):
                    batches = before[at : min(at + size, 34)]
                    await publish(log, write_segment(tmp_path, batches, row_group_batches=2))
                await store.command("ZREM", log.keys.segments, *old)
                for member in old:
                    (tmp_path / Segment.from_json(member).file).unlink()
            return await opened(path)

        monkeypatch.setattr(logs.archive_files, "footer", replaced_first)
        assert same(batches_of(await read(log, 2, bytes_max=1)), [before[1]])
        assert (sizes, logs.archive_files.failures) == ([], 0)


async def test_log_start_raised_past_a_deleted_file_is_out_of_range(
    store: Store, settings: Settings, tmp_path: Path
) -> None:
    await given_log(store)
    async with cold_broker(settings, tmp_path) as logs, cold_broker(settings, tmp_path) as others:
        log, other = logs.partition(TOPIC, 0), others.partition(TOPIC, 0)
        await given_two_tiers(log, tmp_path)
        await other.end_offset()
        await log.delete_records(40)
        for path in files(tmp_path):
            path.unlink()

        with pytest.raises(OffsetOutOfRange):
            await read(other, 3)


@pytest.mark.parametrize("fault", ["no file", "torn", "no index", "no archive"])
async def test_unreadable_segment_is_a_storage_error_and_a_log_line(
    store: Store, settings: Settings, tmp_path: Path, fault: str
) -> None:
    await given_log(store)
    async with cold_broker(settings, tmp_path) as logs:
        await given_two_tiers(logs.partition(TOPIC, 0), tmp_path)
        keys = logs.partition(TOPIC, 0).keys
    paths = files(tmp_path)
    if fault == "no file":
        paths[0].parent.rename(tmp_path / "elsewhere")
    if fault == "torn":
        for path in paths:
            path.write_bytes(path.read_bytes()[:100])
    if fault == "no index":
        await store.command("DEL", keys.segments)
    path = None if fault == "no archive" else str(tmp_path)

    async with broker(settings, archive_path=path) as logs:
        log = logs.partition(TOPIC, 0)
        with structlog.testing.capture_logs() as lines:
            for _ in range(3):
                with pytest.raises(KafkaStorageError):
                    await asyncio.wait_for(read(log, 0), 30)
        reported = [line for line in lines if line["event"] == "archive_read_failed"]

        assert logs.archive_files.failures >= 3
        assert [line["log_level"] for line in reported] == ["warning"]
        assert (await read(log, 60)).size > 0


async def test_batches_that_are_in_quarantine_are_passed_over(store: Store, settings: Settings, tmp_path: Path) -> None:
    await given_log(store)
    async with cold_broker(settings, tmp_path) as logs:
        log = logs.partition(TOPIC, 0)
        before = await given_two_tiers(log, tmp_path)
        await store.command("DEL", log.keys.segments)
        bad = {*range(2), *range(8, 12), *range(16, 24), *range(29, 30)}
        segments = [
            write_segment(
                tmp_path,
                [before[number] for number in range(at, min(at + 8, 30)) if number not in bad],
                offsets=(2 * at, min(2 * at + 16, 60)),
            )
            for at in range(0, 30, 8)
        ]
        await publish(log, *segments)

        assert same(await read_all(log), [batch for number, batch in enumerate(before) if number not in bad])
        assert (await read(log, 33)).end_offset > 48
        assert batches_of(await read(log, 58, 1))[0].base_offset == 60
        assert await log.offset_for_timestamp(1_010) == (24, 1_012)
        assert await log.offset_for_timestamp(1_017) == (48, 1_024)
        assert await log.offset_for_timestamp(1_029) == (60, 1_030)
        assert logs.archive_files.failures == 0


def test_broker_with_an_archive_that_cannot_be_opened_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotStart, match="cannot be opened at nope://x"):
        ArchiveFiles(Settings(archive_path="nope://x"))
    monkeypatch.setitem(__import__("sys").modules, "tidegate.records.segment_file", None)
    with pytest.raises(CannotStart, match=r"needs pyarrow .*tidegate\[archive\]"):
        ArchiveFiles(Settings(archive_path="/somewhere"))


async def test_trim_while_many_read_loses_and_repeats_nothing(store: Store, settings: Settings, tmp_path: Path) -> None:
    await given_log(store)
    async with cold_broker(settings, tmp_path) as logs, cold_broker(settings, tmp_path) as others:
        log, other = logs.partition(TOPIC, 0), others.partition(TOPIC, 0)
        for number in range(200):
            await append(log, count=2, value=b"%03d" % number * 400, timestamp=number)
        before = [bytes(item.buffer) for item in await read_all(log)]
        await archive(log, tmp_path, 400, segment_batches=32, row_group_batches=8)

        async def consume(reader: PartitionLog, bytes_max: int) -> list[Batch]:
            batches: list[Batch] = []
            offset = 0
            while offset < 400:
                found = await read(reader, offset, bytes_max)
                batches += batches_of(found)
                assert found.end_offset > offset
                offset = found.end_offset
                reader.pages.clear()
                await asyncio.sleep(0)
            return batches

        async def trims() -> None:
            for local_start in range(0, 400, 10):
                await trim(log, await log.refresh(), Kept(0, local_start, 0))

        sizes = (1, 3_000, 5_000, 20_000)
        reading = [consume(reader, size) for reader in (log, other) for size in sizes]
        *found, _ = await asyncio.gather(*reading, trims())

        assert all(same(batches, before) for batches in found if batches is not None)
        assert (await log.end_offset()).local_start_offset == 390


async def test_log_that_closes_as_a_read_begins_answers_it(store: Store, settings: Settings, tmp_path: Path) -> None:
    await given_log(store)
    async with cold_broker(settings, tmp_path) as logs:
        log = logs.partition(TOPIC, 0)
        await given_two_tiers(log, tmp_path)
        reported: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        log.archived_reads.read(0, 60, 1 << 20, True, reported.set_result)
        log.archived_reads.close()  # in the same tick
        async with asyncio.timeout(40):
            assert isinstance(await reported, KafkaStorageError)
