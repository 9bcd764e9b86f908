"""Brokers are paused for a few seconds under a Stable group: no rebalance, no commit lost."""

from __future__ import annotations

import asyncio
import random
import signal
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from kio.schema.errors import ErrorCode

from bench.cluster import CONNECTIONS_STAY, BrokerProcess, Cluster
from tests.chaos.test_rolling_restart import commit_for_a_while, stabilized, stop_all
from tests.kit.member import Member, coordinator
from tests.kit.wire import RawClient
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


async def test_broker_that_stays_silent_costs_no_member_its_place() -> None:
    """Members wait for it longer than their sessions, as clients do, and come to another then."""
    settings = {
        "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }
    with Cluster(brokers=2, settings=settings, constants=CONNECTIONS_STAY) as cluster:
        await asyncio.sleep(1)  # until they know each other
        client = await RawClient.connect(cluster.brokers[0].address)
        silent = await coordinator(client, "orders")
        await client.close()
        broker, beside = sorted(cluster.brokers, key=lambda one: one.port != silent)
        assert broker.port == silent
        client = await RawClient.connect(broker.address)
        member = Member(client, "orders", session_timeout_ms=6_000)
        await member.round()
        await asyncio.sleep(2)

        async with await RawClient.connect(beside.address) as elsewhere:
            pausing = asyncio.create_task(pause(broker, 7))
            await asyncio.sleep(6.5)
            member.client = elsewhere
            assert await member.heartbeat() is ErrorCode.none
            await pausing
        await client.close()


async def test_pauses_shorter_than_a_session_cost_no_rebalance_and_no_commit(rng: random.Random) -> None:
    with Cluster(brokers=3) as cluster:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(TOPIC, MEMBERS, 1)])
        await admin.close()
        consumers = [member(cluster.bootstrap) for _ in range(MEMBERS)]
        await asyncio.gather(*(consumer.start() for consumer in consumers))
        before = await stabilized(consumers, MEMBERS)
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
        await stop_all(consumers)
        assert not tracebacks(cluster)
