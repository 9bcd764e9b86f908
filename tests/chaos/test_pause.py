"""Brokers are paused for a few seconds under a Stable group: no rebalance, no commit lost."""

from __future__ import annotations

import asyncio
import random
import signal
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bench.cluster import BrokerProcess, Cluster
from tests.chaos.test_rolling_restart import commit_for_a_while, settled
from tests.support.broker_logs import tracebacks

MEMBERS = 9
TOPIC, GROUP = "paused", "paused-group"


async def pause(broker: BrokerProcess, seconds: float) -> None:
    broker.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        broker.signal(signal.SIGCONT)


def member(bootstrap: str) -> Any:
    return AIOKafkaConsumer(TOPIC, bootstrap_servers=bootstrap, group_id=GROUP, enable_auto_commit=False)


async def test_pauses_shorter_than_a_session_cost_no_rebalance_and_no_commit(rng: random.Random) -> None:
    with Cluster(brokers=3) as cluster:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(TOPIC, MEMBERS, 1)])
        await admin.close()
        consumers = [member(cluster.bootstrap) for _ in range(MEMBERS)]
        await asyncio.gather(*(consumer.start() for consumer in consumers))
        before = await settled(consumers, MEMBERS)
        stop = asyncio.Event()
        committing = asyncio.create_task(commit_for_a_while(consumers, stop))
        await asyncio.sleep(1)

        for broker in rng.sample(cluster.brokers, 3):
            await pause(broker, rng.uniform(3, 4))
            await asyncio.sleep(2)
        await asyncio.gather(*(pause(broker, 3) for broker in cluster.brokers))  # all of them at once
        await asyncio.sleep(11)  # longer than a session: a member that was lost would be gone by now
        stop.set()
        acknowledged = await asyncio.wait_for(committing, 60)

        assert {consumer._coordinator.generation for consumer in consumers} == {before}
        assert len(acknowledged) == MEMBERS
        for consumer in consumers:
            for tp in consumer.assignment():
                assert await consumer.committed(tp) >= acknowledged[tp]
        await asyncio.gather(*(consumer.stop() for consumer in consumers))
        assert not tracebacks(cluster)
