"""The archive job in Spark: once and again, after a lost checkpoint, two at once, corrupt batches."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet

from tests.support.logs import batch_bytes
from tests.support.record_topics import RecordTopic
from tests.support.segments import placed
from tests.support.topics import WrittenTopic
from tests.support.valkey import ValkeyServer
from tidegate.records.segment_file import SegmentFile
from tidegate_pipeline.archive.index import ArchiveIndex
from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.archive.upkeep import Upkeep
from tidegate_pipeline.errors import ArchiveConflict, CorruptLimit, DataLoss
from tidegate_pipeline.jobs.archive import ArchiveJob
from tidegate_pipeline.jobs.failures import cause_of
from tidegate_pipeline.jobs.job import JobContext
from tidegate_pipeline.jobs.progress import Display
from tidegate_pipeline.jobs.running import Run, run_all
from tidegate_pipeline.redis_access import connect
from tidegate_pipeline.session import register
from tidegate_pipeline.settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ONCE = {"availableNow": True}


class Archiving:
    """A topic of two partitions, its archive, and jobs that fill it."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.client = connect(url)
        self.client.flushall()
        self.topic = WrittenTopic(self.client, "orders", 2)
        self.url = url
        self.batches: dict[int, list[bytes]] = {0: [], 1: []}

    def settings(self, **source: Any) -> PipelineSettings:
        given = {
            "redis": {"url": self.url},
            "archive": {"path": str(self.folder / "archive"), "segment_bytes": 1 << 16, "segment_seconds": 0},
            "source": {"max_bytes_per_trigger": 60_000, **source},
        }
        return PipelineSettings.model_validate(given)

    def append(self, counts: list[int], partition: int = 0, spoil: bool = False) -> None:
        """Batches as producers send them; one that is spoilt has a wrong CRC."""
        for count in counts:
            batch = batch_bytes(count, value=b"x" * 400)
            stored = batch[:-1] + b"?" if spoil else batch
            base = self.topic.ends.get(partition, 0)
            self.topic.append(stored, partition=partition)
            if not spoil:
                self.batches[partition].append(placed(batch, base))

    def context(self, trigger: dict[str, Any], checkpoint: str = "checkpoint", **source: Any) -> JobContext:
        session = self.spark.newSession()  # in which no query has this name
        return JobContext(register(session), self.settings(**source), self.client, self.folder / checkpoint, trigger)

    def run(self, **source: Any) -> dict[str, Any]:
        job, context = ArchiveJob(["ord*"]), self.context(ONCE, **source)
        query = job.start(context)
        assert query.awaitTermination(400)
        return job.finish(context)

    def archived(self, partition: int) -> list[bytes]:
        root = ArchiveFolder.open(str(self.folder / "archive"))
        segments = self.index(partition).all_segments()
        files = [SegmentFile(root.filesystem, root.path(segment.file)) for segment in segments]
        groups = [file.read(at) for file in files for at in range(len(file.row_groups))]
        return [bytes(group.batch(at)) for group in groups for at in range(len(group))]

    def index(self, partition: int) -> ArchiveIndex:
        return ArchiveIndex(self.client, self.topic.keys(partition))

    def check(self) -> dict[str, Any]:
        """The archive holds what was produced, byte for byte, and is sound."""
        assert [self.archived(partition) for partition in (0, 1)] == [self.batches[0], self.batches[1]]
        reported = Upkeep.of(self.settings(), self.client).verify([])
        assert reported["problems"] == []
        return reported


@pytest.fixture
def archiving(spark: SparkSession, valkey: ValkeyServer, tmp_path: Path) -> Iterator[Archiving]:
    opened = Archiving(spark, valkey.url, tmp_path)
    yield opened
    opened.client.close()


def test_once_again_and_after_a_lost_checkpoint(archiving: Archiving) -> None:
    archiving.append([5, 1, 40, 3] * 5)
    archiving.append([7] * 10, partition=1)
    plan = ArchiveJob(["orders"]).plan(archiving.context(ONCE))

    first = archiving.run()

    assert [(row["partition"], row["from"], row["to"]) for row in plan] == [(0, 0, 245), (1, 0, 70)]
    verified = archiving.check()
    assert (verified["unpublished_files"], verified["batches"], first["batches"]) == (0, 30, 30)
    assert (first["records"], first["trim_points"]) == (315, {"orders-0": 245, "orders-1": 70})
    assert first["segments"] >= 4, "several micro-batches"
    assert first["batch_bytes"] == sum(len(batch) for of_one in archiving.batches.values() for batch in of_one)
    assert first["ratio"] > 2, "400 equal bytes a record, not compressed by their producer"

    archiving.append([2, 2])
    assert archiving.run()["records"] == 4
    archiving.check()

    shutil.rmtree(archiving.folder / "checkpoint")
    archiving.append([9], partition=1)
    assert archiving.run()["records"] == 9
    archiving.check()
    assert archiving.index(0).state() == (0, 249, 3)


