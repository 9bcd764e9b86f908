"""Apache Kafka's own Java tools, 4.1, from their jars: console producer and consumer, kafka-consumer-groups."""

from __future__ import annotations

import subprocess
import uuid

import pytest

from bench.cluster import Cluster
from bench.jars import PeerUnavailable, classpath

pytestmark = pytest.mark.peer

RECORDS = 10_000


@pytest.fixture(scope="module")
def jars() -> str:
    """The class path, or a skip that says why there is none."""
    try:
        return classpath()
    except PeerUnavailable as error:
        pytest.skip(str(error))


def java(jars: str, main: str, *arguments: str, stdin: str = "", timeout_s: float = 120) -> str:
    """Run one Java tool; its output. Fails with what it said."""
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jars, main, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout + done.stderr


def groups(jars: str, cluster: Cluster, *arguments: str) -> str:
    """`kafka-consumer-groups.sh`."""
    main = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    return java(jars, main, "--bootstrap-server", cluster.bootstrap, *arguments)


def consume(jars: str, cluster: Cluster, topic: str, group: str, count: int) -> list[int]:
    """`kafka-console-consumer.sh` in a group, from the beginning, until `count` records."""
    output = java(
        jars,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--group", group, "--from-beginning"),
        *("--max-messages", str(count), "--timeout-ms", "60000"),
    )
    return [int(line) for line in output.splitlines() if line.isdecimal()]


def test_java_producer_consumer_and_groups_tool(cluster: Cluster, jars: str) -> None:
    topic, group = f"java-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    java(
        jars,
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", cluster.bootstrap, "--create", "--topic", topic, "--partitions", "3"),
    )
    described = java(
        jars,
        "org.apache.kafka.tools.TopicCommand",
        "--bootstrap-server",
        cluster.bootstrap,
        "--describe",
        "--topic",
        topic,
    )
    assert "PartitionCount: 3" in described

    total = 0
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        java(
            jars,
            "org.apache.kafka.tools.ConsoleProducer",
            *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--compression-codec", codec),
            stdin="".join(f"{total + n}\n" for n in range(RECORDS)),
        )
        total += RECORDS

    first = consume(jars, cluster, topic, group, total * 2 // 3)
    second = consume(jars, cluster, topic, group, total - len(first))
    assert sorted(first + second) == list(range(total))

    assert group in groups(jars, cluster, "--list").split()
    offsets = groups(jars, cluster, "--describe", "--group", group)
    rows = [line.split() for line in offsets.splitlines() if line.startswith(group)]
    assert sum(int(row[3]) for row in rows) == sum(int(row[4]) for row in rows) == total
    assert {row[5] for row in rows} == {"0"}
    assert "has no active members" in offsets + groups(jars, cluster, "--describe", "--group", group, "--members")
    assert "Empty" in groups(jars, cluster, "--describe", "--group", group, "--state")

    reset = ("--reset-offsets", "--group", group, "--topic", topic)
    dry = groups(jars, cluster, *reset, "--to-earliest", "--dry-run")
    assert dry.count(topic) == 3
    groups(jars, cluster, *reset, "--to-earliest", "--execute")
    moved = groups(jars, cluster, "--describe", "--group", group)
    assert {line.split()[3] for line in moved.splitlines() if line.startswith(group)} == {"0"}
    groups(jars, cluster, *reset, "--shift-by", "5", "--execute")
    groups(jars, cluster, *reset, "--to-datetime", "2020-01-01T00:00:00.000", "--execute")

    assert "successful" in groups(jars, cluster, "--delete", "--group", group)
    assert group not in groups(jars, cluster, "--list").split()


def test_groups_tool_lists_live_members(cluster: Cluster, jars: str) -> None:
    from confluent_kafka import Consumer, Producer

    topic, group = f"java-live-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(topic, b"one")
    assert producer.flush(60) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "client.id": "seen",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    assert consumer.poll(60) is not None

    members = groups(jars, cluster, "--describe", "--group", group, "--members", "--verbose")
    state = groups(jars, cluster, "--describe", "--group", group, "--state")
    consumer.close()

    assert "seen" in members and f"{topic}:0" in members
    assert "Stable" in state and "range" in state


def test_java_consumer_uses_the_consumer_protocol(cluster: Cluster, jars: str) -> None:
    topic, group = f"java-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    java(
        jars,
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", cluster.bootstrap, "--create", "--topic", topic, "--partitions", "3"),
    )
    java(
        jars,
        "org.apache.kafka.tools.ConsoleProducer",
        *("--bootstrap-server", cluster.bootstrap, "--topic", topic),
        stdin="".join(f"{n}\n" for n in range(200)),
    )

    values = [
        int(line)
        for _ in range(2)
        for line in java(
            jars,
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--group", group, "--from-beginning"),
            *("--consumer-property", "group.protocol=consumer", "--max-messages", "100", "--timeout-ms", "60000"),
            *("--consumer-property", "max.poll.records=100"),
        ).splitlines()
        if line.isdecimal()
    ]

    assert sorted(values) == list(range(200))
    listed = groups(jars, cluster, "--list", "--type", "consumer")
    assert group in listed.split()
    assert "Empty" in groups(jars, cluster, "--describe", "--group", group, "--state")
