"""Routes that are made before their first request."""

from __future__ import annotations

import asyncio
import struct
import threading

import pytest
from kio.schema.heartbeat.v4.request import HeartbeatRequest

from tests.kit.wire import RawClient, encode_request
from tests.unit.server.fakes import API_VERSIONS, FETCH, HEARTBEAT, Handlers, another, connected, on_both_loops, until
from tests.unit.server.test_order import VERSIONS, heartbeats
from tidegate.apis import registry
from tidegate.protocol import codec, headers
from tidegate.protocol.framing import LARGE_BYTES
from tidegate.server.listener import Server
from tidegate.server.routes import Routes


async def test_every_version_of_what_members_ask_is_made_beside_the_loop() -> None:
    apis = registry.load_all()
    routes = Routes(apis)
    prepared = [api.key for api in apis.values() if api.prepared]
    assert set(prepared) == {8, 9, 10, 11, 12, 13, 14}

    for api_key in prepared:
        await asyncio.to_thread(routes.prepare, api_key)

    served = [(key, version) for key in prepared for version in range(apis[key].first, apis[key].last + 1)]
    assert sorted(routes) == sorted(headers.route_key(*one) for one in served)
    assert {(route.key, route.version) for route in routes.values()} == set(served)


async def send_large_heartbeat(server: Server, client: RawClient) -> None:
    """Send it in two pieces, so that the second is received into the frame's own buffer."""
    half = LARGE_BYTES // 2 + 1
    request = HeartbeatRequest(group_id="g" * half, generation_id=1, member_id="m" * half, group_instance_id=None)
    frame = encode_request(request, 77)
    client.writer.write(frame[:100])
    await until(lambda: any(one.splitter.reserved for one in server.connections))
    client.writer.write(frame[100:])


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is clear, the first heartbeat's API cannot be loaded."""
    opened, decoder = threading.Event(), codec.decoder

    def held_back(api_key: int, version: int) -> codec.Decoder:
        assert threading.current_thread() is not threading.main_thread()
        assert opened.wait(60)
        return decoder(api_key, version)

    monkeypatch.setattr(Routes, "_loaded", {(FETCH, False), (API_VERSIONS, False)})
    monkeypatch.setattr(codec, "decoder", lambda *of: (held_back if of[0] == HEARTBEAT else decoder)(*of))
    return opened


@on_both_loops
async def test_first_request_of_an_api_is_loaded_beside_the_loop(gate: threading.Event) -> None:
    async with connected(handlers := Handlers()) as (server, client), await another(server) as neighbour:
        await send_large_heartbeat(server, client)
        client.writer.write(encode_request(VERSIONS, 78) + encode_request(heartbeats("g"), 79))
        await until(lambda: any(one.blocked for one in server.connections))
        await neighbour.ask(VERSIONS)
        assert handlers.started == ["api_versions"], "the neighbour is served, the first client waits"

        gate.set()
        replies = [struct.unpack_from(">i", await client.receive_frame())[0] for _ in range(3)]
        assert replies == [77, 78, 79]
        assert [one[:11] for one in handlers.started[1:]] == ["heartbeat g", "api_version", "heartbeat g"]
        assert server.request_bytes.held == 0


@on_both_loops
async def test_connection_lost_while_its_api_is_loaded_releases_its_bytes(gate: threading.Event) -> None:
    async with connected(handlers := Handlers()) as (server, client), await another(server) as neighbour:
        await send_large_heartbeat(server, client)
        await until(lambda: any(one.blocked for one in server.connections))
        assert server.request_bytes.held > LARGE_BYTES
        [waiting] = [one for one in server.connections if one.blocked]
        waiting.abort()
        await until(lambda: server.request_bytes.held == 0)

        gate.set()
        await neighbour.ask(heartbeats("n"))
        assert handlers.started == ["heartbeat n"]


async def test_api_that_fails_to_load_fails_at_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: int) -> codec.Decoder:
        raise RuntimeError("no schema")

    monkeypatch.setattr(Routes, "_loaded", set())
    monkeypatch.setattr(codec, "decoder", fails)
    routes, key = Routes(registry.load_all()), headers.route_key(HEARTBEAT, 4)
    assert routes.is_slow(key)

    await asyncio.gather(routes.load(key), routes.load(key))

    assert not routes.is_slow(key)
    with pytest.raises(RuntimeError):
        routes.find(key)


def test_newer_versions_are_loaded_beside_the_loop_when_an_old_one_was_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old version's decoder needs none of their schemas: a Fetch v12 behind a v3 took 300 ms of the loop."""
    monkeypatch.setattr(Routes, "_loaded", set())
    routes = Routes(registry.load_all())

    routes.find(headers.route_key(FETCH, 3))

    assert not routes.is_slow(headers.route_key(FETCH, 0))
    assert routes.is_slow(headers.route_key(FETCH, 12))
    routes.find(headers.route_key(FETCH, 12))
    assert not routes.is_slow(headers.route_key(FETCH, 4))
