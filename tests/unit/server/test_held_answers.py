"""A heartbeat whose answer is kept back stands in nobody's way: the connection has it released."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.create_topics.v7.request import CreateTopicsRequest
from kio.schema.heartbeat.v4.request import HeartbeatRequest

from tests.support.samples import sample
from tests.unit.server.fakes import Handlers, closed, connected, on_both_loops, until
from tidegate.apis.call import Call
from tidegate.protocol import group_writers

HEARTBEATS: Any = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id=None)
VERSIONS: Any = ApiVersionsRequest(client_software_name="t", client_software_version="1")
CREATES: Any = sample(CreateTopicsRequest)


class Keeper:
    """Keeps back the answer of the heartbeat that came last, until it is released."""

    def __init__(self) -> None:
        self.is_delayed: Call | None = None
        self.reasons: list[str] = []

    def on_next_request(self) -> None:
        self._release("next request")

    def on_drain(self) -> None:
        self._release("drain")

    def on_closed(self) -> None:
        self._release("closed")

    def _release(self, reason: str) -> None:
        is_delayed, self.is_delayed = self.is_delayed, None
        if is_delayed is not None:
            self.reasons.append(reason)
            is_delayed.reply(group_writers.heartbeat(is_delayed.version, 0))


class Keeping(Handlers):
    """A server that keeps every heartbeat's answer back."""

    def __init__(self) -> None:
        super().__init__()
        self.keeper: Any = Keeper()

    def heartbeat(self, call: Call, request: Any) -> None:
        self._note("heartbeat")
        call.client.delayed = self.keeper
        self.keeper.is_delayed = call


@on_both_loops
async def test_next_request_releases_it_and_answers_keep_their_order() -> None:
    async with connected(Keeping()) as (_, client):
        for request in (VERSIONS, CREATES, HEARTBEATS):
            sent = [client.send(HEARTBEATS), client.send(request)]
            got = [(await asyncio.wait_for(client.receive(), 30))[0]]
            if request is HEARTBEATS:
                sent.append(client.send(VERSIONS))
                got.append((await asyncio.wait_for(client.receive(), 30))[0])
            got.append((await asyncio.wait_for(client.receive(), 30))[0])
            assert got == sent


@on_both_loops
async def test_delayed_reply_task_request_starts_at_once_behind_it() -> None:
    handlers = Keeping()
    async with connected(handlers) as (_, client):
        client.send(HEARTBEATS)
        await until(lambda: handlers.keeper.is_delayed)
        assert not handlers.keeper.reasons
        client.send(CREATES)
        await until(lambda: "create_topics done" in handlers.started)
    assert handlers.keeper.reasons == ["next request"]


@on_both_loops
async def test_drain_answers_it_before_the_connection_closes() -> None:
    handlers = Keeping()
    async with connected(handlers) as (server, client):
        sent = client.send(HEARTBEATS)
        await until(lambda: handlers.keeper.is_delayed)
        draining = asyncio.ensure_future(server.drain(60_000))
        assert (await asyncio.wait_for(client.receive(), 30))[0] == sent
        assert await closed(client) == b""
        await draining
    assert handlers.keeper.reasons == ["drain"]


@on_both_loops
async def test_delayed_reply_is_dropped_with_its_connection() -> None:
    handlers = Keeping()
    async with connected(handlers) as (_, client):
        client.send(HEARTBEATS)
        await until(lambda: handlers.keeper.is_delayed)
        client.writer.close()
        await until(lambda: handlers.keeper.reasons)
    assert handlers.keeper.reasons == ["closed"]


@on_both_loops
async def test_delayed_reply_old_connection_is_closed_despite_one() -> None:
    handlers = Keeping()
    async with connected(handlers, connections_max_age_ms=30_000) as (server, client):
        sent = client.send(HEARTBEATS)
        await until(lambda: handlers.keeper.is_delayed)
        (connection,) = server.connections
        server.sweeper.sweep(connection, perf_counter())
        assert handlers.keeper.is_delayed
        server.sweeper.sweep(connection, perf_counter() + 60)
        assert (await asyncio.wait_for(client.receive(), 30))[0] == sent
        assert await closed(client) == b""


@on_both_loops
async def test_delayed_reply_request_parked_behind_an_answered_one_is_not_recycled() -> None:
    handlers = Keeping()
    handlers.cold_gate.clear()
    async with connected(handlers, connections_max_age_ms=30_000) as (server, client):
        sent = [client.send(HEARTBEATS), client.send(CREATES)]
        await until(lambda: "create_topics" in handlers.started)
        (connection,) = server.connections
        server.sweeper.sweep(connection, perf_counter() + 60)
        sent.append(client.send(VERSIONS))
        handlers.cold_gate.set()
        got = [(await asyncio.wait_for(client.receive(), 30))[0] for _ in sent]
    assert got == sent
