"""The server is killed and comes back with its append-only file, under idempotent producers and two groups."""

from __future__ import annotations

import asyncio
import random

from bench.cluster import Cluster
from tests.support.broker_logs import tracebacks
from tests.support.load import Load

AWAY_S = 3.0
FSYNC_ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")


async def test_nothing_acknowledged_is_lost_and_all_recover(rng: random.Random) -> None:
    with Cluster(brokers=3, server_options=FSYNC_ALWAYS) as cluster:
        async with Load(cluster.bootstrap) as load:
            for _ in range(2):
                await asyncio.sleep(rng.uniform(3, 5))
                cluster.kill_server()
                await asyncio.sleep(AWAY_S)
                await asyncio.to_thread(cluster.start_server)
                for broker in cluster.brokers:
                    await asyncio.to_thread(broker.wait_ready)
                before = len(load.acknowledged)
                await asyncio.sleep(4)
                assert len(load.acknowledged) > before, "producers did not go on by themselves"
        print(await load.check())
        assert not tracebacks(cluster)
