"""`tidegate dev` as a person meets it: ready, usable, clear when it cannot start, gone without a trace."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.support.valkey import free_port

READY_S = 60.0
STOP_S = 60.0


def free_ports(count: int) -> int:
    """The first of `count` ports in a row that nobody listens on now."""
    ports = [free_port()]
    while len(ports) < count:
        port = free_port()
        ports = [*ports, port] if port == ports[-1] + 1 else [port]
    return ports[0]


class Dev:
    """One `tidegate dev`; of two brokers, which are forked, or of one, which is a process of its own."""

    def __init__(self, runtime_dir: Path, *options: str, brokers: int = 2) -> None:
        self.brokers = brokers
        self.port, self.admin_port, self.redis_port = free_ports(2), free_ports(2), free_port()
        self.env = {**os.environ, "XDG_RUNTIME_DIR": str(runtime_dir)}
        command = ["dev", "--brokers", str(brokers), "--port", str(self.port), "--admin-port", str(self.admin_port)]
        if "--redis-url" not in options:
            command += ["--redis-port", str(self.redis_port)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidegate", *command, *options],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def ports(self) -> list[int]:
        """Every port that is taken while it runs."""
        own = [port + number for port in (self.port, self.admin_port) for number in range(self.brokers)]
        return [*own, self.redis_port]

    @property
    def bootstrap(self) -> str:
        """As its ready line must give it."""
        return ",".join(f"127.0.0.1:{self.port + number}" for number in range(self.brokers))

    def wait_ready(self) -> None:
        """Read up to the ready line."""
        stream: IO[str] | None = self.process.stdout
        assert stream is not None
        observed = []
        for line in stream:
            observed.append(line)
            if line.startswith("ready "):
                assert line == f"ready bootstrap={self.bootstrap}\n"
                return
        raise AssertionError("never ready:\n" + "".join(observed))

    def stop(self, *numbers: int) -> int:
        """Signal it, and wait; its exit code."""
        for number in numbers:
            if self.process.poll() is None:
                self.process.send_signal(number)
        code = self.process.wait(STOP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def tidegate(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another `tidegate` command of the same user."""
        return subprocess.run(
            [sys.executable, "-m", "tidegate", *arguments], env=self.env, capture_output=True, text=True, timeout=60
        )


def wait_until_free(ports: list[int]) -> None:
    """Until nobody listens on any of the ports."""
    deadline = time.monotonic() + STOP_S
    for port in ports:
        while True:
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    sock.bind(("127.0.0.1", port))
                    break
                except OSError:
                    assert time.monotonic() < deadline, f"port {port} is still taken"
            time.sleep(0.05)


def running(runtime_dir: Path, brokers: int = 2) -> Iterator[Dev]:
    """A ready one, in memory, stopped at the end."""
    started = Dev(runtime_dir, brokers=brokers)
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop(signal.SIGTERM)


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """A running `tidegate dev` that tests share."""
    yield from running(tmp_path_factory.mktemp("runtime"))


@pytest.fixture(params=[1, 2])
def own_dev(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Dev]:
    """A running `tidegate dev` of the test's own, to be stopped by it."""
    yield from running(tmp_path, request.param)


async def test_produced_records_are_consumed(dev: Dev) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=dev.bootstrap)
    await producer.start()
    sent = [await producer.send_and_wait("greetings", b"hello %d" % n) for n in range(3)]
    await producer.stop()
    consumer = AIOKafkaConsumer(
        "greetings", bootstrap_servers=dev.bootstrap, group_id="readers", auto_offset_reset="earliest"
    )
    await consumer.start()
    records = [await asyncio.wait_for(consumer.getone(), 30) for _ in range(3)]
    await consumer.stop()

    assert [record.offset for record in sent] == [0, 1, 2]
    assert [record.value for record in records] == [b"hello 0", b"hello 1", b"hello 2"]


async def test_metadata_lists_every_broker(dev: Dev) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=dev.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic("orders", num_partitions=4, replication_factor=1)])
    cluster = await admin.describe_cluster()
    await admin.close()

    assert {broker["port"] for broker in cluster["brokers"]} == {dev.port, dev.port + 1}


