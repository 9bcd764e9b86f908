"""The sink's writer, without Spark: files by tasks, published by the driver, failures at every step."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyspark.sql.types import StructType

from tests.support.archive import TOPIC_ID, Archive, log_keys, make_log, raw_rows
from tests.support.logs import batch_bytes
from tests.support.segments import batches_from
from tests.support.topics import WrittenTopic
from tests.support.valkey import ValkeyServer
from tidegate_pipeline.archive.index import ArchiveIndex, Archiver
from tidegate_pipeline.archive.sink import ArchiveSink
from tidegate_pipeline.decode.schema import RANGES_ARROW, raw_schema
from tidegate_pipeline.errors import ArchiveConflict, PipelineError, UsageError
from tidegate_pipeline.sources.topic_source import TopicSource


@pytest.fixture
def archive(valkey: ValkeyServer, tmp_path: Path) -> Iterator[Archive]:
    opened = Archive(valkey.url, tmp_path)
    yield opened
    opened.client.close()


def test_ranges_are_read_where_they_are_written(archive: Archive) -> None:
    topic = WrittenTopic(archive.client, "orders")
    topic.fill([3, 2, 4])
    batch = batch_bytes(2)
    topic.append(batch[:-1] + bytes([batch[-1] ^ 1]))
    options = {"redis.url": archive.url, "subscribe": "orders", "archive.path": str(archive.folder), "mode": "ranges"}
    source = TopicSource({**options, "onCorrupt": "quarantine"})
    reader = source.reader(source.schema())
    (task,) = reader.partitions()
    to = {"redis.url": archive.url, "archive.path": str(archive.folder), "archiver": "1:a"}
    writer = ArchiveSink(to).streamWriter(source.schema(), False)

    (rows,) = reader.read(task)
    writer.commit([writer.write(iter([rows]))], 0)

    assert (rows.num_rows, rows.schema) == (1, RANGES_ARROW)
    index = ArchiveIndex(archive.client, topic.keys())
    assert index.state()[:2] == (0, 11)
    assert [segment.records for segment in index.all_segments()] == [9]
    quarantined = parquet.read_table(archive.folder / "quarantine/batches")
    assert quarantined["base_offset"].to_pylist() == [9]


def test_tasks_write_and_the_driver_publishes_in_order_of_offset(archive: Archive) -> None:
    first, second = batches_from(0, [2] * 20, value=b"x" * 50), batches_from(5, [1, 1])
    writer = archive.writer()

    messages = [
        writer.write(iter([raw_rows(first[12:]), raw_rows(second, partition=1)])),
        writer.write(iter([])),
        writer.write(iter([raw_rows(first[:5]), raw_rows(first[5:12])])),
    ]
    assert archive.index().state().end == -1, "nothing is published by tasks"
    writer.commit(messages, 0)

    assert archive.index().state()[:2] == (0, 40)
    assert archive.index(1).state()[:2] == (5, 7)
    assert (archive.batches(), archive.batches(1)) == (first, second)
    assert len(archive.index().segments()) > 4


def test_sink_rerun_micro_batch_adds_nothing_however_tasks_are_sliced(archive: Archive) -> None:
    batches = batches_from(0, [1] * 20, value=b"x" * 50)
    writer = archive.writer()
    writer.commit([writer.write(iter([raw_rows(batches)]))], 0)
    index = archive.index().segments()

    again = archive.writer(segmentBytes="900")
    again.commit([again.write(iter([raw_rows(batches[:7])])), again.write(iter([raw_rows(batches[7:])]))], 0)

    assert archive.index().segments() == index
    assert archive.batches() == batches


def test_after_a_crash_between_two_partitions_the_micro_batch_completes(archive: Archive) -> None:
    batches = batches_from(0, [1] * 5)
    writer = archive.writer()
    written = [writer.write(iter([raw_rows(batches, partition=partition)])) for partition in (0, 1)]
    writer.commit(written[:1], 7)  # and then the driver died

    writer.commit([writer.write(iter([raw_rows(batches, partition=partition)])) for partition in (0, 1)], 7)

    assert (archive.batches(), archive.batches(1)) == (batches, batches)


def test_sink_failed_task_leaves_only_unlisted_files(archive: Archive) -> None:
    batches = batches_from(0, [1] * 10, value=b"x" * 100)
    writer = archive.writer()

    def breaking() -> Iterator[Any]:
        yield raw_rows(batches)
        raise OSError("the executor died")

    with pytest.raises(OSError, match="died"):
        writer.write(breaking())
    left = archive.files()
    writer.abort([None], 0)
    writer.commit([writer.write(iter([raw_rows(batches)]))], 0)

    assert left > 0
    assert archive.files() > left
    assert archive.batches() == batches


def test_file_that_gc_took_before_it_was_published_is_not_published(archive: Archive) -> None:
    """The driver slept for longer than `gc_grace`, and its task's files were removed."""
    writer = archive.writer()
    archive.publish(batches_from(0, [3]))
    message = writer.write(iter([raw_rows(batches_from(3, [3])), raw_rows(batches_from(0, [3]), partition=1)]))
    next(archive.folder.rglob("*/0/*3-*5-*.parquet")).unlink()

    with pytest.raises(PipelineError, match="gone before it was published, and 0 more"):
        writer.commit([message], 1)

    assert (archive.index().state().end, archive.index(1).state().end) == (3, -1)


