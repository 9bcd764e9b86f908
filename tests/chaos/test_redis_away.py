"""The server is killed and comes back with its append-only file, under idempotent producers and two groups."""

from __future__ import annotations

import asyncio
import random

from bench.cluster import Cluster
from tests.support.broker_logs import tracebacks
from tests.support.load import Load

FSYNC_ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")


AWAY_S = 12.0
"""Longer than leases and sessions."""


async def test_log_119_redis_unavailable_loses_no_acknowledged_write_and_removes_no_member(rng: random.Random) -> None:
    """Scenario 119 of logs."""
    with Cluster(brokers=3, server_options=FSYNC_ALWAYS) as cluster:
        async with Load(cluster.bootstrap) as load:
            await asyncio.sleep(rng.uniform(3, 5))
            cluster.kill_server()
            await asyncio.sleep(AWAY_S)
            await asyncio.to_thread(cluster.start_server)
            await load.is_alive(cluster.brokers)
        print(await load.check())
        assert load.rebalances == 0, "nobody was silent but Redis"
        assert not tracebacks(cluster)
