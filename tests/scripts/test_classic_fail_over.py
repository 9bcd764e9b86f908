"""A replica that missed the end takes over from its primary, under two whole brokers (scenario 99)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest
from kio.schema.errors import ErrorCode

from tests.support.barriers import stabilize
from tests.support.members import Member
from tests.support.proxy import Proxy
from tests.support.valkey import ValkeyServer, free_port
from tests.support.wire import RawClient
from tidegate.app import App
from tidegate.server import sweeping
from tidegate.settings import Settings
from tidegate.store.store import Store

AWAY = {ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress}
ANSWER_S = 20.0


@pytest.fixture
def servers() -> Iterator[tuple[ValkeyServer, ValkeyServer]]:
    """A primary and its replica."""
    primary = ValkeyServer(["--repl-diskless-sync-delay", "0"])
    replica = ValkeyServer(["--replicaof", "127.0.0.1", str(primary.port)])
    yield primary, replica
    primary.stop()
    replica.stop()


@pytest.fixture
async def proxy(servers: tuple[ValkeyServer, ValkeyServer]) -> AsyncIterator[Proxy]:
    """The one address that brokers know."""
    opened = Proxy(servers[0].port)
    await opened.start()
    yield opened
    await opened.close()


@pytest.fixture
async def clients(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[RawClient]]:
    """Three connections to two brokers behind it."""
    monkeypatch.setattr(sweeping, "REBALANCE_WINDOW_MS", 0)  # the clients do not connect again
    async with AsyncExitStack() as stack:
        ports = [free_port(), free_port()]
        for port in ports:
            settings = Settings(
                redis_url=proxy.url, port=port, admin_port=free_port(), group_initial_rebalance_delay_ms=0,
            )  # fmt: skip
            app = App(settings)
            stack.push_async_callback(app.close)
            await app.start()
        yield [
            await stack.enter_async_context(await RawClient.connect(f"127.0.0.1:{port}")) for port in (*ports, ports[0])
        ]


async def replicated(primary: Store, replica: Store) -> None:
    """The replica has all that the primary has now."""
    await primary.command("SET", "test:mark", "1")
    async with asyncio.timeout(ANSWER_S):
        while not await replica.command("EXISTS", "test:mark"):
            await asyncio.sleep(0.02)


async def heartbeat_code(member: Member) -> ErrorCode:
    """The first code of a heartbeat from the promoted replica; NONE comes from a snapshot of the time before it."""
    deadline = time.monotonic() + ANSWER_S
    while (code := await member.heartbeat()) in AWAY or code is ErrorCode.none:
        assert time.monotonic() < deadline, "brokers did not come back"
        await asyncio.sleep(0.01)
    return code


async def live(member: Member) -> None:
    """Continue as a client: rejoin whenever a heartbeat says so."""
    while True:
        await member.round()
        while await member.heartbeat() is ErrorCode.none:
            await asyncio.sleep(0.02)


async def test_scenario_99_a_replica_without_the_end_takes_over(
    servers: tuple[ValkeyServer, ValkeyServer], proxy: Proxy, clients: list[RawClient]
) -> None:
    primary, replica = (Store(Settings(redis_url=server.url)) for server in servers)
    await asyncio.gather(primary.start(), replica.start())
    a, b, c = (Member(client, "orders") for client in clients)
    await stabilize(a, b)
    await replicated(primary, replica)
    await replica.command("REPLICAOF", "NO", "ONE")
    await stabilize(a, b, c)
    lost = a.generation
    assert lost == b.generation == c.generation

    await asyncio.gather(primary.close(), replica.close())
    proxy.target = servers[1].port
    servers[0].kill()

    codes = await asyncio.gather(heartbeat_code(a), heartbeat_code(b), heartbeat_code(c))
    assert codes == [ErrorCode.illegal_generation, ErrorCode.illegal_generation, ErrorCode.unknown_member_id]
    c.member_id = ""
    runs = [asyncio.ensure_future(live(member)) for member in (a, b, c)]
    async with asyncio.timeout(ANSWER_S):
        while not a.generation == b.generation == c.generation > lost:
            await asyncio.sleep(0.02)
    for life in runs:
        life.cancel()
    await asyncio.gather(*runs, return_exceptions=True)
