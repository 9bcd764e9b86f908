"""Pipelined Produces of one connection are appended in the order of their arrival."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kio.schema.errors import ErrorCode

from tests.kit.wire import RawClient
from tests.support.log_broker import produce_request
from tests.unit.apis.fakes import FakeBroker, FakeLog
from tests.unit.server.fakes import on_both_loops, until
from tidegate.apis import registry
from tidegate.records.build import NewRecord, build_batch
from tidegate.server.listener import Server
from tidegate.settings import Settings


class NewTopic:
    """Topic t, which the broker has not cached: a look-up waits for `refreshed`."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.broker = FakeBroker([self.log], found=False)
        self.broker.context.catalog.find = self._find
        self.refreshed = asyncio.Event()
        self.lookups = 0

    async def _find(self, org: str, key: Any) -> Any:
        self.lookups += 1
        await self.refreshed.wait()
        self.broker.found = True
        return self.broker.context.catalog.get(org, key)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[Server, RawClient]]:
        """A server with one client."""
        server = Server(self.broker.context, registry.load_all(), Settings())
        port = await server.open("127.0.0.1", 0)
        try:
            async with await RawClient.connect(f"127.0.0.1:{port}") as client:
                yield server, client
        finally:
            await server.close()


def _batch(bytes_of_value: int) -> bytes:
    return build_batch([NewRecord(bytes(bytes_of_value))])


def _codes(response: Any) -> list[ErrorCode]:
    return [one.error_code for topic in response.responses for one in topic.partition_responses]


@on_both_loops
async def test_produce_of_an_uncached_topic_is_appended_before_later_ones() -> None:
    topic = NewTopic()
    batches = [_batch(size) for size in (1, 10, 20)]
    async with asyncio.timeout(60), topic.connected() as (server, client):
        client.send(produce_request([("t", [(0, batches[0])])]))
        await until(lambda: topic.lookups == 1)
        topic.broker.found = True  # another connection has refreshed the cache
        for batch in batches[1:]:
            client.send(produce_request([("t", [(0, batch)])]))
        [connection] = server.connections
        await until(lambda: len(connection.pipeline) == 3)
        topic.refreshed.set()

        codes = [_codes((await client.receive())[1]) for _ in batches]

    assert codes == [[ErrorCode.none]] * 3
    assert [batch.size for batch in topic.log.appended] == [len(batch) for batch in batches]


async def test_produce_of_an_uncached_topic_appends_nothing_after_its_timeout() -> None:
    topic = NewTopic()
    async with asyncio.timeout(60), topic.connected() as (_, client):
        response = await client.ask(produce_request([("t", [(0, _batch(1))])], timeout_ms=20))
        topic.refreshed.set()
        await topic.broker.context.tasks.wait()
        await client.ask(produce_request([("t", [(0, _batch(10))])]))

    assert _codes(response) == [ErrorCode.request_timed_out]
    assert [batch.size for batch in topic.log.appended] == [len(_batch(10))]
