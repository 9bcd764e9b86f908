"""`tidegate serve`: one line and exit code 2 when it cannot start; ready while it can serve; drained on SIGTERM."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import BrokerProcess
from tests.support.valkey import ValkeyServer, free_port
from tidegate.cluster.drains import request_drain
from tidegate.settings import Settings
from tidegate.store.store import Store

START_S = 60.0


def refusal(*options: str) -> str:
    """What `tidegate serve` says when it cannot start; it must be one line, with exit code 2."""
    ports = ["--port", "0", "--admin-port", "0"]
    run = subprocess.run(
        [sys.executable, "-m", "tidegate", "serve", *ports, "--log-level", "error", *options],
        capture_output=True,
        text=True,
        timeout=START_S,
    )
    assert run.returncode == 2, run.stderr
    assert len(run.stderr.splitlines()) == 1, run.stderr
    return run.stderr


def answer(broker: BrokerProcess, path: str) -> tuple[int, Any]:
    """Status and JSON of the admin HTTP."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.admin_port}{path}", timeout=START_S) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def until(condition: Callable[[], object], seconds: float = START_S) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    """An empty server of this test alone."""
    started = ValkeyServer()
    yield started
    started.stop()


@contextmanager
def started(server: ValkeyServer, directory: Path, **settings: str) -> Iterator[BrokerProcess]:
    """A ready broker, which is killed in the end if it is still there."""
    broker = BrokerProcess(
        server.url, directory, "broker", {f"TIDEGATE_{name.upper()}": value for name, value in settings.items()}
    )
    broker.start()
    try:
        broker.wait_ready()
        yield broker
    finally:
        broker.kill()


@contextmanager
def with_a_client(broker: BrokerProcess) -> Iterator[subprocess.Popen[bytes]]:
    """Its process; a client is connected, so that a drain has somebody to wait for."""
    assert broker.process is not None
    with socket.create_connection(("127.0.0.1", broker.port)):
        until(lambda: b'connections{listener="PLAINTEXT"} 1' in metrics_of(broker))
        yield broker.process


@pytest.fixture
def broker(server: ValkeyServer, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A ready broker with node id 7."""
    with started(server, tmp_path, node_id="7") as running:
        yield running


def test_archive_that_cannot_be_opened_is_one_line(server: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_ARCHIVE_PATH", "nope://somewhere")
    reported = refusal("--redis-url", server.url)

    assert "the archive cannot be opened at nope://somewhere" in reported
    assert "TIDEGATE_ARCHIVE_PATH" in reported


def test_port_in_use_is_named(server: ValkeyServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])

        reported_text = refusal("--redis-url", server.url, "--port", port)
        assert reported_text.startswith(f"tidegate: port {port} on 127.0.0.1 is in use")
        assert "TIDEGATE_ADMIN_PORT" in refusal("--redis-url", server.url, "--admin-port", port)


def test_bad_value_is_named() -> None:
    assert refusal("--set", "group_max_size=many").startswith("tidegate: --set group_max_size=many: ")


def test_redis_that_is_away_is_named_without_its_password() -> None:
    reported_text = refusal("--redis-url", f"redis://user:secret@127.0.0.1:{free_port()}/0")

    assert reported_text.startswith("tidegate: Redis is not reachable at redis://user:***@127.0.0.1:")
    assert "secret" not in reported_text


def test_redis_that_evicts_keys_is_refused() -> None:
    server = ValkeyServer(["--maxmemory-policy", "allkeys-lru"])
    try:
        assert "maxmemory-policy is allkeys-lru" in refusal("--redis-url", server.url)
    finally:
        server.stop()


def test_settings_that_differ_from_the_clusters_are_refused(server: ValkeyServer, broker: BrokerProcess) -> None:
    reported_text = refusal("--redis-url", server.url, "--set", "coordinator_shards=7")

    assert "coordinator_shards=50" in reported_text
    assert "coordinator_shards=7" in reported_text


def test_fixed_node_id_in_use_is_refused(server: ValkeyServer, broker: BrokerProcess) -> None:
    assert "node id 7 is held by another live broker" in refusal("--redis-url", server.url, "--node-id", "7")


def test_broker_without_redis_is_live_and_not_ready_and_recovers(server: ValkeyServer, broker: BrokerProcess) -> None:
    server.kill()
    until(lambda: answer(broker, "/health/ready")[0] == 503)
    assert "redis is not reachable" in answer(broker, "/health/ready")[1]["reasons"]
    assert answer(broker, "/health/live")[0] == 200

    server.start()

    until(lambda: answer(broker, "/health/ready")[0] == 200)


def test_sigterm_drains_and_exits_with_0(broker: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", broker.port)) as client:
        assert broker.drain() == 0

        assert client.recv(1) == b""


async def asked_to_drain(redis_url: str, node_id: int) -> None:
    """Ask as the commands and the console do, from another process."""
    store = Store(Settings(redis_url=redis_url))
    await store.start()
    await request_drain(store, node_id)
    await store.close()


def test_drain_on_request_ends_as_sigterm_does(server: ValkeyServer, broker: BrokerProcess) -> None:
    process = broker.process
    assert process is not None
    asyncio.run(asked_to_drain(server.url, 7))

    assert process.wait(START_S) == 0
    assert "asked_to_drain" in broker.log_path.read_text()


def test_sigterm_continues_a_requested_drain(server: ValkeyServer, tmp_path: Path) -> None:
    with started(server, tmp_path, node_id="8", drain_notice_ms="8000", shutdown_timeout_ms="32000") as waiting:
        with with_a_client(waiting) as process:
            asyncio.run(asked_to_drain(server.url, 8))
            until(lambda: answer(waiting, "/health/ready")[0] == 503)
            waiting.signal(signal.SIGTERM)
            until(lambda: "asked_to_stop" in waiting.log_path.read_text())

            assert process.poll() is None
            assert process.wait(START_S) == 0
        assert waiting.log_path.read_text().count(" draining ") == 1


def test_drain_without_redis_ends_all_the_same(server: ValkeyServer, broker: BrokerProcess) -> None:
    server.kill()

    assert broker.drain() == 0


def test_second_signal_ends_a_drain_at_once(server: ValkeyServer, tmp_path: Path) -> None:
    slow = {"drain_notice_ms": "60000", "shutdown_timeout_ms": "240000"}
    with started(server, tmp_path, **slow) as waiting, with_a_client(waiting) as process:
        waiting.signal(signal.SIGTERM)
        until(lambda: answer(waiting, "/health/ready")[0] == 503)
        waiting.signal(signal.SIGINT)

        assert process.wait(START_S) == 1  # 0 after a drain


def metrics_of(broker: BrokerProcess) -> bytes:
    """The Prometheus text; the first request waits until the broker has imported its HTTP server."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.admin_port}/metrics", timeout=START_S) as response:
        text: bytes = response.read()
    return text
