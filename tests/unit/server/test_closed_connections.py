"""A request whose connection closes while its access is checked leaves nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from tests.kit.wire import RawClient
from tests.support.log_broker import fetch_request
from tests.unit.apis.fakes import FakeBroker, FakeLog
from tests.unit.server.fakes import on_both_loops, until
from tests.unit.server.test_scopes import Judge
from tidegate.apis import registry
from tidegate.protocol.api_keys import ApiKey
from tidegate.server.authorization.guard import Authorization
from tidegate.server.listener import Server
from tidegate.settings import Settings


@on_both_loops
async def test_fetch_closed_while_its_topic_is_refreshed_opens_no_session() -> None:
    broker = FakeBroker([FakeLog()])
    context, asked, answers = broker.context, asyncio.Event(), asyncio.Event()

    async def find(org: str, topic_id: UUID) -> None:
        asked.set()
        await answers.wait()

    context.catalog.by_id = lambda org, topic_id: None
    context.catalog.find_by_id = find
    judge: Any = Judge()
    apis = Authorization(context, judge, lambda call, codes: None).guarded(registry.load_all())
    server = Server(context, {ApiKey.FETCH: apis[ApiKey.FETCH]}, Settings())
    address = f"127.0.0.1:{await server.open('127.0.0.1', 0)}"
    try:
        async with asyncio.timeout(60), await RawClient.connect(address) as client:
            client.send(fetch_request([(UUID(int=9), [(0, 0)])], version=13, session=(0, 0)))
            await asked.wait()
            await client.close()
            await until(lambda: not server.connections)
            answers.set()
            await until(lambda: not context.tasks)
    finally:
        await server.close()

    assert len(context.fetch_sessions) == 0
    assert context.fetch_waits._parked == {}
