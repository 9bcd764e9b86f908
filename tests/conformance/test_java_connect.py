"""A distributed Kafka Connect worker with a file source and a file sink, while a broker and the worker are killed."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.cluster import Cluster, free_port
from bench.jars import PeerUnavailable, connect_jars

pytestmark = [pytest.mark.peer, pytest.mark.slow]

TOPIC = "lines"
DEADLINE_S = 300
FILE = "org.apache.kafka.connect.file.FileStream"
STORES = ("configs", "offsets", "status")


class Worker:
    """One worker process; connectors are made and asked for by its REST interface."""

    def __init__(self, jars: str, cluster: Cluster, directory: Path) -> None:
        self._address = f"http://127.0.0.1:{(port := free_port())}"
        config = {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "connect",
            "exactly.once.source.support": "enabled",
            "listeners": f"http://127.0.0.1:{port}",
            "rest.advertised.host.name": "127.0.0.1",
            "plugin.discovery": "only_scan",
            "offset.flush.interval.ms": 500,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 500,
            "scheduled.rebalance.max.delay.ms": 0,
        }
        for converter in ("key.converter", "value.converter"):
            config[converter] = "org.apache.kafka.connect.storage.StringConverter"
        for name, topic in zip(("config", "offset", "status"), STORES, strict=True):
            config |= {f"{name}.storage.topic": topic, f"{name}.storage.replication.factor": 1}
        path = directory / "worker.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
        self._log = (directory / f"worker-{port}.log").open("wb")
        self._process = subprocess.Popen(
            ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
             "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", jars,
             "org.apache.kafka.connect.cli.ConnectDistributed", str(path)],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The reply to GET, or to PUT of a body; None while the worker cannot answer."""
        request = urllib.request.Request(
            self._address + path,
            data=json.dumps(body).encode() if body else None,
            headers={"Content-Type": "application/json"},
            method="PUT" if body else "GET",
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.load(reply)
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return None

    def create(self, name: str, config: dict[str, Any]) -> None:
        """Make a connector once the worker has joined its group."""
        wait_until(
            lambda: self.ask(f"/connectors/{name}/config", config) is not None,
            lambda: f"{name} was not accepted: the worker has {self.ask('/connectors')}",
        )

    def states(self) -> list[str]:
        """Of both connectors and their tasks."""
        found = [self.ask(f"/connectors/{name}/status") or {} for name in ("source", "sink")]
        return [part["state"] for one in found for part in (one.get("connector", {}), *one.get("tasks", [])) if part]

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()
        self._log.close()


@contextmanager
def working(jars: str, cluster: Cluster, directory: Path) -> Iterator[Worker]:
    """A worker with both connectors running."""
    worker = Worker(jars, cluster, directory)
    try:
        yield worker
    finally:
        worker.kill()


def wait_until(holds: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.3)


class Files:
    """The file that the source reads, and the one that the sink writes."""

    def __init__(self, directory: Path) -> None:
        self.source, self.sink = directory / "source.txt", directory / "sink.txt"
        self.source.touch()
        self.written: list[str] = []

    def append(self, count: int) -> None:
        """More lines for the source."""
        lines = [f"line-{number}" for number in range(len(self.written), len(self.written) + count)]
        with self.source.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
        self.written += lines

    def delivered(self) -> list[str]:
        """The lines that the sink has written."""
        return self.sink.read_text().splitlines() if self.sink.exists() else []

    def wait_delivered(self) -> None:
        """Until the sink has each line."""
        wait_until(lambda: set(self.delivered()) == set(self.written), lambda: len(set(self.delivered())))


def committed(cluster: Cluster) -> list[str]:
    """The values of the topic, as a reader of committed records finds them."""
    consumer = Consumer({
        "bootstrap.servers": cluster.bootstrap, "group.id": "reader", "isolation.level": "read_committed",
        "enable.auto.commit": False, "enable.partition.eof": True,
    })  # fmt: skip
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        values = []
        while (message := consumer.poll(DEADLINE_S)) is not None and message.error() is None:
            values.append((message.value() or b"").decode())
        return values
    finally:
        consumer.close()


def coordinator_of(cluster: Cluster, group: str) -> Any:
    """The broker process that coordinates a group."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    described = admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
    port = described.coordinator.port
    return next(broker for broker in cluster.brokers if broker.address.endswith(f":{port}"))


@pytest.fixture
def jars() -> str:
    try:
        return connect_jars()
    except PeerUnavailable as error:
        pytest.skip(str(error))


def test_connectors_survive_a_killed_broker_and_a_killed_worker(jars: str, tmp_path: Path) -> None:
    files = Files(tmp_path)
    connectors = {
        "source": {"connector.class": f"{FILE}SourceConnector", "file": str(files.source), "topic": TOPIC},
        "sink": {"connector.class": f"{FILE}SinkConnector", "file": str(files.sink), "topics": TOPIC},
    }
    with Cluster(brokers=3, settings={}) as cluster:
        with working(jars, cluster, tmp_path) as worker:
            for name, config in connectors.items():
                worker.create(name, config)
            files.append(2_000)
            files.wait_delivered()
            described = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=DEADLINE_S).topics
            assert {*STORES, TOPIC} <= set(described)

            broker = coordinator_of(cluster, "connect-sink")
            broker.kill()
            files.append(2_000)
            files.wait_delivered()
            broker.start()
            wait_until(lambda: worker.states() == ["RUNNING"] * 4, worker.states)

        with working(jars, cluster, tmp_path) as worker:  # the first was killed; configs and offsets are in topics
            files.append(2_000)
            files.wait_delivered()
            wait_until(lambda: worker.states() == ["RUNNING"] * 4, worker.states)
        assert committed(cluster) == files.written