def test_archive_newer_of_two_drivers_continues(archiving: Archiving) -> None:
    archiving.append([5] * 3)
    old = ArchiveJob(["orders"]).start(archiving.context({"processingTime": "200 milliseconds"}, "old"))
    try:
        old.processAllAvailable()
        archiving.check()

        new = ArchiveJob(["orders"]).start(archiving.context(ONCE, "new"))
        assert new.awaitTermination(400)
        archiving.append([5] * 3)
        with pytest.raises(Exception, match="a newer start") as failed:
            old.awaitTermination(400)
    finally:
        old.stop()

    assert type(cause_of(failed.value)) is ArchiveConflict
    again = ArchiveJob(["orders"]).start(archiving.context(ONCE, "new"))
    assert again.awaitTermination(400)
    archiving.check()


def test_corrupt_batch_is_put_aside_and_the_rest_is_archived(archiving: Archiving) -> None:
    archiving.append([5] * 3)
    archiving.append([4], spoil=True)
    archiving.append([5] * 3)
    archiving.append([6], spoil=True)
    archiving.append([2], partition=1)

    with pytest.raises(Exception, match="the batch at offsets 15 to 18 is corrupt"):
        archiving.run()
    run = Run(ArchiveJob(["orders"]), archiving.context(ONCE, on_corrupt="quarantine"))
    run_all([run], Display(quiet=True))
    assert run.summary()["source"] == {"pipeline_corrupt_batches_total": 2}
    archiving.run()  # what follows does not stumble over the hole at the end

    archiving.check()
    assert archiving.index(0).state()[:2] == (0, 40)
    rows = sorted(
        parquet.read_table(archiving.folder / "archive/quarantine/batches").to_pylist(),
        key=lambda row: row["base_offset"],
    )
    assert [(row["topic"], row["partition"], row["base_offset"], row["last_offset"]) for row in rows] == [
        ("orders", 0, 15, 18), ("orders", 0, 34, 39),
    ]  # fmt: skip
    assert all("CRC" in row["reason"] and row["batch"].endswith(b"?") for row in rows)

    archiving.append([1], spoil=True)
    archiving.append([1], spoil=True)
    query = ArchiveJob(["orders"]).start(archiving.context(ONCE, corrupt_limit=1, on_corrupt="quarantine"))
    with pytest.raises(Exception, match="corrupt") as failed:
        query.awaitTermination(400)
    assert type(cause_of(failed.value)) is CorruptLimit
    assert archiving.index(0).state().end == 40, "nothing of that micro-batch was published"


def test_archive_missing_offsets_end_it_or_leave_a_hole(archiving: Archiving) -> None:
    archiving.append([5, 5])
    archiving.run()
    archiving.append([5, 5])
    archiving.topic.raise_log_start(15)

    with pytest.raises(Exception, match="offset 10 is wanted") as failed:
        archiving.run()
    assert type(cause_of(failed.value)) is DataLoss
    archiving.run(fail_on_data_loss=False)

    del archiving.batches[0][2]
    archiving.check()
    assert archiving.index(0).state()[:2] == (0, 20)
    (gap,) = parquet.read_table(archiving.folder / "archive/quarantine/gaps").to_pylist()
    assert (gap["wanted_offset"], gap["log_start"]) == (10, 15)


def test_archive_includes_topics_configured_later(archiving: Archiving) -> None:
    archiving.append([3])
    archiving.run()  # it has an archive already, of an earlier start
    archiving.append([4])
    assert ArchiveJob().plan(archiving.context(ONCE)) == []
    query = ArchiveJob().start(archiving.context({"processingTime": "200 milliseconds"}, "later"))
    try:
        WrittenTopic(archiving.client, "others").fill([3])
        archiving.client.hset("tidegate:{cluster}:topic:default:orders", "remote.storage.enable", "true")
        deadline = time.monotonic() + 400
        while archiving.index(0).state().end < 7 and time.monotonic() < deadline and query.isActive:
            time.sleep(0.1)
    finally:
        query.stop()

    assert query.exception() is None
    archiving.check()
    assert {row["topic"] for row in ArchiveJob().plan(archiving.context(ONCE))} == {"orders"}


@pytest.mark.slow
def test_archive_of_format_record(archiving: Archiving) -> None:
    """Its entries are archived as batches, and read from both tiers: from the archive what Redis has trimmed."""
    topic = RecordTopic(archiving.client, "shared")
    added = [topic.add(f"{1_700_000_000_000 + i}-0", value=str(i)) for i in range(300)]
    job, context = ArchiveJob(["shared"]), archiving.context(ONCE)
    [planned] = ArchiveJob(["shared"]).plan(context)

    query = job.start(context)
    assert query.awaitTermination(400)
    reported = job.finish(context)

    assert (planned["from"], planned["to"]) == (0, added[-1] + 1)
    assert (reported["records"], reported["trim_points"]) == (300, {"shared-0": added[-1] + 1})
    assert Upkeep.of(archiving.settings(), archiving.client).verify([])["problems"] == []
    archiving.client.hset(topic.keys().meta, "log_start", added[200])
    archiving.client.execute_command("XTRIM", topic.keys().log, "MAXLEN", 100)
    rows = (
        archiving.spark.read.format("tidegate").option("redis.url", archiving.url).option("subscribe", "shared")
        .option("archive.path", str(archiving.folder / "archive")).load().orderBy("offset").collect()
    )  # fmt: skip
    assert [(row.offset, bytes(row.value)) for row in rows] == [
        (offset, str(i).encode()) for i, offset in enumerate(added)
    ]
