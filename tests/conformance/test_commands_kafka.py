"""`tidegate doctor`, `topic` and `tail` speak Kafka's protocol alone: on Apache Kafka they do as here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from typer.testing import CliRunner

from bench.jars import PeerUnavailable
from bench.kafka_peer import KafkaPeer
from tidegate.command_line import command_line

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaPeer]:
    """One node."""
    try:
        with KafkaPeer({}) as peer:
            yield peer
    except PeerUnavailable as unavailable:
        pytest.skip(str(unavailable))


async def typed(kafka: KafkaPeer, *words: str) -> str:
    """Run a command; its output."""
    done = await asyncio.to_thread(CliRunner().invoke, command_line, [*words, "--bootstrap", kafka.bootstrap])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


async def reported(kafka: KafkaPeer, *words: str) -> Any:
    return json.loads(await typed(kafka, *words, "-o", "json"))


async def test_topics_and_tail(kafka: KafkaPeer) -> None:
    await typed(kafka, "topic", "create", "orders", "-p", "2", "-c", "retention.ms=3600000")
    await typed(kafka, "topic", "alter", "orders", "-c", "max.message.bytes=2000", "--unset", "retention.ms")
    await typed(kafka, "topic", "partitions", "orders", "3")
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
        for number in range(6):
            await producer.send_and_wait("orders", b'{"n": %d}' % number, partition=number % 3)

    found = await reported(kafka, "topic", "describe", "orders")
    lines = (await typed(kafka, "tail", "orders", "--from", "earliest", "-o", "json")).splitlines()

    assert [(one["start"], one["end"]) for one in found["partitions"]] == [(0, 2)] * 3
    assert [(one["name"], one["value"]) for one in found["configs"]] == [("max.message.bytes", "2000")]
    assert sorted(json.loads(line)["value"]["n"] for line in lines) == list(range(6))
    assert await typed(kafka, "topic", "delete", "orders", "--yes") == "deleted orders\n"


async def test_doctor_identifies_the_server(kafka: KafkaPeer) -> None:
    found = await reported(kafka, "doctor", "--no-redis")

    assert found["worst"] is None
    assert [one["answering_nodes"] for one in found["addresses"]] == [[found["addresses"][0]["node_id"]] * 4]
