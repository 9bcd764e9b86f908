"""`tidegate group`, `topic` and `tail` of format `record`, whose offsets are times and do not count records."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from typer.testing import CliRunner

from bench.cluster import Cluster, free_port
from tidegate.command_line import command_line

RECORDS: Final = 3


@dataclass
class Read:
    """A topic of format record with three records, and a group that has committed the first of them."""

    cluster: Cluster
    topic: str
    group: str

    async def json(self, *words: str, admin: str | None = None) -> tuple[Any, str]:
        """What the command prints to standard output, as JSON, and to standard error."""
        line = [*words, "--bootstrap", self.cluster.bootstrap, "-o", "json"]
        if words[0] == "group":
            line += ["--admin", admin or f"127.0.0.1:{self.cluster.brokers[0].admin_port}"]
        done = await asyncio.to_thread(CliRunner().invoke, command_line, line)
        assert done.exit_code == 0, (done.output, done.exception)
        return json.loads(done.stdout), done.stderr


@pytest.fixture
async def read(cluster: Cluster) -> AsyncIterator[Read]:
    mark = uuid.uuid4().hex[:8]
    topic, group = f"record-{mark}", f"reads-{mark}"
    line = ["topic", "create", topic, "-p", "2", "-c", "tidegate.format=record", "--bootstrap", cluster.bootstrap]
    assert (await asyncio.to_thread(CliRunner().invoke, command_line, line)).exit_code == 0
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        for _ in range(RECORDS):
            await producer.send_and_wait(topic, b"x", partition=0)
            await asyncio.sleep(0.01)  # another millisecond, another offset
    place = TopicPartition(topic, 0)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.bootstrap, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    async with consumer:
        consumer.assign([place])
        first = await asyncio.wait_for(consumer.getone(), 30)
        await consumer.commit({place: first.offset + 1})
    yield Read(cluster, topic, group)


async def test_group_lag_counts_records_of_format_record(read: Read) -> None:
    (row,), errors = await read.json("group", "lag", read.group)
    (without,), reason = await read.json("group", "lag", read.group, admin=f"127.0.0.1:{free_port()}")

    assert (row["lag"], errors) == (RECORDS - 1, "")
    assert row["end"] - row["committed"] > RECORDS
    assert without["lag"] is None
    assert "the lag of topics of format record" in reason


async def test_group_list_counts_records_of_format_record(read: Read) -> None:
    rows, errors = await read.json("group", "list")
    without, reason = await read.json("group", "list", admin=f"127.0.0.1:{free_port()}")

    assert {row["group"]: row["lag"] for row in rows}[read.group] == RECORDS - 1
    assert errors == ""
    assert {row["group"]: row["lag"] for row in without}[read.group] is None
    assert "the lag of topics of format record" in reason


async def test_topic_list_and_describe_count_no_offsets_of_format_record(read: Read) -> None:
    listed, _ = await read.json("topic", "list")
    described, _ = await read.json("topic", "describe", read.topic)

    row = next(row for row in listed if row["topic"] == read.topic)
    assert row == {"topic": read.topic, "partitions": 2, "records": None, "unknown": 1}
    assert [one["records"] for one in described["partitions"]] == [None, 0]


async def test_tail_prints_the_last_records_of_format_record(read: Read) -> None:
    line = ["tail", read.topic, "--bootstrap", read.cluster.bootstrap, "-o", "json", "--from"]
    printed = {
        start: (await asyncio.to_thread(CliRunner().invoke, command_line, [*line, start])).stdout.splitlines()
        for start in ("-2", "-10", "earliest")
    }

    assert len(printed["earliest"]) == RECORDS
    assert printed["-2"] == printed["earliest"][-2:]
    assert printed["-10"] == printed["earliest"]
