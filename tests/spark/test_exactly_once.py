"""Exactly once, whatever is killed when: what clients were told is stored is in the archive, each record once.

TIDEGATE_SEED repeats the moments, TIDEGATE_KILLS their number.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import Cluster
from tests.spark.killing import JobUnderTest, Producing, Row, Sums, killed_often
from tests.support.machines import chosen_seed
from tidegate.records.batch import Batch
from tidegate.records.record import read_records
from tidegate.records.segment_file import SegmentFile
from tidegate_pipeline.archive.index import ArchiveIndex
from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.archive.selection import places
from tidegate_pipeline.archive.upkeep import Upkeep
from tidegate_pipeline.redis_access import Client, connect
from tidegate_pipeline.settings import PipelineSettings
from tidegate_pipeline.topics import read_topics

TOPIC = "killed"
PARTITIONS = 3
KILLS = int(os.environ.get("TIDEGATE_KILLS", "20"))

CONFIG = """
[archive]
segment_bytes = 65536
segment_seconds = 0
row_group_bytes = 16384
[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "1g"
"spark.ui.enabled" = "false"
"""


def indexes(client: Client) -> list[ArchiveIndex]:
    topics = read_topics(client, "tidegate", "default")
    return [ArchiveIndex(client, place.keys("tidegate")) for place in places([topics[TOPIC]])]


def archived_rows(archive: ArchiveFolder, client: Client) -> Iterator[Row]:
    """Every record that the archive has, by its index."""
    for partition, index in enumerate(indexes(client)):
        for segment in index.all_segments():
            file = SegmentFile(archive.filesystem, archive.path(segment.file))
            for group in map(file.read, range(len(file.row_groups))):
                for at in range(len(group)):
                    for record in read_records(Batch.parse(group.batch(at))):
                        yield partition, record.offset, record.value or b""


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.usefixtures("java")
def test_archive_has_every_record_once_though_its_job_is_killed_again_and_again(tmp_path: Path) -> None:
    seed = chosen_seed()
    print(f"TIDEGATE_SEED={seed} repeats these {KILLS} kills")
    (tmp_path / "pipeline.toml").write_text(CONFIG)
    with Cluster(brokers=2) as cluster:
        client = connect(cluster.redis_url)
        job = JobUnderTest(
            command=[
                sys.executable, "-m", "tidegate", "pipeline", "archive", "--topics", TOPIC,
                "--config", str(tmp_path / "pipeline.toml"), "--checkpoint", str(tmp_path / "checkpoint"),
            ],
            environment={
                "TIDEGATE_REDIS_URL": cluster.redis_url,
                "TIDEGATE_ARCHIVE_PATH": str(tmp_path / "archive"),
                "TIDEGATE_PIPELINE_SOURCE_MAX_BYTES_PER_TRIGGER": "200000",
                "XDG_STATE_HOME": str(tmp_path / "state"),
            },
            progress=lambda: [index.state().end for index in indexes(client)],
            log=tmp_path / "job.log",
        )  # fmt: skip
        producing = Producing(cluster.bootstrap, TOPIC, PARTITIONS, seed)
        producing.create_topic({"retention.ms": "-1"})

        with producing:
            lived_s = killed_often(job, KILLS, seed, more=("--every", "50ms"))
        job.environment["TIDEGATE_PIPELINE_SOURCE_MAX_BYTES_PER_TRIGGER"] = str(64 << 20)
        job.run_to_the_end("--once", timeout_s=600)

        settings = PipelineSettings.model_validate({"archive": {"path": str(tmp_path / "archive")}})
        upkeep = Upkeep.of(settings, client)
        archived, verified = Sums.of(archived_rows(upkeep.archive, client)), upkeep.verify([])
        print(f"{archived}; lived {[round(one, 1) for one in lived_s]} s; {verified}")

    assert archived == producing.acknowledged
    assert archived.rows == archived.distinct > 0
    assert verified["problems"] == []
    assert verified["records"] == archived.rows
