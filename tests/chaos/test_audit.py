"""A broker is killed while it moves offsets for an operator: the audit shows it, and undoes it from another broker."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import aiohttp
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from bench.cluster import Cluster

TOKEN = "an operator's token"
SETTINGS = {"TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "100", "TIDEGATE_ADMIN_OPERATOR_TOKEN": TOKEN}
RECORDS = 10


async def test_a_reset_whose_broker_dies_is_open_in_the_audit_and_can_be_undone() -> None:
    with Cluster(brokers=2, settings=SETTINGS) as running:
        dies, lives = running.brokers
        # Its heartbeats are so far apart that it does not come back while the broker waits for that.
        slow = {"session_timeout_ms": 60_000, "heartbeat_interval_ms": 20_000, "enable_auto_commit": False}
        consumer = AIOKafkaConsumer(
            "orders", bootstrap_servers=running.bootstrap, group_id="g", auto_offset_reset="earliest", **slow
        )
        async with AIOKafkaProducer(bootstrap_servers=running.bootstrap) as producer:
            for _ in range(RECORDS):
                await producer.send_and_wait("orders", b"x")
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
            api = f"http://127.0.0.1:{lives.admin_port}/api/v1"
            async with consumer, asyncio.timeout(60):
                for _ in range(RECORDS):
                    await consumer.getone()
                await consumer.commit()
                way = {"to_earliest": True, "all_topics": True, "fence": True}
                address = f"http://127.0.0.1:{dies.admin_port}/api/v1/groups/g/offsets/reset"
                asked = asyncio.ensure_future(http.post(address, json=way))
                while await _committed(http, api) != 0:
                    await asyncio.sleep(0.05)
                os.kill(dies.pid, signal.SIGKILL)
                await asyncio.gather(asked, return_exceptions=True)

            async with http.get(f"{api}/audit") as answer:
                action = (await answer.json())["actions"][0]
            assert (action["action"], action["outcome"], action["undoable"]) == ("group.reset", "open", True)
            async with asyncio.timeout(60):  # until the guard that died with its broker is not waited for any more
                while (await _group(http, api))["members"]:
                    await asyncio.sleep(0.2)
            async with http.post(f"{api}/audit/{action['action_id']}/undo") as answer:
                assert answer.status == 200, await answer.text()
            assert await _committed(http, api) == RECORDS


async def _group(http: aiohttp.ClientSession, api: str) -> Any:
    async with http.get(f"{api}/groups/g") as answer:
        return await answer.json()


async def _committed(http: aiohttp.ClientSession, api: str) -> int | None:
    [partition] = (await _group(http, api))["partitions"]
    committed: int | None = partition["committed"]
    return committed
