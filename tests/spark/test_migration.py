"""The job of docs/pipeline.md that was written for Spark's Kafka connector, with the changes that the page names."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.cluster import REPOSITORY, Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

MINUTE_MS = 60_000
START_MS = 1_790_000_040_000  # begins a minute
TOPICS = ("impressions", "clicks", "clicks-per-minute")


def test_job_of_the_kafka_connector_moves_by_format_and_addresses(spark: SparkSession, tmp_path: Path) -> None:
    with Cluster(1) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        configs = {"retention.ms": "-1"}  # the records are of a fixed day
        for made in admin.create_topics([NewTopic(name, 2, config=configs) for name in TOPICS]).values():
            made.result(60)
        program = migrated(cluster, tmp_path / "checkpoint")

        produce(cluster, "impressions", [("a", 0), ("b", 10), ("a", 70)])
        produce(cluster, "clicks", [("a", 20), ("a", 40), ("b", 500), ("a", 80)])
        exec(program, {})
        for minutes in (30, 60, 90):  # later records let the windows before them end
            for topic in TOPICS[:2]:
                produce(cluster, topic, [("later", minutes * 60)])
            exec(program, {})

        found = [row for row in results(cluster) if row["ad"] != "later"]
    assert sorted((row["start"], row["ad"], row["count"]) for row in found) == [
        (START_MS, "a", 3),  # 80 s is within five minutes of 0 s
        (START_MS + MINUTE_MS, "a", 1),
    ]


def migrated(cluster: Cluster, checkpoint: Path) -> str:
    """The program of the page after its diff, with this cluster's addresses."""
    page = (REPOSITORY / "docs" / "pipeline.md").read_text("utf-8").partition("### A job that moves")[2]
    blocks = dict(reversed(re.findall(r"^```(python|diff)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[:2]))
    program = blocks["python"]
    for removed, added in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", blocks["diff"], re.MULTILINE):
        before, after = (re.sub(r"^[-+]", "", lines, flags=re.MULTILINE) for lines in (removed, added))
        assert before in program
        program = program.replace(before, after)
    assert '"kafka"' not in program and "kafka:9092" not in program
    for address, real in (
        ("redis://redis:6379/0", cluster.redis_url),
        ("tidegate:9092", cluster.bootstrap),
        ("/checkpoints/clicks-per-minute", str(checkpoint)),
    ):
        assert address in program
        program = program.replace(address, real)
    return program


def produce(cluster: Cluster, topic: str, records: list[tuple[str, int]]) -> None:
    """Key and seconds after the start."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for key, seconds in records:
        producer.produce(topic, b"", key, timestamp=START_MS + seconds * 1_000)
    assert producer.flush(60) == 0


def results(cluster: Cluster) -> list[dict[str, object]]:
    """The values of the sink's topic, as a read_committed consumer has them; window starts in ms."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "results", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.partition.eof": True, "isolation.level": "read_committed"})
    consumer.subscribe([TOPICS[2]])
    rows, ended = list[dict[str, object]](), set[int]()
    while len(ended) < 2:
        message = consumer.poll(60)
        assert message is not None, "no message and no end in a minute"
        if message.error() is not None:
            ended.add(message.partition())
            continue
        row = json.loads(message.value() or b"{}")
        start = datetime.fromisoformat(row["start"].replace("Z", "+00:00")).astimezone(UTC)
        rows.append({**row, "start": int(start.timestamp() * 1_000)})
    consumer.close()
    return rows
