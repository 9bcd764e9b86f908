"""Brokers that are forked start, end and start again as those that are processes of their own."""

from __future__ import annotations

import signal
import subprocess

import pytest

from bench.cluster import Cluster
from tests.kit.forked_cluster import ForkServer

INTERVAL = "tidegate.log.upkeep.CHECK_INTERVAL_MS"


def test_forked_broker_drains_is_killed_and_starts_again(cluster: Cluster) -> None:
    broker = cluster.add_broker()
    assert broker.process is not None and broker.process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        broker.process.wait(0.01)
    assert broker.drain() == 0

    broker.start()
    broker.wait_ready()
    killed = broker.process
    broker.kill()
    cluster.brokers.remove(broker)
    assert killed.returncode == -signal.SIGKILL


def test_fork_server_reports_what_cannot_start(tmp_path) -> None:
    server = ForkServer()
    try:
        log = tmp_path / "log"
        refused = server.start({"TIDEGATE_REDIS_URL": "nonsense"}, str(log), {INTERVAL: 1_000})
        assert refused.wait(60) == 2
        assert log.read_text().startswith("tidegate: ")
        wrong = server.start({}, str(log), {"tidegate.log.upkeep.NO_SUCH_CONSTANT": 1})
        assert wrong.wait(60) == 1
    finally:
        server.stop()
