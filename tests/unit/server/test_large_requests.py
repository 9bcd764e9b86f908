"""Large requests are handled one after the other where they would take too much memory together."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tests.support.samples import sample
from tests.support.wire import encode_request, request_type
from tests.unit.server.fakes import CREATE_TOPICS, JOIN_GROUP, Handlers, another, connected, on_both_loops, until
from tidegate.server.dispatch import LARGE_BYTES
from tidegate.server.limits import LargeRequests


async def test_large_requests_are_admitted_in_order_of_arrival() -> None:
    requests, admitted = LargeRequests(10), list[str]()

    async def handle(name: str, size: int) -> Any:
        admission = await requests.admit(size)
        admitted.append(name)
        return admission

    first = await handle("more than all may have", 99)
    second, third, fourth = (asyncio.create_task(handle(f"of {size}", size)) for size in (6, 4, 1))
    await asyncio.sleep(0)
    assert admitted == ["more than all may have"]

    first.end()
    first.end()
    admissions = [await second, await third]
    await asyncio.sleep(0)
    assert (admitted[1:], requests.held) == (["of 6", "of 4"], 10)

    admissions[0].end()
    (await fourth).end()
    admissions[1].end()
    assert requests.held == 0


async def test_cancelled_large_request_is_not_admitted() -> None:
    requests = LargeRequests(10)
    first = await requests.admit(10)
    cancelled, admitted, last = (asyncio.create_task(requests.admit(10)) for _ in range(3))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    first.end()
    admitted.cancel()  # it has been admitted
    await asyncio.wait([admitted])

    (await last).end()
    assert requests.held == 0


def large(key: int, version: int, **values: Any) -> bytes:
    """A frame that is decoded in the thread."""
    frame = encode_request(replace(sample(request_type(key, version)), **values), 1)
    assert len(frame) > LARGE_BYTES
    return frame


TOPIC = sample(request_type(CREATE_TOPICS, 7)).topics[0]
CREATE = large(CREATE_TOPICS, 7, topics=tuple(replace(TOPIC, name=f"{number:01000}") for number in range(100)))
PROTOCOL = sample(request_type(JOIN_GROUP, 9)).protocols[0]
JOIN = large(JOIN_GROUP, 9, protocols=(replace(PROTOCOL, metadata=bytes(LARGE_BYTES)),))


@on_both_loops
async def test_large_requests_of_several_connections_wait_for_each_other() -> None:
    handlers = Handlers()
    handlers.cold_gate.clear()
    async with connected(handlers) as (server, first), await another(server) as second, await another(server) as gone:
        server.large_requests = LargeRequests(1)
        first.writer.write(CREATE)
        await until(lambda: handlers.started == ["create_topics"])
        gone.writer.write(CREATE)
        await until(lambda: sum(bool(one.pipeline) for one in server.connections) == 2)
        second.writer.write(CREATE)
        await until(lambda: sum(bool(one.pipeline) for one in server.connections) == 3)
        await gone.close()
        await until(lambda: len(server.connections) == 2)
        assert handlers.started == ["create_topics"]

        handlers.cold_gate.set()
        await first.receive_frame()
        await second.receive_frame()
        assert handlers.started == ["create_topics", "create_topics done"] * 2, "of the one that is gone, nothing"
        assert (server.large_requests.held, server.request_bytes.held) == (0, 0)


@on_both_loops
async def test_large_request_that_waits_lets_others_be_admitted() -> None:
    handlers = Handlers()
    handlers.cold_gate.clear()
    async with connected(handlers) as (server, first), await another(server) as second:
        server.large_requests = LargeRequests(1)
        first.writer.write(JOIN)
        await until(lambda: handlers.started == ["join_group"])
        second.writer.write(JOIN)
        await until(lambda: handlers.started == ["join_group"] * 2)

        handlers.cold_gate.set()
        await first.receive_frame()
        await second.receive_frame()
        assert server.large_requests.held == 0
