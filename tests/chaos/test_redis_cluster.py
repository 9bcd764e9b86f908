"""A Redis Cluster is harmed and resharded under idempotent producers and two groups of real clients."""

from __future__ import annotations

import asyncio
import json
import random
import time
import urllib.error
import urllib.request

import pytest

from bench.cluster import BrokerProcess, Cluster
from tests.support.broker_logs import tracebacks
from tests.support.load import PARTITIONS, TOPIC, Load
from tests.support.redis_cluster import Sharded
from tidegate.http.health import STALLED
from tidegate.store.keys import ShardKeys, shard_of
from tidegate.store.slots import key_slot

GROUPS = ("aiokafka", "librdkafka")
SHARDS = 50
NODE_TIMEOUT_MS = 4_000
"""Shorter ones take a node for dead that has no processor for a while."""
SETTINGS = {"TIDEGATE_DURABILITY": "replicated:1", "TIDEGATE_DURABILITY_TIMEOUT_MS": "10000"}


def slots_in_use(sharded: Sharded) -> list[int]:
    """Those of the load's partitions, of its groups' shards, and of the keys that all brokers share."""
    logs = [f"{{default/{TOPIC}:{index}}}" for index in range(PARTITIONS)]
    groups = [ShardKeys("tidegate", shard_of(group, SHARDS)).groups for group in GROUPS]
    return [key_slot(key) for key in [*logs, *groups, "{cluster}"]]


async def is_alive(load: Load) -> None:
    """Producers are acknowledged by themselves, and both groups read it."""
    before, read = len(load.acknowledged), [len(one.observed) for one in (load.aiokafka_read, load.librdkafka_read)]
    async with asyncio.timeout(180):
        while len(load.acknowledged) < before + 200:
            await asyncio.sleep(0.1)
        while any(
            len(one.observed) <= observed
            for one, observed in zip((load.aiokafka_read, load.librdkafka_read), read, strict=True)
        ):
            await asyncio.sleep(0.1)


@pytest.mark.timeout(600)
async def test_nothing_acknowledged_is_lost_when_primaries_die(rng: random.Random) -> None:
    with (
        Sharded(timeout_ms=NODE_TIMEOUT_MS) as sharded,
        Cluster(brokers=3, settings=SETTINGS, redis_url=sharded.url) as cluster,
    ):
        metadata_node = sharded.owner("{cluster}")
        async with Load(cluster.bootstrap) as load:
            for shared in (False, True):
                await asyncio.sleep(rng.uniform(2, 4))
                await asyncio.to_thread(sharded.in_sync)
                died = (
                    metadata_node
                    if shared
                    else rng.choice([one for one in sharded.primaries() if one is not metadata_node])
                )
                died.kill()
                ready = asyncio.create_task(
                    asyncio.to_thread(reasons_not_ready, cluster.brokers, NODE_TIMEOUT_MS / 1000 + 1)
                )
                await asyncio.to_thread(sharded.fail_over, died)
                reasons = await ready
                assert shared or not reasons, f"a shard's fail-over made brokers unready: {reasons}"
                died.start()
                await asyncio.to_thread(sharded.in_sync)
                for broker in cluster.brokers:
                    await asyncio.to_thread(broker.wait_ready)
                await is_alive(load)
        print(await load.check())
        assert not tracebacks(cluster)


@pytest.mark.parametrize("atomically", [False, True], ids=["key by key", "atomically"])
async def test_slots_move_under_load_without_client_errors(rng: random.Random, atomically: bool) -> None:
    with Sharded(replicas=0) as sharded, Cluster(brokers=3, redis_url=sharded.url) as cluster:
        async with Load(cluster.bootstrap) as load:
            await asyncio.sleep(2)
            ready = asyncio.create_task(asyncio.to_thread(reasons_not_ready, cluster.brokers, 6.0))
            slots = slots_in_use(sharded)
            rng.shuffle(slots)
            for slot in slots:
                target = rng.choice([one for one in sharded.primaries() if one is not sharded.owner_of(slot)])
                await asyncio.to_thread(sharded.move_atomically if atomically else sharded.move, slot, target)
                await asyncio.sleep(rng.uniform(0.1, 0.5))
            assert not (reasons := await ready), f"brokers were not ready while slots moved: {reasons}"
            await is_alive(load)
        assert not load.failures
        print(await load.check())
        assert load.rebalances == 0
        assert not tracebacks(cluster)


def reasons_not_ready(brokers: list[BrokerProcess], seconds: float) -> set[str]:
    """Why brokers called themselves not ready meanwhile, but for a machine too busy to run their event loops."""
    reasons: set[str] = set()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for broker in brokers:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{broker.admin_port}/health/ready", timeout=60):
                    pass
            except urllib.error.HTTPError as answer:
                with answer:
                    reasons.update(json.load(answer)["reasons"])
        time.sleep(0.05)
    return reasons - {STALLED}
