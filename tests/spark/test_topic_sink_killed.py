"""Exactly once, whatever is killed when: what clients had acknowledged is in the sink's topic, each record once.

TIDEGATE_SEED repeats the moments, TIDEGATE_KILLS their number.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from bench.cluster import Cluster
from tests.spark.killing import JobUnderTest, Producing, Row, Sums, killed_often
from tests.support.machines import chosen_seed

SOURCE, TARGET = "killed", "copies"
PARTITIONS = 3
KILLS = int(os.environ.get("TIDEGATE_KILLS", "20"))


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.usefixtures("java")
def test_topic_has_every_row_once_though_its_query_is_killed_again_and_again(tmp_path: Path) -> None:
    seed = chosen_seed()
    print(f"TIDEGATE_SEED={seed} repeats these {KILLS} kills")
    checkpoint = tmp_path / "checkpoint"
    with Cluster(brokers=2) as cluster:
        job = JobUnderTest(
            command=[
                sys.executable, "-m", "tests.spark.copy_driver",
                cluster.redis_url, cluster.bootstrap, SOURCE, TARGET, str(checkpoint),
            ],
            environment={},
            progress=lambda: [len(list((checkpoint / "commits").glob("[0-9]*")))],
            log=tmp_path / "job.log",
        )  # fmt: skip
        for topic in (SOURCE, TARGET):
            Producing(cluster.bootstrap, topic, PARTITIONS, seed).create_topic({"retention.ms": "-1"})
        with Producing(cluster.bootstrap, SOURCE, PARTITIONS, seed) as producing:
            lived_s = killed_often(job, KILLS, seed, more=("50 milliseconds",))
        job.run_to_the_end("once", timeout_s=600)

        found = Sums.of(copies(cluster))
        print(f"{found}; lived {[round(one, 1) for one in lived_s]} s; {job.progress()[0]} micro-batches")

    assert found.distinct == found.rows > 0
    assert found == producing.acknowledged


def copies(cluster: Cluster) -> Iterator[Row]:
    """Source partition, source offset and value of every record that a read_committed consumer gets."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TARGET, partition, 0) for partition in range(PARTITIONS)])
    ended = set[int]()
    while len(ended) < PARTITIONS:
        message = consumer.poll(60)
        assert message is not None, "no message and no end in a minute"
        if message.error() is not None:
            ended.add(message.partition())
            continue
        partition, _, offset = (message.key() or b"").partition(b":")
        yield int(partition), int(offset), message.value() or b""
    consumer.close()
