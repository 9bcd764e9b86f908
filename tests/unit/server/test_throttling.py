"""Clients beyond a quota: the reply comes at once, then their connection is muted, and nobody else's."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from itertools import count
from time import perf_counter
from typing import Any, cast

import pytest
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v9.request import JoinGroupRequest

from tests.kit.wire import RawClient, encode_request, request_type
from tests.support.samples import sample
from tests.unit.server.fakes import (
    FETCH,
    PRODUCE,
    Handlers,
    another,
    closed,
    connected,
    deliver,
    on_both_loops,
    raw_socket,
    until,
)
from tidegate.quotas.leases import ClientLimits, QuotaLeases
from tidegate.server import throttling
from tidegate.server.muting import MUTED
from tidegate.server.pending_request import PendingRequest

HEARTBEAT: Any = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id=None)
FETCHES: Any = sample(request_type(FETCH, 12))
PRODUCES: Any = sample(request_type(PRODUCE, 9))
JOINS: Any = sample(JoinGroupRequest)
MUTE_S = 0.4
TIMER_S = 0.002  # a loop of uvloop counts milliseconds: its timers may be this early


class Bucket:
    """A bucket of one quota."""

    capacity = 1e9

    def __init__(self, name: str) -> None:
        self.name = name


class Leases:
    """Limits of the client id `limited`; notes what is spent, and makes every spender wait."""

    def __init__(self, wait_s: float = 0.0, connection_wait_s: float = 0.0) -> None:
        self.wait_s, self.connection_wait_s = wait_s, connection_wait_s
        self.spent: dict[str, list[float]] = {"produce": [], "fetch": [], "request": []}

    def of_client(self, org: str, principal: str, client_id: str) -> ClientLimits | None:
        limits: Any = {name: [Bucket(name)] for name in self.spent}
        return ClientLimits(**limits, mutation=[]) if client_id == "limited" else None

    def spend(self, buckets: Sequence[Any], amount: float) -> float:
        self.spent[buckets[0].name].append(amount)
        return self.wait_s

    def spend_request_time(self, buckets: Sequence[Any], seconds: float) -> float:
        self.spent["request"].append(seconds)
        return self.wait_s

    def connect(self, host: str) -> float:
        return self.connection_wait_s


def metered(server: Any, **waits: float) -> Leases:
    leases = Leases(**waits)
    server.meter(cast(QuotaLeases, leases))
    return leases


def send(client: RawClient, request: Any, client_id: str = "limited") -> None:
    client.writer.write(encode_request(request, 1, client_id))


@on_both_loops
async def test_reply_is_sent_before_the_wait() -> None:
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        metered(server, wait_s=3600.0)
        send(client, HEARTBEAT)
        send(client, HEARTBEAT)

        frame = await asyncio.wait_for(client.receive_frame(), 30)

        assert int.from_bytes(frame[5:9], "big") == 3_600_000  # behind correlation id and tags
        assert len(handlers.started) == 1


@on_both_loops
async def test_next_request_waits() -> None:
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        metered(server, wait_s=MUTE_S)
        started_s = perf_counter()
        send(client, HEARTBEAT)
        send(client, HEARTBEAT)
        await asyncio.wait_for(client.receive_frame(), 30)
        await asyncio.wait_for(client.receive_frame(), 30)

        assert perf_counter() - started_s >= MUTE_S - TIMER_S
        assert len(handlers.started) == 2


@on_both_loops
async def test_other_connections_are_served_meanwhile() -> None:
    handlers = Handlers()
    async with connected(handlers) as (server, client), await another(server) as other:
        metered(server, wait_s=60.0)
        send(client, HEARTBEAT)
        send(client, HEARTBEAT)
        await asyncio.wait_for(client.receive_frame(), 30)

        for _ in range(20):
            send(other, HEARTBEAT, "free")
            frame = await asyncio.wait_for(other.receive_frame(), 30)
            assert frame[5:9] == bytes(4)

        assert len(handlers.started) == 21


@on_both_loops
async def test_request_that_waits_for_its_reply_does_not_delay_the_mute() -> None:
    """A client that has many requests in flight is muted by the first of them that is beyond the quota."""
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        metered(server, wait_s=60.0)
        for _ in range(50):
            send(client, PRODUCES)
        await until(lambda: handlers.started)
        await asyncio.sleep(0.05)

        assert len(handlers.started) == 1


@on_both_loops
async def test_produce_without_acks_is_muted_too() -> None:
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        leases = metered(server, wait_s=MUTE_S)
        started_s = perf_counter()
        send(client, PRODUCES)
        send(client, PRODUCES)
        await until(lambda: len(handlers.started) == 2)

        assert perf_counter() - started_s >= MUTE_S - TIMER_S
        assert (
            leases.spent["produce"] == [len(encode_request(PRODUCES, 1, "limited")) - 4 - 10 - len("limited") - 1] * 2
        )


@on_both_loops
async def test_fetch_spends_the_bytes_of_its_reply() -> None:
    handlers = Handlers()
    handlers.fetch_bytes = 100_000
    async with connected(handlers) as (server, client):
        leases = metered(server)
        send(client, FETCHES)
        frame = await asyncio.wait_for(client.receive_frame(), 30)

        assert leases.spent["fetch"] == [len(frame) - 5]


@on_both_loops
async def test_time_of_a_waiting_request_is_not_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A join that waits an hour for other members has used next to nothing."""
    waited_s, ticks = [0.0], count()
    monkeypatch.setattr(throttling, "perf_counter", lambda: next(ticks) * 0.001 + sum(waited_s))
    handlers = Handlers()
    handlers.cold_gate.clear()
    async with connected(handlers) as (server, client):
        leases = metered(server)
        send(client, JOINS)
        await until(lambda: handlers.started)
        waited_s.append(3600.0)
        handlers.cold_gate.set()
        await asyncio.wait_for(client.receive_frame(), 30)

        [spent_s] = leases.spent["request"]
        assert 0 < spent_s < 0.4


