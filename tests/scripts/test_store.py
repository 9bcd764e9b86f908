"""The store against a real server: scripts load, run, reload; the link survives Redis going away."""

from __future__ import annotations

import asyncio
import time

import pytest
import redis

from tests.support.proxy import Proxy
from tests.support.valkey import ValkeyServer
from tidegate.cluster.broker_lease import RENEW_LEASE
from tidegate.errors import StoreUnavailable
from tidegate.settings import Settings
from tidegate.store.link import Link
from tidegate.store.outcome import Refused
from tidegate.store.store import Store


async def test_commands_of_a_tick_are_answered_in_order(store: Store) -> None:
    replies = await asyncio.gather(*(store.metadata_node.control.call("ECHO", n) for n in range(1000)))

    assert [int(reply) for reply in replies] == list(range(1000))


async def test_watched_channel_wakes_its_listener(store: Store) -> None:
    reported: asyncio.Queue[bytes | None] = asyncio.Queue()
    await store.pubsub.listen("tidegate:ch", reported.put_nowait)
    await store.command("PUBLISH", "tidegate:ch", "hello")

    assert await asyncio.wait_for(reported.get(), 30) == b"hello"


async def test_listener_that_fails_keeps_nothing_from_the_others_nor_the_link_down(store: Store) -> None:
    reported: asyncio.Queue[bytes | None] = asyncio.Queue()

    def fail(_: bytes | None) -> None:
        raise ValueError("not a payload of ours")

    for _ in range(10):  # in whatever order they are reported
        await store.pubsub.listen("tidegate:ch", lambda payload: fail(payload))
    await store.pubsub.listen("tidegate:ch", reported.put_nowait)
    await store.command("PUBLISH", "tidegate:ch", "hello")
    assert await asyncio.wait_for(reported.get(), 30) == b"hello"

    await store.command("CLIENT", "KILL", "TYPE", "pubsub")
    assert await asyncio.wait_for(reported.get(), 30) is None
    async with asyncio.timeout(40):
        while reported.empty():
            await store.command("PUBLISH", "tidegate:ch", "again")
            await asyncio.sleep(0.02)


async def test_listener_that_fails_does_not_end_the_link(store: Store) -> None:
    def fail(_: Link) -> None:
        raise ValueError("a bug of a listener")

    for listeners in (store.metadata_node.control.on_up, store.metadata_node.control.on_down):
        listeners.insert(0, fail)
    for _ in range(2):
        before = store.metadata_node.control.failover_epoch
        await asyncio.gather(
            store.metadata_node.control.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no"), return_exceptions=True
        )
        async with asyncio.timeout(40):
            while store.metadata_node.control.failover_epoch == before:
                await asyncio.sleep(0.01)
    assert await store.metadata_node.control.call("PING") == b"PONG"


async def test_script_that_redis_refuses_again_and_again_is_logged_once_a_second(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.store.store._FAILURES_LOGGED_EVERY_S", 60.0)  # however slowly it replies
    await store.command("CONFIG", "SET", "min-replicas-to-write", 1)
    try:
        replies: list[object] = []
        for _ in range(100):
            store.send_script(RENEW_LEASE, [], [], replies.append)
        await store.command("PING")
    finally:
        await store.command("CONFIG", "SET", "min-replicas-to-write", 0)

    assert len(replies) == 100
    assert all(isinstance(reply, Refused) for reply in replies)
    assert capsys.readouterr().out.count("script_failed") == 1


async def test_store_recovers_after_redis_was_unavailable() -> None:
    server = ValkeyServer()
    store = Store(Settings(redis_url=server.url))
    try:
        await store.start()
        failover_epoch = store.metadata_node.control.failover_epoch
        server.kill()
        await asyncio.sleep(0.1)
        with pytest.raises(StoreUnavailable):
            await store.command("PING")
        server.start()
        await store.metadata_node.control.wait_up(30)
        assert await store.command("PING") == b"PONG"
        assert store.metadata_node.control.failover_epoch == failover_epoch + 1
    finally:
        await store.close()
        server.stop()


async def test_store_demoted_primary_behind_one_address_reconnects_to_its_successor() -> None:
    """Neither REPLICAOF nor a service that names another server closes the connections to the old one."""
    old, new = ValkeyServer(), ValkeyServer()
    service = Proxy(old.port)
    await service.start()
    store = Store(Settings(redis_url=service.url))
    try:
        await store.start()
        with redis.Redis(port=old.port) as client:
            client.replicaof("127.0.0.1", new.port)
        with pytest.raises(StoreUnavailable, match="READONLY"):
            await store.run(RENEW_LEASE, [])
        async with asyncio.timeout(30):
            while "calls itself a replica" not in store.metadata_node.control.last_error:
                await asyncio.sleep(0.01)
        assert not store.available

        service.target = new.port

        for link in store.links:
            await link.wait_up(30)
        assert await store.metadata_node.control.call("SET", "tidegate:{cluster}:probe", "written") == b"OK"
    finally:
        await store.close()
        await service.close()
        old.stop()
        new.stop()


async def test_store_read_only_errors_of_a_primary_reconnect_once_a_second(store: Store) -> None:
    lane, started_s = store.metadata_node.control, time.monotonic()
    before = lane.failover_epoch
    while time.monotonic() - started_s < 1.5 or lane.failover_epoch == before:
        store.reconnect_to_primary()
        await asyncio.sleep(0.01)

    assert 1 <= lane.failover_epoch - before <= 1 + time.monotonic() - started_s


async def test_start_blocked_event_loop_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "redis_connect_timeout_ms", 1_000)
    server = ValkeyServer()
    store = Store(Settings(redis_url=server.url))
    try:
        asyncio.get_running_loop().call_soon(time.sleep, 1.5)  # every timer of the start is overdue at once
        await store.start()
        assert await store.command("PING") == b"PONG"
    finally:
        await store.close()
        server.stop()
