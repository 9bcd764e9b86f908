"""Apache Kafka's own tools of administrators, from their jars, on brokers that publish internal topics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from bench.cluster import Cluster
from tests.conformance.test_java import groups, jars, java

assert jars  # the fixture

pytestmark = pytest.mark.peer

TOOLS = "org.apache.kafka.tools"
SETTINGS = {"TIDEGATE_INTERNAL_TOPICS_INTERVAL_MS": "200", "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two brokers."""
    with Cluster(brokers=2, settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def topic(cluster: Cluster, jars: str) -> str:
    """One of two partitions with 100 records together."""
    at = ("--bootstrap-server", cluster.bootstrap, "--topic", "t")
    java(jars, f"{TOOLS}.TopicCommand", *at, "--create", "--partitions", "2")
    java(jars, f"{TOOLS}.ConsoleProducer", *at, stdin="".join(f"{n}\n" for n in range(100)))
    return "t"


def tool(jars: str, cluster: Cluster, name: str, *arguments: str) -> str:
    return java(jars, f"{TOOLS}.{name}", "--bootstrap-server", cluster.bootstrap, *arguments)


def test_java_tools_of_partitions(cluster: Cluster, jars: str, topic: str, tmp_path: Path) -> None:
    def sizes() -> list[int]:
        described = tool(jars, cluster, "LogDirsCommand", "--describe", "--topic-list", topic)
        (line,) = [one for one in described.splitlines() if one.startswith("{")]
        return [part["size"] for broker in json.loads(line)["brokers"] for of in broker["logDirs"]
                for part in of["partitions"]]  # fmt: skip

    while sum(sizes()) <= 100:  # the brokers count each second
        pass
    assert len(sizes()) == 2

    offsets = tmp_path / "offsets.json"
    parts = [{"topic": topic, "partition": index, "offset": -1} for index in (0, 1)]
    offsets.write_text(json.dumps({"partitions": parts, "version": 1}))
    deleted = tool(jars, cluster, "DeleteRecordsCommand", "--offset-json-file", str(offsets))
    marks = [int(one.rpartition(":")[2]) for one in deleted.splitlines() if "low_watermark" in one]
    assert sum(marks) == 100

    elected = tool(jars, cluster, "LeaderElectionCommand", "--election-type", "preferred", "--topic", topic,
                   "--partition", "0")  # fmt: skip
    assert "Valid replica already elected" in elected
    assert "No partition reassignments found" in tool(jars, cluster, "reassign.ReassignPartitionsCommand", "--list")


def test_java_tools_of_the_cluster(cluster: Cluster, jars: str, topic: str) -> None:
    assert "transaction.version" in tool(jars, cluster, "FeatureCommand", "describe")
    quorum = tool(jars, cluster, "MetadataQuorumCommand", "describe", "--status")
    assert len(re.findall(r'"id": \d+', quorum)) == len(cluster.brokers)
    assert "TransactionalId" in tool(jars, cluster, "TransactionsCommand", "list")


def test_java_formatter_reads_committed_offsets(cluster: Cluster, jars: str, topic: str) -> None:
    groups(jars, cluster, "--group", "g", "--topic", topic, "--reset-offsets", "--to-earliest", "--execute")
    read = tool(
        jars, cluster, "consumer.ConsoleConsumer", "--topic", "__consumer_offsets", "--from-beginning",
        "--max-messages", "2", "--timeout-ms", "60000",
        "--formatter", f"{TOOLS}.consumer.OffsetsMessageFormatter",
    )  # fmt: skip
    assert '"group":"g","topic":"t"' in read.replace("}{", "}\n{") and '"version":3' in read


def test_java_formatter_reads_transactions(cluster: Cluster, jars: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "formatted"})
    producer.init_transactions(60)
    read = tool(
        jars, cluster, "consumer.ConsoleConsumer", "--topic", "__transaction_state", "--from-beginning",
        "--max-messages", "1", "--timeout-ms", "60000",
        "--formatter", f"{TOOLS}.consumer.TransactionLogMessageFormatter",
    )  # fmt: skip
    found, _ = json.JSONDecoder().raw_decode(read, read.index("{"))
    assert found["key"] == {"type": 0, "data": {"transactionalId": "formatted"}}
    assert found["value"]["version"] == 1 and found["value"]["data"]["transactionStatus"] == 0
