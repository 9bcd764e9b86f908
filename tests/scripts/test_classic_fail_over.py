"""A replica takes over from its primary at the one address that two whole brokers know."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest
import redis
from kio.schema.errors import ErrorCode

from tests.kit.member import Member
from tests.kit.wire import RawClient
from tests.support.barriers import stabilize
from tests.support.proxy import Proxy
from tests.support.valkey import ValkeyServer, free_port
from tidegate.app import App
from tidegate.server import sweeping
from tidegate.settings import Settings

AWAY = {ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress}
ANSWER_S = 20.0
TOPIC = "t"


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
async def apps(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[App]]:
    """Two brokers behind it."""
    monkeypatch.setattr(sweeping, "REBALANCE_WINDOW_MS", 0)  # the clients do not connect again
    async with AsyncExitStack() as stack:
        started = []
        for port in (free_port(), free_port()):
            settings = Settings(
                redis_url=proxy.url, port=port, admin_port=free_port(), group_initial_rebalance_delay_ms=0,
            )  # fmt: skip
            started.append(App(settings))
            stack.push_async_callback(started[-1].close)
            await started[-1].start()
        yield started


@pytest.fixture
async def clients(apps: list[App]) -> AsyncIterator[list[RawClient]]:
    """Three connections to them."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(await RawClient.connect(f"127.0.0.1:{app.broker.settings.port}"))
            for app in (*apps, apps[0])
        ]


@pytest.fixture
def redises(servers: tuple[ValkeyServer, ValkeyServer]) -> Iterator[list[redis.Redis]]:
    """An operator's connections to the primary and the replica."""
    opened = [redis.Redis(port=server.port) for server in servers]
    yield opened
    for client in opened:
        client.close()


async def replicated(primary: redis.Redis, replica: redis.Redis) -> None:
    """The replica has all that the primary has now."""
    primary.set("test:mark", "1")
    async with asyncio.timeout(ANSWER_S):
        while not replica.exists("test:mark"):
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
    servers: tuple[ValkeyServer, ValkeyServer], proxy: Proxy, clients: list[RawClient], redises: list[redis.Redis]
) -> None:
    primary, replica = redises
    a, b, c = (Member(client, "orders") for client in clients)
    await stabilize(a, b)
    await replicated(primary, replica)
    replica.replicaof("NO", "ONE")
    await stabilize(a, b, c)
    lost = a.generation
    assert lost == b.generation == c.generation

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


@pytest.fixture
async def group(apps: list[App], clients: list[RawClient], redises: list[redis.Redis]) -> tuple[Member, Member]:
    """A stable group with a member at each broker, which the replica has too."""
    await apps[0].broker.catalog.create("default", TOPIC, 1)
    a, b = (Member(client, "orders") for client in clients[:2])
    await stabilize(a, b)
    await commit_stored(a, 0)
    await commit_stored(b, 0)
    await replicated(*redises)
    return a, b


async def commit_stored(member: Member, offset: int) -> None:
    """Commit until Redis has stored it."""
    async with asyncio.timeout(ANSWER_S):
        while (code := (await member.commit(TOPIC, {0: offset}))[0]) is not ErrorCode.none:
            assert code in AWAY, code
            await asyncio.sleep(0.02)


async def ready(apps: list[App]) -> list[int]:
    """Wait until every broker is ready; their failover epochs."""
    async with asyncio.timeout(ANSWER_S):
        while not all(app.broker.health.ready for app in apps):
            await asyncio.sleep(0.02)
    return [await app.broker.logs.failover_epochs.ready() for app in apps]


async def test_demoted_primary_keeps_connections_brokers_follow_the_address(
    servers: tuple[ValkeyServer, ValkeyServer],
    proxy: Proxy,
    apps: list[App],
    group: tuple[Member, Member],
    redises: list[redis.Redis],
) -> None:
    primary, replica = redises
    before = await ready(apps)

    replica.replicaof("NO", "ONE")
    proxy.target = servers[1].port
    primary.replicaof("127.0.0.1", servers[1].port)  # it closes no connection

    for member in group:
        await commit_stored(member, 7)
    after = await ready(apps)
    await stabilize(*group)
    assert after[0] == after[1] > before[0]


async def test_address_leads_to_a_replica_brokers_are_not_ready_until_it_is_promoted(
    servers: tuple[ValkeyServer, ValkeyServer],
    proxy: Proxy,
    apps: list[App],
    group: tuple[Member, Member],
    redises: list[redis.Redis],
) -> None:
    primary, replica = redises
    links = [link for app in apps for link in app.broker.store.links]
    proxy.target = servers[1].port
    primary.replicaof("127.0.0.1", servers[1].port)
    async with asyncio.timeout(ANSWER_S):
        while not all("calls itself a replica" in link.last_error for link in links):
            await asyncio.sleep(0.02)
    assert not any(app.broker.health.ready for app in apps)
    assert (await group[0].commit(TOPIC, {0: 7}))[0] in AWAY

    replica.replicaof("NO", "ONE")

    for member in group:
        await commit_stored(member, 8)
    await ready(apps)
    await stabilize(*group)