def test_redis_is_found_by_the_redis_command(dev: Dev) -> None:
    shown = dev.tidegate("redis", "TYPE", "tidegate:{cluster}:info")
    missing = dev.tidegate("redis", "GET", "no-such-key")
    refused = dev.tidegate("redis", "NONSENSE")

    assert (shown.stdout, shown.returncode) == ("hash\n", 0)
    assert (missing.stdout, missing.returncode) == ("(nil)\n", 0)
    assert refused.stdout.startswith("(error) ERR unknown command")
    assert refused.returncode == 1


def test_ctrl_c_stops_everything(own_dev: Dev) -> None:
    assert own_dev.stop(signal.SIGINT) == 0

    wait_until_free(own_dev.ports)


def test_signals_at_once_stop_everything(own_dev: Dev) -> None:
    """As a supervisor and `make` send them: one signals the group, the other passes it on."""
    assert own_dev.stop(signal.SIGINT, signal.SIGTERM) == 0

    wait_until_free(own_dev.ports)


def test_nothing_outlives_a_killed_parent(own_dev: Dev) -> None:
    if sys.platform != "linux":
        pytest.skip("the kernel signals a parent's death to children on Linux only")

    own_dev.stop(signal.SIGKILL)

    wait_until_free(own_dev.ports)


async def generation_of_one_more_member(dev: Dev) -> int:
    """A member joins the group "readers", gets its partitions, and leaves."""
    consumer = AIOKafkaConsumer("kept", bootstrap_servers=dev.bootstrap, group_id="readers")
    await consumer.start()
    async with asyncio.timeout(30):
        while not consumer.assignment():
            await asyncio.sleep(0.05)
    generation: int = consumer._coordinator.generation
    await consumer.stop()
    return generation


async def test_data_survives_between_runs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = Dev(tmp_path, "--data", str(data))
    first.wait_ready()
    producer = AIOKafkaProducer(bootstrap_servers=first.bootstrap)
    await producer.start()
    await producer.send_and_wait("kept", b"still here")
    await producer.stop()
    assert await generation_of_one_more_member(first) == 1
    assert first.stop(signal.SIGINT) == 0

    second = Dev(tmp_path, "--data", str(data))
    second.wait_ready()
    try:
        consumer = AIOKafkaConsumer("kept", bootstrap_servers=second.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        record = await asyncio.wait_for(consumer.getone(), 30)
        await consumer.stop()
        generation = await generation_of_one_more_member(second)
    finally:
        second.stop(signal.SIGINT)

    assert (record.offset, record.value) == (0, b"still here")
    assert generation < 10, "a clean restart lost nothing, so no generations are skipped"


def test_data_directory_serves_one_at_a_time(tmp_path: Path) -> None:
    first = Dev(tmp_path, "--data", str(tmp_path / "data"))
    first.wait_ready()
    try:
        second = Dev(tmp_path, "--data", str(tmp_path / "data"))
        output, _ = second.process.communicate(timeout=READY_S)
    finally:
        first.stop(signal.SIGINT)

    assert second.process.returncode == 2
    assert output == f"tidegate: another `tidegate dev` uses {tmp_path / 'data'}\n"


def test_port_in_use_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = subprocess.run(
            [sys.executable, "-m", "tidegate", "dev", "--port", str(port), "--admin-port", str(free_ports(3))],
            env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=READY_S,
        )

    assert run.returncode == 2
    assert run.stderr == f"tidegate: port {port} is in use (--port takes others)\n"


@pytest.mark.parametrize("command", ["serve", "dev"])
def test_unreachable_redis_is_reported_in_one_line(tmp_path: Path, command: str) -> None:
    port = free_ports(3)
    ports = ["--port", str(port), "--admin-port", str(free_ports(3))]
    run = subprocess.run(
        [sys.executable, "-m", "tidegate", command, *ports, "--redis-url", f"redis://127.0.0.1:{free_port()}/0"],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=READY_S,
    )

    assert run.returncode == 2
    assert "Redis is not reachable" in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1