def test_sink_gap_after_the_archive_fails_with_both_ranges(archive: Archive) -> None:
    batches = batches_from(0, [10, 10, 10])
    writer = archive.writer()
    writer.commit([writer.write(iter([raw_rows(batches[:1])]))], 0)

    with pytest.raises(ArchiveConflict, match=r"orders-0: offsets 20 to 29 do not follow the archive.* 0 to 9: "):
        writer.commit([writer.write(iter([raw_rows(batches[2:])]))], 1)
    with pytest.raises(ArchiveConflict, match="orders-0: offsets 0 to 19 do not follow"):
        writer.commit([writer.write(iter([raw_rows(batches[:2])]))], 1)

    assert archive.batches() == batches[:1]


def test_driver_that_wakes_up_after_its_successor_started_is_refused(archive: Archive) -> None:
    batches = batches_from(0, [10, 10])
    old = archive.writer("1:old")
    archive.index().fence(Archiver(1, "old"))
    late = old.write(iter([raw_rows(batches)]))
    archive.index().fence(Archiver(2, "new"))

    with pytest.raises(ArchiveConflict, match="orders-0: offsets 0 to 19 are not published: a newer start"):
        old.commit([late], 0)

    assert archive.index().state().end == -1


def test_sink_fail_over_between_reading_and_publishing_fails(debugged_valkey: ValkeyServer, tmp_path: Path) -> None:
    """The log of the new primary may lack what the first task read: producers write others there."""
    archive = Archive(debugged_valkey.url, tmp_path)
    batches = batches_from(0, [10, 10, 10])
    writer = archive.writer()
    writer.commit([writer.write(iter([raw_rows(batches[:1])]))], 0)
    before = writer.write(iter([raw_rows(batches[1:2])]))
    archive.client.execute_command("DEBUG", "CHANGE-REPL-ID")
    after = writer.write(iter([raw_rows(batches[2:])]))

    with pytest.raises(PipelineError, match="orders-0: offsets 10 to 29 are not published: Redis failed over or res"):
        writer.commit([before, after], 1)
    assert archive.index().state().end == 10

    writer.commit([writer.write(iter([raw_rows(batches[1:])]))], 1)
    assert archive.batches() == batches


def test_topic_made_again_takes_nothing_of_the_one_before(archive: Archive) -> None:
    other = "e" * 32
    make_log(archive.client, log_keys(topic_id=other))
    archive.client.hset(log_keys().meta, "state", "deleted")
    writer = archive.writer()

    writer.commit([writer.write(iter([raw_rows(batches_from(0, [3]), topic_id=TOPIC_ID)]))], 0)

    assert archive.client.exists(log_keys().archive, log_keys(topic_id=other).archive) == 0


def test_ranges_without_a_good_batch_are_archived_as_such(archive: Archive) -> None:
    one, two = batches_from(0, [5]) + batches_from(30, [5])
    writer = archive.writer()

    writer.commit([writer.write(iter([raw_rows([one, (5, 9)])])), writer.write(iter([raw_rows([(10, 29)])]))], 0)
    writer.commit([writer.write(iter([raw_rows([two])]))], 1)

    assert archive.index().state()[:2] == (0, 35)
    assert archive.batches() == [one, two]


def test_options_that_it_needs(archive: Archive) -> None:
    with pytest.raises(UsageError, match="needs the option archiver"):
        archive.writer("")
    with pytest.raises(UsageError, match=r"archive\.path is not set"):
        archive.writer(path="")
    with pytest.raises(UsageError, match="unknown option of tidegate-archive: segmentSize; its options are path, "):
        archive.writer(segmentSize="1")
    with pytest.raises(UsageError, match="segmentBytes is a whole number of at least 1, not many"):
        archive.writer(segmentBytes="many")
    with pytest.raises(UsageError, match="recompress is one of auto, never, always, not often"):
        archive.writer(recompress="often")
    with pytest.raises(UsageError, match="no password in an option"):
        archive.writer(**{"redis.url": "redis://:secret@r:1/0"})


def test_password_is_in_no_option(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_REDIS_URL", archive.url.replace("redis://", "redis://nobody:secret@"))
    batches = batches_from(0, [3])

    writer = archive.writer(**{"redis.url": ""})

    assert b"secret" not in pickle.dumps(writer)
    with pytest.raises(UsageError, match="refuses the login: invalid username-password"):  # found when it was needed
        writer.commit([writer.write(iter([raw_rows(batches)]))], 0)


def test_rows_that_it_takes() -> None:
    with pytest.raises(UsageError, match=r"includeRange=true; no topic_id, from_offset"):
        ArchiveSink({}).streamWriter(raw_schema(), False)
    assert isinstance(raw_schema(include_range=True), StructType)
