"""What of `tidegate group` speaks Kafka's protocol alone works on Apache Kafka as it does here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from typer.testing import CliRunner

from bench.jars import PeerUnavailable
from bench.kafka_peer import KafkaPeer
from tidegate.command_line import command_line

pytestmark = pytest.mark.peer

RECORDS = 20


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaPeer]:
    """One node with Kafka's own initial delay, which is 3 s."""
    try:
        with KafkaPeer({"group.initial.rebalance.delay.ms": "1000"}) as peer:
            yield peer
    except PeerUnavailable as unavailable:
        pytest.skip(str(unavailable))


async def type_in(kafka: KafkaPeer, *words: str, code: int = 0) -> str:
    """Run `tidegate group WORDS`; its output."""
    command = ["group", *words, "--bootstrap", kafka.bootstrap]
    if words[0] in ("list", "lag"):
        command += ["--admin", "http://127.0.0.1:1"]
    done = await asyncio.to_thread(CliRunner().invoke, command_line, command)
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout


async def committed(kafka: KafkaPeer) -> list[int]:
    return [row["committed"] for row in json.loads(await type_in(kafka, "lag", "billing", "-o", "json"))]


async def emptied(kafka: KafkaPeer) -> None:
    """A consumer that is closed while it joins is a member until its session ends."""
    async with asyncio.timeout(60):
        while json.loads(await type_in(kafka, "list", "-o", "json"))[0]["state"] != "Empty":
            await asyncio.sleep(0.2)


async def read_while(consumer: AIOKafkaConsumer, count: int, typed: asyncio.Task[str]) -> list[ConsumerRecord]:
    """What is read while a command runs, and after it; a command that failed is reported at once."""
    reading = asyncio.create_task(records(consumer, count))
    await asyncio.wait({reading, typed}, return_when=asyncio.FIRST_COMPLETED)
    if typed.done() and typed.exception() is not None:
        reading.cancel()
        typed.result()
    return await reading


async def records(consumer: AIOKafkaConsumer, count: int) -> list[ConsumerRecord]:
    async with asyncio.timeout(60):
        return [await consumer.getone() for _ in range(count)]


async def test_groups_of_apache_kafka(kafka: KafkaPeer, tmp_path: Path) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic("orders", 2, 1)])
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
        for number in range(RECORDS):
            await producer.send("orders", b"x", partition=number % 2)
    consumer = AIOKafkaConsumer(
        "orders",
        bootstrap_servers=kafka.bootstrap,
        group_id="billing",
        client_id="billing-1",
        auto_offset_reset="earliest",
        auto_commit_interval_ms=100,
        heartbeat_interval_ms=200,
    )
    async with consumer:
        for _ in range(RECORDS):
            await asyncio.wait_for(consumer.getone(), 60)
        await consumer.commit()
        (row,) = json.loads(await type_in(kafka, "list", "-o", "json"))
        assert (row["group"], row["state"], row["type"], row["members"], row["lag"]) == (
            "billing",
            "Stable",
            "classic",
            1,
            0,
        )
        assert "billing-1 at 127.0.0.1" in await type_in(kafka, "reset", "billing", "--all-topics", "--to-earliest")

        undo = str(tmp_path / "undo.csv")
        words = ["reset", "billing", "--all-topics", "--shift-by", "-3", "--fence", "--execute", "--undo", undo]
        typed = asyncio.create_task(type_in(kafka, *words))
        again = await read_while(consumer, 6, typed)
        assert "2 of 2 partitions moved" in await typed
        assert sorted(record.offset for record in again) == [7, 7, 8, 8, 9, 9]
        await consumer.commit()  # once it is evicted nobody takes its commits

        (member,) = [
            word for word in (await type_in(kafka, "lag", "billing")).split() if word.startswith("billing-1-")
        ][:1]
        assert f"removed {member}" in await type_in(kafka, "evict", "billing", member)
    await emptied(kafka)
    assert await committed(kafka) == [10, 10]
    await type_in(
        kafka, "reset", "billing", "--topic", "orders:1", "--to-offset", "4", "--execute", "--undo", undo + "2"
    )
    assert await committed(kafka) == [10, 4]
    await type_in(kafka, "delete", "billing", "--yes")
    assert json.loads(await type_in(kafka, "list", "-o", "json")) == []
