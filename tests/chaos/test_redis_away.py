"""The server is killed and comes back with its append-only file, under idempotent producers and two groups."""

from __future__ import annotations

import asyncio
import random

import pytest

from bench.cluster import Cluster
from tests.support.broker_logs import tracebacks
from tests.support.load import Load

FSYNC_ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.mark.parametrize(("times", "away_s"), [(2, 3.0), (1, 12.0)], ids=["twice", "longer than leases and sessions"])
async def test_nothing_acknowledged_is_lost_and_all_recover(rng: random.Random, times: int, away_s: float) -> None:
    with Cluster(brokers=3, server_options=FSYNC_ALWAYS) as cluster:
        async with Load(cluster.bootstrap) as load:
            for _ in range(times):
                await asyncio.sleep(rng.uniform(3, 5))
                cluster.kill_server()
                await asyncio.sleep(away_s)
                await asyncio.to_thread(cluster.start_server)
                await load.goes_on(cluster.brokers)
        print(await load.check())
        assert load.rebalances == 0, "nobody was silent but Redis"
        assert not tracebacks(cluster)
