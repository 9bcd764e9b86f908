"""One of two brokers loses its way to Redis, under idempotent producers: they go on with the other one."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bench.cluster import BrokerProcess, Cluster
from tests.chaos.test_stalls import TOPIC, Writer, stored
from tests.support.broker_logs import tracebacks
from tests.support.proxy import BOTH, Proxy

WRITERS, PARTITIONS = 1, 8
"""So many partitions that the broker is surely named as the leader of some."""
GOES_ON_WITHIN_S = 60.0
"""5 s for a command, 10 s until the broker's lease is gone, and what clients wait before they try again."""


def acknowledged_up_to(writers: list[Writer]) -> list[int]:
    """How many records of each writer and partition are acknowledged."""
    counts = Counter((writer.name, key[1]) for writer in writers for key in list(writer.acknowledged))
    return [counts[writer.name, partition] for writer in writers for partition in range(PARTITIONS)]


@pytest.mark.timeout(300)
async def test_cut_off_broker_producers_go_on_with_another(rng: random.Random) -> None:
    with Cluster(brokers=1) as cluster:
        proxy = Proxy(cluster.redis_port, rng.randrange(1 << 32))
        await proxy.start()
        cut_off = BrokerProcess(proxy.url, cluster.directory, "cut-off", cluster.settings)
        cluster.brokers.append(cut_off)
        cut_off.start()
        await asyncio.to_thread(cut_off.wait_ready)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        await asyncio.to_thread(admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result, 30)
        writers = [Writer(cluster.bootstrap, f"writer-{number}", PARTITIONS) for number in range(WRITERS)]
        try:
            async with asyncio.timeout(60):
                while min(acknowledged_up_to(writers)) < 10:
                    await asyncio.sleep(0.1)
            proxy.black_hole(*BOTH)
            began = time.monotonic()
            await asyncio.sleep(2)  # the cut-off broker has some
            marks = [writer.sent // PARTITIONS for writer in writers for _ in range(PARTITIONS)]
            while any(end < mark for end, mark in zip(acknowledged_up_to(writers), marks, strict=True)):
                assert time.monotonic() - began < GOES_ON_WITHIN_S, f"{acknowledged_up_to(writers)} of {marks}"
                await asyncio.sleep(0.2)
            took = time.monotonic() - began
        finally:
            proxy.restore()
            await asyncio.to_thread(cut_off.wait_ready)
            for writer in writers:
                writer.stop()
            await asyncio.gather(*(asyncio.to_thread(writer.wait) for writer in writers))
        found = await asyncio.to_thread(stored, cluster.brokers[0].address, PARTITIONS)
        await proxy.close()

        acknowledged = {key for writer in writers for key in writer.acknowledged}
        failures = [failure for writer in writers for failure in writer.failures]
        twice = [(*key, n) for key, numbers in found.items() for n, times in Counter(numbers).items() if times > 1]
        lost = acknowledged - {(*key, number) for key, numbers in found.items() for number in numbers}
        counts = f"{len(acknowledged)} acknowledged, {len(twice)} twice, {len(lost)} lost"
        print(f"{counts}; every producer went on after {took:.1f} s")
        assert not failures, failures[:5]
        assert not twice, twice[:5]
        assert not lost, sorted(lost)[:5]
        assert not tracebacks(cluster)
