"""Compaction, verification, and what gc removes and keeps; on real files and a real index."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from pyarrow.fs import FileInfo, FileSelector
from typer.testing import CliRunner

from tests.support.archive import TOPIC_ID, Archive, fill_log, log_keys, raw_rows, segment
from tests.support.segments import batches_from
from tests.support.valkey import ValkeyServer
from tidegate.records.segments import METADATA_KEY, Segment
from tidegate.store.keys import ClusterKeys
from tidegate_pipeline.archive.compaction import Compacted, compact, runs
from tidegate_pipeline.archive.index import ArchiveIndex
from tidegate_pipeline.archive.listing import committed_files
from tidegate_pipeline.archive.orphans import Collected, collect, stored_files, unpublished
from tidegate_pipeline.archive.place import Place
from tidegate_pipeline.archive.segment_writer import ArchiveFolder, Shape
from tidegate_pipeline.archive.upkeep import Upkeep
from tidegate_pipeline.archive.verification import Verified, verify
from tidegate_pipeline.cli import application
from tidegate_pipeline.errors import PipelineError, UsageError
from tidegate_pipeline.settings import PipelineSettings

PLACE = Place("default", "orders", TOPIC_ID, 0)
KNOWN = [PLACE, PLACE._replace(partition=1)]


@pytest.fixture
def archive(valkey: ValkeyServer, tmp_path: Path) -> Iterator[Archive]:
    opened = Archive(valkey.url, tmp_path)
    yield opened
    opened.client.close()


def sizes(*values: int) -> list[Segment]:
    return [segment(at, at + 1, str(at)).__class__(at, at, at, 1, size, 0, str(at)) for at, size in enumerate(values)]


@pytest.mark.parametrize(
    ("given_sizes", "merged"),
    [
        ([10], []),
        ([10, 10], [[10, 10]]),
        ([60, 1, 1], [[1, 1]]),
        ([60, 1], []),
        ([40, 1, 1], []),
        ([40, 20, 20], [[40, 20, 20]]),
        ([30, 30, 30, 30, 30], [[30, 30, 30], [30, 30]]),
        ([10, 10, 90, 10, 10], [[10, 10], [10, 10]]),
        ([0, 0, 5], []),
        ([0, 0], [[0, 0]]),
    ],
)
def test_neighbours_are_merged_where_it_is_worth_it(given_sizes: list[int], merged: list[list[int]]) -> None:
    found = [[one.size for one in run] for run in runs(sizes(*given_sizes), segment_bytes=100)]

    assert found == merged


@given(st.lists(st.integers(0, 120), max_size=60))
def test_merging_ends(given_sizes: list[int]) -> None:
    """Merged again and again there is a point at which nothing is left to merge; nothing grows beyond the target."""
    current, rounds = sizes(*given_sizes), 0
    while found := list(runs(current, segment_bytes=100)):
        for run in found:
            at = current.index(run[0])
            current[at : at + len(run)] = [
                Segment(
                    run[0].from_offset, run[0].base_offset, run[-1].last_offset, 0, sum(s.size for s in run), 0, "m"
                )
            ]
        rounds += 1
        assert rounds <= 10

    assert all(one.size <= max(100, *given_sizes) for one in current)


def test_compaction_leaves_the_same_batches_in_fewer_files(archive: Archive) -> None:
    batches = batches_from(0, [3] * 12, value=b"x" * 30)
    for at in range(0, 12, 2):
        archive.publish(batches[at : at + 2])
    archive.publish([(36, 39)])
    index, before = archive.index(), archive.index().segments()

    reported = compact(archive.root, index, PLACE, Shape(segment_bytes=1 << 20))

    (merged,) = index.segments()
    assert reported == Compacted(7, 1, sum(one.size for one in before), 0)
    assert (merged.from_offset, merged.last_offset, merged.records) == (0, 39, 36)
    assert archive.batches() == batches
    assert verify(archive.root, index, PLACE).problems == []
    assert archive.files() == 8, "readers of the old files continue"
    assert compact(archive.root, index, PLACE, Shape(segment_bytes=1 << 20)) == Compacted()


def test_compaction_that_is_too_late_changes_nothing(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = batches_from(0, [3] * 4)
    for batch in batches:
        archive.publish([batch])
    index, shape = archive.index(), Shape(segment_bytes=1 << 20)
    swap = ArchiveIndex.swap

    def overtaken(self: ArchiveIndex, new: Segment, old: list[Segment]) -> bool:
        monkeypatch.setattr(ArchiveIndex, "swap", swap)
        compact(archive.root, index, PLACE, shape)
        return swap(self, new, old)

    monkeypatch.setattr(ArchiveIndex, "swap", overtaken)

    assert compact(archive.root, index, PLACE, shape) == Compacted(given_up=1)
    assert len(index.segments()) == 1
    assert archive.batches() == batches


def test_compaction_does_not_hide_a_file_that_lost_batches(archive: Archive) -> None:
    batches = batches_from(0, [3] * 4)
    archive.publish(batches[:2])
    archive.publish(batches[2:])
    first, second = archive.index().segments()
    os.replace(archive.folder / second.file, archive.folder / first.file)
    (archive.folder / second.file).write_bytes((archive.folder / first.file).read_bytes())
    with archive.client.pipeline() as change:
        shorter = Segment(0, 0, 5, 99, first.size, first.max_timestamp, first.file)
        change.zrem(log_keys().segments, first.to_json()).zadd(log_keys().segments, {shorter.to_json(): 5}).execute()

    with pytest.raises(PipelineError, match="hold other records than the index says: run verify"):
        compact(archive.root, archive.index(), PLACE, Shape(segment_bytes=1 << 20))


def test_sound_archive_has_no_problems(archive: Archive) -> None:
    batches = batches_from(0, [3] * 10, value=b"x" * 100)
    archive.publish(batches[:4])
    archive.publish([(12, 14), *batches[5:]])

    reported = verify(archive.root, archive.index(), PLACE)

    assert reported == Verified(len(archive.index().segments()), 9, 27, 9 * len(batches[0]), [])
    assert verify(archive.root, archive.index(1), PLACE._replace(partition=1)) == Verified()


def test_archive_may_start_inside_a_batch(archive: Archive) -> None:
    """As a log does after DeleteRecords."""
    writer = archive.writer()
    rows = raw_rows(batches_from(0, [5, 5]), from_offset=3)

    writer.commit([writer.write(iter([rows]))], 0)

    assert archive.index().state()[:2] == (3, 10)
    assert verify(archive.root, archive.index(), PLACE).problems == []


def rewrite(path: Path, change: Any) -> None:
    """The same segment with changed rows."""
    file = parquet.ParquetFile(path)
    rows = file.read().to_pylist()
    change(rows)
    schema = file.schema_arrow.with_metadata({METADATA_KEY: file.metadata.metadata[METADATA_KEY]})
    parquet.write_table(
        file.read().__class__.from_pylist(rows, schema=schema), path, write_statistics=True, use_dictionary=False
    )


def flip(rows: list[dict[str, Any]]) -> None:
    batch = bytearray(rows[1]["batch"])
    batch[-1] ^= 1
    rows[1]["batch"] = bytes(batch)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (flip, "offsets 3 to 5: the CRC of the record batch is wrong"),
        (lambda rows: rows.pop(1), "offsets 6 to 8 come after 2"),
        (lambda rows: rows[0].update(crc=1), "offsets 0 to 2: the batch has another crc"),
        (lambda rows: rows[0].update(batch=rows[0]["batch"] + b"x"), "offsets 0 to 2: the batch has another length"),
        (lambda rows: rows[2].update(base_offset=7), "the batch has another base_offset"),
        (lambda rows: rows.pop(), "the index says Segment"),
    ],
)
def test_check_names_the_fault_of_a_file(archive: Archive, change: Any, problem: str) -> None:
    archive.publish(batches_from(0, [3, 3, 3]), segmentBytes="9999")
    (published,) = archive.index().segments()
    rewrite(archive.folder / published.file, change)

    problems = verify(archive.root, archive.index(), PLACE).problems

    assert any(problem in one and published.file in one for one in problems), problems


def test_missing_and_foreign_files_and_a_broken_index_are_named(archive: Archive) -> None:
    for batch in batches_from(0, [3, 3, 3, 3]):
        archive.publish([batch])
    one, two, three, four = archive.index().segments()
    (archive.folder / one.file).unlink()
    (archive.folder / two.file).write_bytes((archive.folder / four.file).read_bytes())
    archive.client.zrem(log_keys().segments, three.to_json())

    problems = verify(archive.root, archive.index(), PLACE).problems

    assert any("there is no such file" in problem and one.file in problem for problem in problems)
    assert any("from_offset is 9, the index says 3" in problem for problem in problems)
    assert any("begins at 9, not at 6" in problem for problem in problems)


def test_check_names_an_archive_with_an_index_that_claims_more_than_its_segments(archive: Archive) -> None:
    archive.publish(batches_from(0, [3]))
    archive.client.hset(log_keys().archive, "end", 7)

    assert verify(archive.root, archive.index(), PLACE).problems == [
        "orders-0: the last segment ends at 3, the archive at 7"
    ]
    archive.client.delete(log_keys().segments)
    assert verify(archive.root, archive.index(), PLACE).problems == ["orders-0: no segment of offsets 0 to 6"]


def test_orphans_only_old_unpublished_files_are_removed(archive: Archive) -> None:
    batches = batches_from(0, [3] * 4)
    archive.publish(batches)
    writer = archive.writer()
    writer.commit([writer.write(iter([]))], 1)
    archive.publish(batches)  # a micro-batch that ran again
    archive.publish(batches, partition=1)
    again = unpublished(archive.index(), stored_files(archive.root)[PLACE])
    now = time.time()

    young = collect(archive.root, archive.client, "tidegate", "default", KNOWN, now - 3600)
    old = collect(archive.root, archive.client, "tidegate", "default", KNOWN, now + 60)

    assert young == Collected(young=len(again))
    assert old == Collected(len(again), sum(file.size for file in again))
    assert archive.files() == len(archive.index().segments()) + len(archive.index(1).segments())
    assert (archive.batches(), archive.batches(1)) == (batches, batches)


def test_files_that_were_merged_are_as_young_as_what_replaced_them(archive: Archive) -> None:
    batches = batches_from(0, [3] * 4)
    for batch in batches:
        archive.publish([batch])
    for one in archive.index().segments():
        os.utime(archive.folder / one.file, (1_000, 1_000))
    compact(archive.root, archive.index(), PLACE, Shape())

    assert collect(archive.root, archive.client, "tidegate", "default", KNOWN, time.time() - 60) == Collected(young=4)
    os.utime(archive.folder / archive.index().segments()[0].file, (1_000, 1_000))
    reported = collect(archive.root, archive.client, "tidegate", "default", KNOWN, time.time() - 60)
    assert (reported.files_removed, archive.batches()) == (4, batches)


def test_compacted_file_stays_where_the_index_names_those_before_it_again(archive: Archive) -> None:
    """Redis came back from a copy that is older than the compaction, whose old files are gone: it is all there is."""
    batches = batches_from(0, [3] * 4)
    for batch in batches:
        archive.publish([batch])
    old = archive.client.dump(log_keys().segments)
    compact(archive.root, archive.index(), PLACE, Shape())
    (merged,) = archive.index().segments()
    for path in archive.folder.rglob("*.parquet"):
        os.utime(path, (1_000, 1_000))
    collect(archive.root, archive.client, "tidegate", "default", KNOWN, time.time() - 60)
    assert archive.files() == 1
    archive.client.restore(log_keys().segments, 0, old, replace=True)

    reported = collect(archive.root, archive.client, "tidegate", "default", KNOWN, time.time() - 60)

    assert reported == Collected(young=1)
    assert (archive.folder / merged.file).exists()


def test_orphans_of_a_store_without_times_are_not_deleted(archive: Archive) -> None:
    writer = archive.writer()
    archive.publish(batches_from(0, [3] * 4))
    writer.write(iter([raw_rows(batches_from(0, [3]))]))
    files = archive.root.filesystem.get_file_info(FileSelector(str(archive.folder), recursive=True))
    timeless = [FileInfo(info.path, info.type, size=info.size) for info in files]
    store: Any = SimpleNamespace(get_file_info=lambda selector: timeless)
    root = ArchiveFolder(store, str(archive.folder))

    reported = collect(root, archive.client, "tidegate", "default", KNOWN, time.time() + 60)

    assert reported == Collected(young=1)


def test_orphans_above_the_end_of_the_archive_are_not_deleted(archive: Archive) -> None:
    """Redis came back from an old copy: what was archived since is all there is."""
    archive.publish(batches_from(0, [3]))
    index = archive.client.zrange(log_keys().segments, 0, -1, withscores=True)
    archive.publish(batches_from(3, [3]))
    archive.client.delete(log_keys().segments)
    archive.client.zadd(log_keys().segments, dict(index))
    archive.client.hset(log_keys().archive, "end", 3)

    assert collect(archive.root, archive.client, "tidegate", "default", KNOWN, time.time() + 60) == Collected(
        above_end=1
    )
    assert archive.files() == 2


def test_deleted_topics_are_removed_only_when_asked(archive: Archive) -> None:
    archive.publish(batches_from(0, [3] * 4))
    archive.publish(batches_from(0, [3]), partition=1)
    later, count = time.time() + 60, archive.files()

    kept = collect(archive.root, archive.client, "tidegate", "default", KNOWN[1:], later)
    with pytest.raises(UsageError, match="is this the right Redis"):
        collect(archive.root, archive.client, "tidegate", "default", [], later, deleted_topics=True)
    new = collect(archive.root, archive.client, "tidegate", "default", KNOWN[1:], later, deleted_topics=True)
    archive.client.hset(log_keys().meta, "state", "deleted")
    gone = collect(archive.root, archive.client, "tidegate", "default", KNOWN[1:], later, deleted_topics=True)

    assert kept == new == Collected(of_unknown_topics=count - 1)
    assert (gone.files_removed, archive.files()) == (count - 1, 1)
    assert archive.client.exists(log_keys().segments, log_keys().archive) == 0


def test_segments_below_the_log_start_are_dropped_and_then_collected(archive: Archive) -> None:
    batches = batches_from(0, [3] * 4)
    for batch in batches:
        archive.publish([batch])
    archive.client.hset(log_keys().meta, "log_start", 7)

    forgotten = archive.index().raise_start(7)
    reported = collect(archive.root, archive.client, "tidegate", "default", KNOWN, time.time() + 60)

    assert [one.from_offset for one in forgotten] == [0, 3]
    assert reported.files_removed == 2
    assert archive.batches() == batches[2:]
    assert verify(archive.root, archive.index(), PLACE).problems == []


class Verbs:
    """The verbs, over an archive whose topic is in the catalogue."""

    def __init__(self, archive: Archive, **settings: Any) -> None:
        record = {"id": TOPIC_ID, "partitions": 2, "state": "ready"}
        archive.client.hset(ClusterKeys("tidegate").topics, "default/orders", json.dumps(record))
        given = PipelineSettings.model_validate({"archive": {"path": str(archive.folder), **settings}})
        self.upkeep = Upkeep.of(given, archive.client)


def test_verbs_work_over_all_topics(archive: Archive) -> None:
    verbs = Verbs(archive, gc_grace=0).upkeep
    batches = batches_from(0, [3] * 6)
    for batch in batches:
        archive.publish([batch])
    archive.publish(batches, partition=1, segmentBytes="9999")
    for partition in (0, 1):
        fill_log(archive.client, log_keys(partition=partition), batches)

    listed = verbs.files("orders")
    planned, after_plan = verbs.compact(["ord*"], dry_run=True), verbs.files(None)
    compacted = verbs.compact(["orders"])
    verified = verbs.verify([])
    would, removed = verbs.gc(dry_run=True), verbs.gc()

    assert [(one["partition"], one["from_offset"]) for one in listed] == [(0, at) for at in range(0, 18, 3)] + [(1, 0)]
    assert after_plan == listed
    assert planned == compacted
    assert (compacted["segments_before"], compacted["segments_after"]) == (6, 1)
    assert (verified["partitions"], verified["segments"], verified["records"]) == (2, 2, 36)
    assert (verified["problems"], verified["unpublished_files"]) == ([], 6)
    assert verified["log_batches"] == verified["batches"] == 12
    assert would == removed
    assert (removed["files_removed"], archive.files()) == (6, 2)
    assert (archive.batches(), archive.batches(1)) == (batches, batches)


def test_gc_own_clock_ahead_leaves_the_file_of_a_compaction_under_way(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    verbs, real = Verbs(archive, gc_grace=86_400).upkeep, time.time
    archive.publish(batches_from(0, [3]))
    archive.writer().write(iter([raw_rows(batches_from(0, [3]))]))
    monkeypatch.setattr(time, "time", lambda: real() + 8 * 86_400)

    assert verbs.gc()["files_removed"] == 0
    assert archive.files() == 2


def test_gc_below_the_log_start_only_when_asked(archive: Archive) -> None:
    verbs = Verbs(archive, gc_grace=0).upkeep
    for batch in batches_from(0, [3] * 4):
        archive.publish([batch])
    archive.client.hset(log_keys().meta, "log_start", 6)

    assert verbs.gc()["segments_forgotten"] == 0
    reported = verbs.gc(below_log_start=True)

    assert (reported["segments_forgotten"], reported["files_removed"]) == (2, 2)
    assert archive.index().state().start == 6


def test_unknown_topic_is_named(archive: Archive) -> None:
    verbs = Verbs(archive).upkeep

    with pytest.raises(UsageError, match="no topic payments"):
        verbs.verify(["payments"])
    with pytest.raises(UsageError, match="payments is neither a topic nor a table"):
        verbs.files("payments")


def test_committed_files_of_a_table_are_those_of_its_log(archive: Archive) -> None:
    """As Spark's file sink writes it: entries, a compacted one that replaces those before, leftovers of both."""
    log = archive.folder / "table/orders/_spark_metadata"
    log.mkdir(parents=True)

    def entry(name: str, *files: str, action: str = "add") -> None:
        lines = [json.dumps({"path": f"file:///t/{file}", "size": 7, "action": action}) for file in files]
        (log / name).write_text("\n".join(["v1", *lines]))

    entry("0", "a")
    entry("1", "killed", action="delete")
    entry("2.compact", "a", "b")
    entry("2", "half")
    entry("3", "c")
    entry("4", "a", action="delete")
    (log / ".5.tmp").write_text("")

    listed = committed_files(archive.root, "table/orders/")

    assert listed == [{"path": "file:///t/b", "size": 7}, {"path": "file:///t/c", "size": 7}]
    (log / "5").write_text("v2\n")
    with pytest.raises(PipelineError, match="version v2"):
        committed_files(archive.root, "table/orders")


def test_on_the_command_line(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    Verbs(archive)
    batches = batches_from(0, [3, 3])
    for batch in batches:
        archive.publish([batch])
    fill_log(archive.client, log_keys(), batches)
    monkeypatch.setenv("TIDEGATE_REDIS_URL", archive.url)
    monkeypatch.setenv("TIDEGATE_ARCHIVE_PATH", str(archive.folder))

    def tidegate(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(application(), list(arguments))
        return result.exit_code, result.output

    first, second = archive.index().segments()
    assert tidegate("files") == (0, f"{first.file}\n{second.file}\n")
    status, reported = tidegate("verify", "orders", "--json")
    assert (status, json.loads(reported)["records"]) == (0, 6)
    assert json.loads(tidegate("compact", "--dry-run", "--json")[1])["segments_before"] == 2
    assert "segments after      1" in tidegate("compact")[1]
    status, reported = tidegate("gc")
    assert (status, "young               2" in reported) == (0, True)
    assert tidegate("files", "nothing")[0] == 2

    (archive.folder / archive.index().segments()[0].file).unlink()
    status, reported = tidegate("verify")
    assert status == 3
    assert "there is no such file" in reported
    assert "1 problems in the archive" in reported
