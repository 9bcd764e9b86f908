"""Brokers that are forked start, end and start again as those that are processes of their own."""

from __future__ import annotations

import signal
import subprocess

import pytest
from redis import Redis

from bench.cluster import Cluster
from tests.kit.forked_cluster import ForkServer
from tidegate.settings import Settings

INTERVAL = "tidegate.log.upkeep.CHECK_INTERVAL_MS"


def test_forked_broker_is_killed_starts_again_and_drains(cluster: Cluster) -> None:
    """It drains at last, which ends its lease: other tests of the same cluster would find a broker that is dead."""
    broker = cluster.add_broker()
    killed = broker.process
    assert killed is not None and killed.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        killed.wait(0.01)
    broker.kill()
    assert killed.returncode == -signal.SIGKILL

    broker.start()
    broker.wait_ready()
    assert broker.drain() == 0
    cluster.brokers.remove(broker)
    with Redis.from_url(cluster.redis_url) as redis:
        seconds, microseconds = redis.time()
        ended_at_ms = seconds * 1_000 + microseconds // 1_000 - Settings().broker_lease_timeout_ms
        assert redis.zcount("tidegate:{cluster}:leases", f"({ended_at_ms}", "+inf") == len(cluster.brokers)


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