@on_both_loops
async def test_wait_of_a_cancelled_request_ends_its_handler() -> None:
    handlers = Handlers()
    handlers.cold_gate.clear()
    async with connected(handlers) as (server, client):
        metered(server)
        send(client, JOINS)
        await until(lambda: handlers.started)
        await client.close()

        await until(lambda: handlers.cancelled == ["join_group"])


@on_both_loops
async def test_muted_connection_of_a_client_that_left_is_closed_unread() -> None:
    """It gave its request up, and was answered elsewhere; after a short mute it may have sent and closed at once."""
    handlers = Handlers()
    async with connected(handlers) as (server, _):
        metered(server, wait_s=60.0)
        for paused_s, started in ((0.5, 2), (1.5, 3)):
            gone = raw_socket(server)
            await until(lambda: len(server.connections) == 2)
            port = gone.getsockname()[1]
            (muted,) = (one for one in server.connections if one.client.port == port)
            deliver(server, gone, encode_request(HEARTBEAT, 1, "limited") + encode_request(PRODUCES, 2), close=True)
            while not muted.blocked & MUTED:
                await asyncio.sleep(0)

            muted._paused_s = perf_counter() - paused_s
            muted._muted_until_s = 0.0
            muted._await_end()
            await until(lambda: len(server.connections) == 1)
            assert len(handlers.started) == started


@on_both_loops
async def test_muted_connection_is_drained() -> None:
    """A broker that stops closes muted connections as any other."""
    async with connected(Handlers()) as (server, client):
        metered(server, wait_s=3600.0)
        send(client, HEARTBEAT)
        send(client, HEARTBEAT)
        await asyncio.wait_for(client.receive_frame(), 30)

        await server.drain(1_000)

        assert await closed(client) == b""


@on_both_loops
async def test_connections_above_the_rate_are_closed_unserved() -> None:
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        metered(server, connection_wait_s=MUTE_S)
        started_s = perf_counter()
        async with await another(server) as late:
            send(late, HEARTBEAT, "free")

            assert await closed(late) == b""

        assert perf_counter() - started_s >= MUTE_S - TIMER_S
        assert not handlers.started
        send(client, HEARTBEAT, "free")
        await asyncio.wait_for(client.receive_frame(), 30)


@on_both_loops
async def test_versions_that_are_not_served_take_no_memory() -> None:
    """Each of 32,767 versions of ApiVersions has the same answer; a client may try them all."""
    async with connected(Handlers()) as (server, client):
        metered(server)
        for version in range(100, 110):
            client.writer.write(struct.pack(">ihhihx", 11, 18, version, version, -1))
            frame = await asyncio.wait_for(client.receive_frame(), 30)
            assert frame[:6] == struct.pack(">ih", version, 35)

        assert not server.routes


@on_both_loops
async def test_last_quota_removed_restores_the_plain_path() -> None:
    async with connected(Handlers()) as (server, client):
        plain = server.routes
        metered(server)
        assert server.request_type is not PendingRequest

        server.meter(None)

        assert server.request_type is PendingRequest
        assert server.routes is plain
        send(client, HEARTBEAT)
        await asyncio.wait_for(client.receive_frame(), 30)
