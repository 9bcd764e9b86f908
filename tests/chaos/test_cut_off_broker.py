"""One of two brokers loses its way to Redis, under an idempotent producer: it continues with the other one."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.checker import check
from tests.kit.cluster import FaultyCluster
from tests.kit.history import History, Outcome, Send
from tests.kit.log_reader import read_logs
from tests.kit.writers import LibrdkafkaWriter, Session
from tests.support.broker_logs import tracebacks
from tests.support.proxy import BOTH

TOPIC, PARTITIONS = "orders", 8
"""So many partitions that the broker is surely named as the leader of some."""
RECOVERS_WITHIN_S = 100.0
"""5 s for a command, 10 s until the broker's lease is gone, what clients wait before they try again; several times."""


def acknowledged_since(history: History, began: int) -> set[str]:
    """Partitions that took a record which was sent since then."""
    return {
        one.partition
        for one in history.operations[:]
        if isinstance(one, Send) and one.outcome is Outcome.OK and one.began >= began
    }


async def wait_for_all(history: History, began: int, within_s: float) -> float:
    """Until every partition took a record that was sent since `began`; how long it took."""
    asked = time.monotonic()
    while len(acknowledged_since(history, began)) < PARTITIONS:
        assert time.monotonic() - asked < within_s, f"only {acknowledged_since(history, began)} continue"
        await asyncio.sleep(0.2)
    return time.monotonic() - asked


@pytest.mark.timeout(400)
async def test_isolated_broker_producers_continue_with_another(rng: random.Random) -> None:
    history = History()
    async with FaultyCluster(seed=rng.randrange(1 << 30), brokers=2) as cluster:
        session = Session(history, cluster.bootstrap, TOPIC, PARTITIONS)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        await asyncio.to_thread(admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result, 30)
        writer = LibrdkafkaWriter(session, "writer")
        writer.start()
        cut_off = cluster.nodes[1]
        try:
            await wait_for_all(history, 0, RECOVERS_WITHIN_S)
            cut_off.redis_link.black_hole(*BOTH)
            took = await wait_for_all(history, time.monotonic_ns(), RECOVERS_WITHIN_S)
            print(f"every partition continued after {took:.1f} s")
        finally:
            cut_off.redis_link.restore()
            await asyncio.to_thread(cut_off.process.wait_ready)
            await writer.stop()
        await asyncio.to_thread(read_logs, session)
        assert not tracebacks(cluster.cluster)
    assert session.fatal == []
    assert [str(violation) for violation in check(history)] == []
