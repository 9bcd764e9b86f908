"""Quotas by the numbers of the specification of logs: over a socket where a reply's time matters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import RawClient, request
from tests.scripts.test_quota_apis import ALICE, EXCEEDED, INVALID, NONE, alter, broker, describe
from tests.scripts.test_security_scenarios import NO_TOPICS, Listener, listening
from tests.support.log_broker import fetch_request, produce_request
from tests.support.valkey import ValkeyServer
from tidegate.apis.call import BrokerContext
from tidegate.records.build import NewRecord, build_batch

assert broker  # the fixture

WAIT_S = 60.0
BATCH = build_batch([NewRecord(bytes(300_000), b"k", 1_700_000_000_000)])
NO_TIME = timedelta(0)


@pytest.fixture
async def listener(valkey: ValkeyServer) -> AsyncIterator[Listener]:
    """A broker with topic `t`; the client may produce and fetch 100 kB/s and change one partition a second."""
    async with listening(valkey) as opened:
        await opened.app.broker.context.catalog.create("default", "t", 1, {})
        admin = await opened.login("admin")
        rates = {"producer_byte_rate": 100_000.0, "consumer_byte_rate": 100_000.0, "controller_mutation_rate": 1.0}
        quotas = [{"key": key, "value": rate, "remove": False} for key, rate in rates.items()]
        limited = [{"entity_type": "client-id", "entity_name": "raw"}]
        asked = request(49, 1, entries=[{"entity": limited, "ops": quotas}], validate_only=False)
        assert (await admin.ask(asked)).entries[0].error_code is NONE
        yield opened


async def throttled(client: RawClient, asked: Any) -> tuple[Any, float]:
    """Ask until a reply has a throttle time, when the broker knows the quota; that reply, and when it was asked."""
    async with asyncio.timeout(WAIT_S):
        while True:
            asked_s = time.monotonic()
            answer = await client.ask(asked)
            if answer.throttle_time > NO_TIME:
                return answer, asked_s


async def test_log_12_throttled_reply(listener: Listener) -> None:
    client = await listener.login("admin")
    answer, asked_s = await throttled(client, produce_request([("t", [(0, BATCH)])]))
    assert answer.responses[0].partition_responses[0].error_code is NONE
    await client.ask(NO_TOPICS)
    throttle_s = answer.throttle_time.total_seconds()
    assert time.monotonic() - asked_s >= throttle_s > 1.0


async def test_throttled_fetch_has_its_records(listener: Listener) -> None:
    """Kafka answers a fetch beyond its quota without records; here the debt is paid after it, as for Produce."""
    client = await listener.login("admin")
    await client.ask(produce_request([("t", [(0, BATCH)])]))
    answer, _ = await throttled(client, fetch_request([("t", [(0, 0)])]))
    assert len(answer.responses[0].partitions[0].records) == len(BATCH)


async def test_log_152_quota_administration(broker: BrokerContext) -> None:
    codes = await alter(
        broker,
        (ALICE, {"producer_byte_rate": 0.0}),
        (ALICE, {"consumer_byte_rate": 1.5}),
        (ALICE, {"no_such_key": 1.0}),
        ({"ip": "192.0.2.1", "user": "alice"}, {"connection_creation_rate": 1.0}),
    )
    assert codes == [INVALID] * 4
    assert await describe(broker) == []
    await describe(broker, ("foo", 0, "x"), error=ErrorCode.unsupported_version)
    await describe(broker, ("ip", 0, "192.0.2.1"), ("user", 0, "alice"), error=INVALID)


async def test_log_153_mutation_quota(listener: Listener) -> None:
    await throttled(await listener.login("admin"), produce_request([("t", [(0, BATCH)])]))  # the quotas are known
    client = await listener.login("admin")

    async def create(version: int, *names: str) -> Any:
        topics = [{"name": name, "num_partitions": 30, "replication_factor": 1,
                   "assignments": (), "configs": ()} for name in names]  # fmt: skip
        timeout = timedelta(seconds=30)
        return await client.ask(request(19, version, timeout=timeout, validate_only=False, topics=topics))

    strict = await create(7, "a", "b", "c")
    assert [one.error_code for one in strict.topics] == [NONE, EXCEEDED, EXCEEDED]
    client = await listener.login("admin")  # the other connection is throttled
    old = await create(5, "d", "e", "f")
    assert [one.error_code for one in old.topics] == [NONE] * 3
    assert old.throttle_time > NO_TIME
