"""Answers in the order of arrival; cold requests one at a time; nothing shifts the order."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.create_topics.v7.request import CreateTopicsRequest
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v9.request import JoinGroupRequest

from tests.kit.wire import RawClient, encode_request, request_type
from tests.support.samples import sample
from tests.unit.server.fakes import FETCH, PRODUCE, Handlers, another, closed, connected, on_both_loops, until

FETCHES: Any = sample(request_type(FETCH, 12))
CREATES: Any = sample(CreateTopicsRequest)
JOINS: Any = sample(JoinGroupRequest)
VERSIONS: Any = ApiVersionsRequest(client_software_name="t", client_software_version="1")


def heartbeats(group: str) -> Any:
    return HeartbeatRequest(group_id=group, generation_id=1, member_id="m", group_instance_id=None)


async def order_of_answers(client: RawClient, count: int) -> list[int]:
    return [(await asyncio.wait_for(client.receive(), 30))[0] for _ in range(count)]


@on_both_loops
async def test_pipelined_requests_are_answered_in_order_with_their_correlation_ids() -> None:
    async with connected(Handlers()) as (_, client):
        frames = [encode_request(heartbeats("g"), correlation_id) for correlation_id in (-1, 0, 2147483647, -1)]
        client.writer.write(b"".join(frames))
        answers = [struct.unpack_from(">i", await client.receive_frame())[0] for _ in frames]
    assert answers == [-1, 0, 2147483647, -1]


@on_both_loops
async def test_thousands_of_pipelined_requests() -> None:
    async with connected(Handlers()) as (_, client):
        sent = [client.send(heartbeats(f"group-{index}")) for index in range(5000)]
        assert await order_of_answers(client, 5000) == sent


@on_both_loops
async def test_request_in_single_bytes() -> None:
    async with connected(Handlers()) as (_, client):
        for byte in encode_request(heartbeats("slowly"), 9):
            client.writer.write(bytes((byte,)))
            await client.writer.drain()
            await asyncio.sleep(0)
        assert struct.unpack_from(">i", await client.receive_frame()) == (9,)


@on_both_loops
async def test_order_inline_requests_start_behind_a_parked_fetch_and_are_answered_after_it() -> None:
    handlers = Handlers()
    async with connected(handlers) as (_, client):
        sent = [client.send(request) for request in (FETCHES, heartbeats("a"), VERSIONS)]
        await until(lambda: len(handlers.started) == 3)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.readexactly(1), 0.05)

        handlers.answer_fetch(handlers.parked[0])

        assert await order_of_answers(client, 3) == sent


@on_both_loops
async def test_one_fetch_of_a_connection_at_a_time() -> None:
    handlers = Handlers()
    async with connected(handlers) as (_, client):
        sent = [client.send(request) for request in (FETCHES, FETCHES, heartbeats("a"))]
        await until(lambda: handlers.parked)
        await asyncio.sleep(0.02)
        assert handlers.started == ["fetch"]

        handlers.answer_fetch(handlers.parked[0])
        await until(lambda: len(handlers.parked) == 2)
        handlers.answer_fetch(handlers.parked[1])

        assert await order_of_answers(client, 3) == sent


@on_both_loops
async def test_order_task_request_waits_for_every_earlier_one() -> None:
    handlers = Handlers()
    async with connected(handlers) as (_, client):
        sent = [client.send(request) for request in (FETCHES, CREATES, heartbeats("a"))]
        await until(lambda: handlers.parked)
        await asyncio.sleep(0.02)
        assert handlers.started == ["fetch"]

        handlers.answer_fetch(handlers.parked[0])

        assert await order_of_answers(client, 3) == sent
    assert handlers.started == ["fetch", "create_topics", "create_topics done", "heartbeat a"]


@on_both_loops
async def test_order_requests_behind_a_task_request_wait_for_it() -> None:
    handlers = Handlers()
    handlers.cold_gate.clear()
    async with connected(handlers) as (_, client):
        sent = [
            client.send(request) for request in (CREATES, heartbeats("a"), CREATES, heartbeats("b"), heartbeats("c"))
        ]
        await until(lambda: handlers.started)
        await asyncio.sleep(0.02)
        assert handlers.started == ["create_topics"]

        handlers.cold_gate.set()

        assert await order_of_answers(client, 5) == sent
    task = ["create_topics", "create_topics done"]
    assert handlers.started == [*task, "heartbeat a", *task, "heartbeat b", "heartbeat c"]


@on_both_loops
async def test_dropped_request_takes_no_place() -> None:
    handlers = Handlers()
    async with connected(handlers) as (_, client):
        client.send(sample(request_type(PRODUCE, 9)))
        heartbeat = client.send(heartbeats("a"))
        assert await order_of_answers(client, 1) == [heartbeat]


@on_both_loops
async def test_dropped_request_behind_a_parked_one_takes_no_place() -> None:
    handlers = Handlers()
    async with connected(handlers) as (_, client):
        fetch = client.send(FETCHES)
        client.send(sample(request_type(PRODUCE, 9)))
        heartbeat = client.send(heartbeats("a"))
        await until(lambda: len(handlers.started) == 3)
        handlers.answer_fetch(handlers.parked[0])
        assert await order_of_answers(client, 2) == [fetch, heartbeat]


@on_both_loops
async def test_other_connections_do_not_wait() -> None:
    handlers = Handlers()
    handlers.cold_gate.clear()
    async with connected(handlers) as (server, waiting), await another(server) as other:
        waiting.send(JOINS)
        await until(lambda: handlers.started)
        await other.ask(heartbeats("a"), timeout_s=30)


@on_both_loops
async def test_order_parked_join_is_cancelled_with_its_connection() -> None:
    handlers = Handlers()
    handlers.cold_gate.clear()
    async with connected(handlers) as (server, client):
        client.send(JOINS)
        await until(lambda: handlers.started)
        await client.close()
        await until(lambda: not server.connections)
        await until(lambda: handlers.cancelled == ["join_group"])


@on_both_loops
async def test_order_other_work_continues_after_its_connection_closed() -> None:
    handlers = Handlers()
    handlers.cold_gate.clear()
    async with connected(handlers) as (server, client):
        client.send(CREATES)
        await until(lambda: handlers.started)
        await client.close()
        await until(lambda: not server.connections)
        handlers.cold_gate.set()
        await until(lambda: handlers.started == ["create_topics", "create_topics done"])


@on_both_loops
async def test_order_answer_to_a_closed_connection_is_dropped() -> None:
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        gone: list[bool] = []
        client.send(FETCHES)
        await until(lambda: handlers.parked)
        handlers.parked[0].client.when_closed(lambda: gone.append(True))
        await client.close()
        await until(lambda: gone == [True])
        handlers.answer_fetch(handlers.parked[0])
        assert server.request_bytes.held == 0


@on_both_loops
async def test_draining_answers_what_is_under_way_and_closes() -> None:
    handlers = Handlers()
    async with connected(handlers) as (server, idle), await another(server) as busy:
        await idle.ask(heartbeats("a"))
        fetch = busy.send(FETCHES)
        await until(lambda: handlers.parked)
        draining = asyncio.create_task(server.drain(60_000))
        assert await closed(idle) == b""
        assert handlers.parked[0].draining.is_set()

        handlers.answer_fetch(handlers.parked[0])

        assert await order_of_answers(busy, 1) == [fetch]
        assert await closed(busy) == b""
        await asyncio.wait_for(draining, 30)
        with pytest.raises(OSError):
            await another(server)


@on_both_loops
async def test_order_parked_join_is_aborted_when_the_drain_ends() -> None:
    handlers = Handlers()
    handlers.cold_gate.clear()
    async with connected(handlers) as (server, client):
        client.send(JOINS)
        await until(lambda: handlers.started)
        await asyncio.wait_for(server.drain(100), 30)
        assert await closed(client) == b""
