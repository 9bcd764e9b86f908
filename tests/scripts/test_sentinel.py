"""Sentinels name the primary: whom brokers ask, whom they believe, and how they follow, with real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace

import pytest
import redis
from kio.schema.errors import ErrorCode

from tests.support.sentinels import Watched
from tests.support.valkey import ValkeyServer, free_port
from tidegate.errors import StoreUnavailable
from tidegate.settings import Settings
from tidegate.store.addresses import Address
from tidegate.store.link import Link
from tidegate.store.primary import Primary, find_primary
from tidegate.store.store import Store

PATIENCE_S = 60.0
AWAY = {ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress}


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    """Servers that tests may fail over, but do not kill."""
    with Watched(sentinel_password="hidden", down_after_ms=5_000) as servers:
        yield servers


@pytest.fixture
async def store(watched: Watched) -> AsyncIterator[Store]:
    """A store by the sentinels."""
    opened = Store(Settings(redis_url=watched.url, redis_sentinel_password="hidden"))
    await opened.start()
    yield opened
    await opened.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.02)


def ports(store: Store) -> set[int]:
    """Where the lanes that are up are connected to."""
    return {link.address.port if link.connected and link.address is not None else 0 for link in store.links}


def by(*sentinel_ports: int) -> Settings:
    """The service by sentinels, in this order."""
    hosts = ",".join(f"127.0.0.1:{port}" for port in sentinel_ports)
    return Settings(
        redis_url=f"redis+sentinel://{hosts}/main", redis_sentinel_password="hidden", redis_command_timeout_ms=75_000
    )


async def test_one_sentinel_that_answers_is_enough(watched: Watched) -> None:
    found = await find_primary(by(free_port(), watched.sentinel_ports[1]))

    assert found.port == watched.primary_port()


async def test_sentinel_unavailable_during_a_fail_over_is_ignored(watched: Watched) -> None:
    before = watched.primary_port()
    with watched.paused_sentinel(0):
        await asyncio.to_thread(watched.fail_over)

    found = await find_primary(by(*watched.sentinel_ports))  # the first one names the old primary for a while

    assert found.port == watched.primary_port() != before


async def test_sentinel_that_watches_another_server_is_outvoted(watched: Watched) -> None:
    with Watched(replicas=0, sentinels=1, sentinel_password="hidden", down_after_ms=5_000) as other:
        assert other.primary_port() not in [server.port for server in watched.servers]

        found = await find_primary(by(*other.sentinel_ports, *watched.sentinel_ports))

    assert found.port == watched.primary_port()


async def test_sentinel_that_hangs_is_asked_again_and_delays_no_other(watched: Watched) -> None:
    primary = Primary(by(*watched.sentinel_ports))
    try:
        await primary.find()
        with watched.paused_sentinel(0):
            for _ in range(3):
                async with asyncio.timeout(20):  # less than a connection may take
                    assert (await primary.find()).port == watched.primary_port()
        assert (await primary.find()).port == watched.primary_port()
    finally:
        await primary.close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [("redis+sentinel://127.0.0.1:1/main", "127.0.0.1:1"), ("redis+sentinel://{sentinel}/other", "'other'")],
)
async def test_missing_primary_is_reported_with_the_reason(watched: Watched, url: str, reason: str) -> None:
    asked = url.format(sentinel=f"127.0.0.1:{watched.sentinel_ports[0]}")
    store = Store(Settings(redis_url=asked, redis_sentinel_password="hidden", redis_command_timeout_ms=1_250))

    with pytest.raises(StoreUnavailable, match=reason) as reported:
        await store.start()

    assert "that is up" in str(reported.value)


async def test_primary_that_every_sentinel_considers_down_is_not_named() -> None:
    with Watched(replicas=0, sentinels=1, sentinel_password="hidden", down_after_ms=3_000) as watched:
        settings = by(*watched.sentinel_ports)
        found = await find_primary(settings)
        assert (found.host, found.port) == ("127.0.0.1", watched.primary_port())
        watched.primary().kill()

        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(StoreUnavailable, match="that is up"):
                while True:
                    await find_primary(settings)
                    await asyncio.sleep(0.05)


async def test_sentinels_may_have_a_login_of_their_own(watched: Watched) -> None:
    with pytest.raises(StoreUnavailable, match="authenticated"):
        await find_primary(Settings(redis_url=watched.url))


async def test_server_that_reports_itself_a_replica_is_refused(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = next(server for server in watched.servers if server.port != watched.primary_port())
    with redis.Redis(port=replica.port) as client:
        await until(lambda: client.role()[0] == b"slave")
    store = Store(Settings(redis_url=watched.url, redis_sentinel_password="hidden", redis_command_timeout_ms=7_500))

    async def stale(primary: Primary) -> Address:
        return replace(primary.address, port=replica.port)

    monkeypatch.setattr(Primary, "_ask", stale)
    with pytest.raises(StoreUnavailable, match="calls itself a replica"):
        await store.start()
    monkeypatch.undo()


@pytest.mark.parametrize("lane", ["control", "data_out"])
async def test_primary_that_was_put_down_and_still_accepts_is_left(lane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = ValkeyServer(), ValkeyServer()
    store = Store(Settings(redis_url=f"redis+sentinel://127.0.0.1:{old.port}/main"))
    named = replace(store.primary.address, port=old.port)

    async def ask(_: Primary) -> Address:
        return named

    monkeypatch.setattr(Primary, "_ask", ask)
    try:
        await store.start()
        with redis.Redis(port=old.port) as client:
            client.replicaof("127.0.0.1", new.port)  # unlike a sentinel, it closes no connection
        link: Link = getattr(store.metadata_node, lane)
        with pytest.raises(Exception, match="READONLY"):
            await link.call("SET", "tidegate:{cluster}:probe", "lost")
        named = replace(named, port=new.port)
        await until(lambda: ports(store) == {new.port})
        assert await link.call("SET", "tidegate:{cluster}:probe", "kept") == b"OK"
    finally:
        await store.close()
        old.stop()
        new.stop()


async def test_lanes_connect_to_the_primary_and_follow_it(watched: Watched, store: Store) -> None:
    before = watched.primary_port()
    assert ports(store) == {before}
    await store.command("SET", "tidegate:{cluster}:probe", "kept")
    await asyncio.to_thread(watched.wait_in_sync)

    await asyncio.to_thread(watched.fail_over)

    await until(lambda: ports(store) == {watched.primary_port()})
    assert await store.command("GET", "tidegate:{cluster}:probe") == b"kept"
    assert await store.metadata_node.durable.call("SET", "tidegate:{cluster}:probe", "written") == b"OK"
