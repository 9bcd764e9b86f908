"""`tidegate serve --processes N`: brokers like any others, one of which may die at any time; one signal drains all."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bench.cluster import BrokerProcess
from tests.conformance.test_dev_command import free_ports, wait_until_free
from tests.support.valkey import ValkeyServer

PROCESSES = 2
READY_S = 60.0


class Host:
    """One `tidegate serve` with several processes."""

    def __init__(self, redis_url: str, directory: Path, notice_ms: int = 2_000) -> None:
        self.port, self.admin_port = free_ports(PROCESSES), free_ports(PROCESSES)
        settings = {
            "TIDEGATE_PROCESSES": str(PROCESSES),
            "TIDEGATE_PORT": str(self.port),
            "TIDEGATE_ADMIN_PORT": str(self.admin_port),
            "TIDEGATE_SHUTDOWN_TIMEOUT_MS": str(4 * notice_ms),
            "TIDEGATE_DRAIN_NOTICE_MS": str(notice_ms),
            "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        }
        self.process = BrokerProcess(redis_url, directory, "host", settings)
        self.process.admin_port = self.admin_port
        self.process.start()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def ports(self) -> list[int]:
        return [self.port + ordinal for ordinal in range(PROCESSES)]

    def pids(self) -> dict[int, int]:
        """Port -> the process that listens there now, by its log."""
        found = re.findall(r" listening .*pid=(\d+) port=(\d+)", self.process.log_path.read_text())
        return {int(port): int(pid) for pid, port in found}

    def ready(self, ordinal: int = 0) -> tuple[int, list[str]]:
        """Status and reasons of a process's readiness probe; 0 while it does not listen."""
        url = f"http://127.0.0.1:{self.admin_port + ordinal}/health/ready"
        try:
            with urllib.request.urlopen(url, timeout=2) as response:
                return response.status, json.load(response)["reasons"]
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)["reasons"]
        except OSError:
            return 0, []


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    """A host of two processes, both ready, on a server of its own; its parameter is the notice before a drain, ms."""
    server = ValkeyServer()
    started = Host(server.url, tmp_path, getattr(request, "param", 2_000))
    try:
        started.process.wait_ready()
        yield started
    finally:
        started.process.kill()
        server.stop()


async def committed_one_by_one(host: Host, count: int) -> tuple[list[bytes], int]:
    """Consume records one by one, commit each, kill each process once on the way; the values, and the last commit."""
    consumer = AIOKafkaConsumer(
        "orders", bootstrap_servers=host.bootstrap, group_id="readers", auto_offset_reset="earliest",
        enable_auto_commit=False, session_timeout_ms=30_000,
    )  # fmt: skip
    await consumer.start()
    values = []
    victims = {count // 3: host.port, 2 * count // 3: host.port + 1}
    try:
        while len(values) < count:
            record = await asyncio.wait_for(consumer.getone(), 60)
            values.append(record.value)
            await consumer.commit()
            if len(values) in victims:
                os.kill(host.pids()[victims[len(values)]], signal.SIGKILL)
        committed = await consumer.committed(TopicPartition("orders", 0))
    finally:
        await consumer.stop()
    return values, committed


async def test_group_survives_a_kill_of_each_process(host: Host) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=host.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic("orders", num_partitions=1, replication_factor=1)])
    async with asyncio.timeout(READY_S):  # a process may list the other one a moment after both are ready
        while {broker["port"] for broker in (await admin.describe_cluster())["brokers"]} != set(host.ports):
            await asyncio.sleep(0.05)
    await admin.close()
    before = host.pids()
    producer = AIOKafkaProducer(bootstrap_servers=host.bootstrap)
    await producer.start()
    expected = [b"order %d" % number for number in range(30)]
    for value in expected:
        await producer.send_and_wait("orders", value, partition=0)
    await producer.stop()

    values, committed = await committed_one_by_one(host, len(expected))

    assert (values, committed) == (expected, len(expected))
    until(lambda: host.ready() == (200, []))
    after = host.pids()
    assert before.keys() == after.keys() == set(host.ports)
    assert not set(before.values()) & set(after.values())


def test_first_answers_for_the_host_and_one_signal_drains_all(host: Host) -> None:
    os.kill(host.pids()[host.port + 1], signal.SIGSTOP)
    try:
        until(lambda: host.ready() == (503, ["process 1 of this host is not ready"]))
    finally:
        os.kill(host.pids()[host.port + 1], signal.SIGCONT)
    until(lambda: host.ready() == (200, []))

    assert host.process.drain() == 0
    assert len(re.findall(r" drained ", host.process.log_path.read_text())) == PROCESSES
    wait_until_free([*host.ports, host.admin_port, host.admin_port + 1])


def drain_by_http(host: Host) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{host.admin_port}/drain", method="POST")
    with urllib.request.urlopen(request, timeout=READY_S) as response:
        assert response.status == 202


def drain_by_signal(host: Host) -> None:
    assert host.process.process is not None
    host.process.process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("host", "requests"),
    [
        (2_000, (drain_by_http,)),
        (8_000, (drain_by_http, drain_by_signal)),  # the second request must find the host draining
        (8_000, (drain_by_signal, drain_by_http)),
    ],
    indirect=["host"],
    ids=["http", "http, signal", "signal, http"],
)
def test_drain_at_the_first_admin_http_drains_all(host: Host, requests: tuple[Callable[[Host], None], ...]) -> None:
    for request in requests:
        request(host)
        until(lambda: host.process.log_path.read_text().count(" draining ") == PROCESSES)

    assert host.process.process is not None
    assert host.process.process.wait(60) == 0
    assert len(re.findall(r" drained ", host.process.log_path.read_text())) == PROCESSES
