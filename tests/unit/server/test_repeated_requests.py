"""Requests that equal the one before are answered without their handler, for as long as the handler's rule permits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.create_topics.v7.request import CreateTopicsRequest
from kio.schema.heartbeat.v0.request import HeartbeatRequest as HeartbeatV0
from kio.schema.heartbeat.v4.request import HeartbeatRequest

from tests.kit.wire import encode_request
from tests.support.samples import sample
from tests.unit.server.fakes import HEARTBEAT, Handlers, connected, on_both_loops, until
from tidegate.apis.call import Call, Repeat
from tidegate.protocol import group_writers
from tidegate.telemetry.metrics import metrics

HEARTBEAT_REQUEST: Any = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id=None)
CREATES: Any = sample(CreateTopicsRequest)
VERSIONS: Any = ApiVersionsRequest(client_software_name="test", client_software_version="1")


class Repeating(Handlers):
    """Heartbeats that may be repeated while `permits`; other answers carry code 25."""

    def __init__(self) -> None:
        super().__init__()
        self.permits, self.repeated = True, 0

    def heartbeat(self, call: Call, request: Any) -> None:
        self._note(f"heartbeat {request.group_id}")
        call.reply(group_writers.heartbeat(call.version, 0 if self.permits else 25))
        call.client.repeat = Repeat(call, group_writers.heartbeat(call.version, 0), self._permitted)

    def _permitted(self) -> bool:
        self.repeated += self.permits
        return self.permits


@on_both_loops
async def test_repeated_request_is_answered_with_its_own_correlation_id() -> None:
    handlers = Repeating()
    async with connected(handlers) as (_, client):
        for request in (HEARTBEAT_REQUEST, HeartbeatV0(group_id="g", generation_id=1, member_id="m")):
            for _ in range(3):
                answer = await client.ask(request)
                assert answer.error_code.value == 0
    assert handlers.started == ["heartbeat g", "heartbeat g"]
    assert handlers.repeated == 4


@on_both_loops
async def test_repeated_requests_of_one_chunk_are_answered_in_order() -> None:
    handlers = Repeating()
    async with connected(handlers) as (_, client):
        sent = [client.send(HEARTBEAT_REQUEST) for _ in range(50)]
        got = [(await asyncio.wait_for(client.receive(), 30))[0] for _ in sent]
    assert got == sent
    assert handlers.started == ["heartbeat g"]


@on_both_loops
async def test_request_that_differs_in_any_field_reaches_the_handler() -> None:
    handlers = Repeating()
    async with connected(handlers) as (_, client):
        for request in (
            HEARTBEAT_REQUEST,
            replace(HEARTBEAT_REQUEST, generation_id=2),
            replace(HEARTBEAT_REQUEST, member_id="n"),
            replace(HEARTBEAT_REQUEST, group_id="h"),
            replace(HEARTBEAT_REQUEST, group_instance_id="m"),
        ):
            await client.ask(request)
        client.client_id = "another"
        await client.ask(HEARTBEAT_REQUEST)
    assert len(handlers.started) == 6
    assert handlers.repeated == 0


@on_both_loops
async def test_request_no_longer_permitted_reaches_the_handler() -> None:
    handlers = Repeating()
    async with connected(handlers) as (_, client):
        await client.ask(HEARTBEAT_REQUEST)
        handlers.permits = False
        refused = await client.ask(HEARTBEAT_REQUEST)
    assert refused.error_code.value == 25
    assert handlers.started == ["heartbeat g", "heartbeat g"]


@on_both_loops
async def test_repeated_request_behind_another_waits_for_its_predecessor() -> None:
    handlers = Repeating()
    handlers.cold_gate.clear()
    async with connected(handlers) as (_, client):
        await client.ask(HEARTBEAT_REQUEST)
        sent = [client.send(CREATES), client.send(HEARTBEAT_REQUEST)]
        await until(lambda: "create_topics" in handlers.started)
        assert handlers.repeated == 0
        handlers.cold_gate.set()
        got = [(await asyncio.wait_for(client.receive(), 30))[0] for _ in sent]
    assert got == sent


@on_both_loops
async def test_request_behind_a_queued_heartbeat_is_not_taken_for_it() -> None:
    handlers = Repeating()
    handlers.cold_gate.clear()
    async with connected(handlers) as (_, client):
        sent = [client.send(CREATES), client.send(HEARTBEAT_REQUEST)]
        await until(lambda: "create_topics" in handlers.started)
        handlers.cold_gate.set()
        got = [(await asyncio.wait_for(client.receive(), 30))[0] for _ in sent]
        answers = [await client.ask(VERSIONS) for _ in range(3)]
    assert got == sent
    assert [type(answer).__name__ for answer in answers] == ["ApiVersionsResponse"] * 3
    assert handlers.repeated == 0


@on_both_loops
async def test_request_behind_a_large_heartbeat_is_not_taken_for_it() -> None:
    handlers = Repeating()
    async with connected(handlers) as (_, client):
        await client.ask(
            replace(HEARTBEAT_REQUEST, group_id="g" * 32_000, member_id="m" * 32_000, group_instance_id="i" * 32_000)
        )
        answers = [await client.ask(VERSIONS) for _ in range(3)]
    assert [type(answer).__name__ for answer in answers] == ["ApiVersionsResponse"] * 3
    assert handlers.repeated == 0


@on_both_loops
async def test_repeated_request_in_pieces_is_answered() -> None:
    handlers = Repeating()
    async with connected(handlers) as (_, client):
        await client.ask(HEARTBEAT_REQUEST)
        frame = encode_request(HEARTBEAT_REQUEST, 77)
        for piece in (frame[:9], frame[9:15], frame[15:]):
            client.writer.write(piece)
            await client.writer.drain()
            await asyncio.sleep(0.01)
        size = int.from_bytes(await asyncio.wait_for(client.reader.readexactly(4), 30))
        answer = await asyncio.wait_for(client.reader.readexactly(size), 30)
    assert answer[:4] == (77).to_bytes(4)
    assert handlers.repeated == 1


@on_both_loops
async def test_repeated_requests_are_measured() -> None:
    handlers = Repeating()
    meter = metrics.apis[HEARTBEAT].version(4)
    async with connected(handlers) as (server, client):
        before = meter.count
        for _ in range(4):
            await client.ask(HEARTBEAT_REQUEST)
        (connection,) = server.connections
        requests, unsent = connection.client.software.requests, connection.unsent
    assert meter.count == before + 4
    assert requests >= 4
    assert unsent == 0


@on_both_loops
async def test_long_requests_are_not_remembered() -> None:
    handlers = Repeating()
    async with connected(handlers) as (_, client):
        for _ in range(2):
            await client.ask(replace(HEARTBEAT_REQUEST, group_id="g" * 2_000))
    assert len(handlers.started) == 2


@on_both_loops
async def test_repetition_ends_with_the_rules_that_allowed_the_request() -> None:
    handlers = Repeating()
    async with connected(handlers) as (server, client):
        for _ in range(2):
            await client.ask(HEARTBEAT_REQUEST)
        assert len(handlers.started) == 1
        server.forget_repeated_requests()
        await client.ask(HEARTBEAT_REQUEST)
    assert len(handlers.started) == 2
