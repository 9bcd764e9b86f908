"""Real clients beyond their quotas, on three brokers that share them; Kafka's own tool sets the quotas."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import aiokafka
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from bench.cluster import Cluster
from tests.conformance.test_java import jars, java
from tidegate.cli.main import command_line

assert jars  # the fixture

VALUE = bytes(10_000)


def quota(cluster: Cluster, *words: str, code: int = 0) -> str:
    """Run `tidegate quota WORDS`."""
    done = CliRunner().invoke(command_line, ["quota", *words, "--redis-url", cluster.redis_url])
    assert done.exit_code == code, done.output
    return done.stdout


def made_topic(cluster: Cluster, partitions: int = 12) -> str:
    name = f"t-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
    return name


def produced(cluster: Cluster, topic: str, client_id: str, seconds: float) -> tuple[int, list[float], float]:
    """Produce as fast as it goes for a while from the first acknowledgement on.

    Returns the bytes that were acknowledged, the throttle times, and how long it took, in seconds.
    """
    sent, throttles = 0, []

    def on_delivery(error: Any, message: Any) -> None:
        nonlocal sent
        assert error is None, error
        sent += len(VALUE)

    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap, "client.id": client_id, "batch.size": 50_000, "linger.ms": 5,
            "queue.buffering.max.kbytes": 1_000, "throttle_cb": lambda event: throttles.append(event.throttle_time),
        }
    )  # fmt: skip
    ends, began_s = time.monotonic() + 60, 0.0
    partition = 0
    while time.monotonic() < ends:
        if sent and not began_s:
            began_s = time.monotonic()
            ends = began_s + seconds
        try:
            producer.produce(topic, VALUE, partition=partition % 12, on_delivery=on_delivery)
            partition += 1
        except BufferError:
            producer.poll(0.01)
        producer.poll(0)
    acknowledged, took_s = sent, time.monotonic() - began_s
    producer.purge()
    return acknowledged, throttles, took_s


def test_producer_beyond_its_quota_is_throttled(cluster: Cluster) -> None:
    """librdkafka is notified of its throttle time, and is held near the rate; another client id is not."""
    topic, client_id = made_topic(cluster), f"limited-{uuid4().hex[:8]}"
    quota(cluster, "set", f"client-id={client_id}", "producer_byte_rate", "300000", "--yes")

    limited, throttles, took_s = produced(cluster, topic, client_id, 4)
    free, none, _ = produced(cluster, topic, "free", 1)

    assert limited < took_s * 300_000 * 2
    assert throttles and max(throttles) > 0.05
    assert free > 0
    assert not none


async def test_consumer_beyond_its_quota_is_slowed_down(cluster: Cluster) -> None:
    """aiokafka gets every record once, not before the quota allows it."""
    topic, client_id = made_topic(cluster, 1), f"reader-{uuid4().hex[:8]}"
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.bootstrap)
    await producer.start()
    sent = [await producer.send(topic, f"{n}".encode() + VALUE, partition=0) for n in range(200)]
    await asyncio.gather(*sent)
    await producer.stop()
    words = ("set", f"client-id={client_id}", "consumer_byte_rate", "500000", "--yes")
    await asyncio.to_thread(quota, cluster, *words)
    reader = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=cluster.bootstrap, client_id=client_id, auto_offset_reset="earliest"
    )
    started = time.monotonic()
    await reader.start()
    found = []
    async with asyncio.timeout(60):
        while len(found) < 200:
            for records in (await reader.getmany(timeout_ms=200)).values():
                found += [bytes(one.value[:3]).strip(b"\0") for one in records]
    await reader.stop()

    assert sorted(found) == sorted(f"{n}".encode() for n in range(200))
    assert time.monotonic() - started > 1.5  # 2 MB at 500 kB/s, less the burst of 1 s and the last reply


def test_command_sets_lists_and_removes(cluster: Cluster) -> None:
    name = f"user={uuid4().hex[:8]},client-id"
    assert "is set to 5" in quota(cluster, "set", name, "request_percentage", "5", "--yes")
    assert name in quota(cluster, "list")
    quota(cluster, "set", name, "request_percentage", "5", "--yes", code=1)
    quota(cluster, "set", name, "connection_creation_rate", "5", "--yes", code=2)
    quota(cluster, "remove", name, "request_percentage", "--yes")
    assert name not in quota(cluster, "list")


@pytest.mark.peer
def test_java_configs_tool_sets_and_describes_quotas(cluster: Cluster, jars: str) -> None:
    """`kafka-configs.sh` of Apache Kafka: what it sets is what `tidegate quota` lists, and it describes that."""
    user = uuid4().hex[:8]
    tool = ("kafka.admin.ConfigCommand", "--bootstrap-server", cluster.bootstrap)
    of_both = ("--entity-type", "users", "--entity-name", user, "--entity-type", "clients", "--entity-default")
    of_addresses = ("--entity-type", "ips", "--entity-name", "192.0.2.1")
    java(jars, *tool, "--alter", "--add-config", "producer_byte_rate=1048576,request_percentage=12.5", *of_both)
    java(jars, *tool, "--alter", "--add-config", "connection_creation_rate=7", *of_addresses)

    listed = quota(cluster, "list", "--output", "json")
    assert f'"user={user},client-id"' in listed and "1048576" in listed and "12.5" in listed
    assert '"ip=192.0.2.1"' in listed
    described = java(jars, *tool, "--describe", *of_both)
    assert "producer_byte_rate=1048576.0" in described and "request_percentage=12.5" in described
    java(jars, *tool, "--alter", "--delete-config", "connection_creation_rate", *of_addresses)
    assert "192.0.2.1" not in quota(cluster, "list")


@pytest.mark.slow
def test_three_brokers_together_stay_at_the_quota(cluster: Cluster) -> None:
    """One client id in three processes' worth of producers on three brokers for 30 s: within 10 % of the quota."""
    topic, client_id, rate = made_topic(cluster), f"shared-{uuid4().hex[:8]}", 2_000_000
    quota(cluster, "set", f"client-id={client_id}", "producer_byte_rate", str(rate), "--yes")
    produced(cluster, topic, client_id, 3)  # the burst
    with ThreadPoolExecutor(3) as threads:
        runs = [threads.submit(produced, cluster, topic, client_id, 30) for _ in range(3)]

    total = sum(run.result()[0] for run in runs)

    assert total == pytest.approx(30 * rate, rel=0.1)
