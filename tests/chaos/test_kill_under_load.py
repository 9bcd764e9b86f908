"""Brokers are killed and started again, one every three seconds, under idempotent producers and two groups."""

from __future__ import annotations

import asyncio
import random
import time

from bench.cluster import Cluster
from tests.support.broker_logs import tracebacks
from tests.support.load import Load

LENGTH_S = 24.0
EVERY_S = 3.0


async def test_killed_brokers_lose_double_and_reorder_nothing(rng: random.Random) -> None:
    with Cluster(brokers=3) as cluster:
        async with Load(cluster.bootstrap) as load:
            ends = time.monotonic() + LENGTH_S
            while time.monotonic() < ends:
                began = time.monotonic()
                broker = rng.choice(cluster.brokers)
                broker.kill()
                await asyncio.sleep(rng.uniform(0, 1))
                broker.start()
                await asyncio.to_thread(broker.wait_ready)
                await asyncio.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))
        print(await load.check())
        assert not tracebacks(cluster)
