"""The store against a real server: scripts load, run, reload; the link survives Redis going away."""

from __future__ import annotations

import asyncio

import pytest

from broker.cluster.membership import RENEW_LEASE
from broker.errors import StoreUnavailable
from broker.settings import Settings
from broker.store.store import Store
from tests.support.valkey import ValkeyServer


async def test_commands_of_a_tick_are_answered_in_order(store: Store) -> None:
    replies = await asyncio.gather(*(store.control.call("ECHO", n) for n in range(1000)))

    assert [int(reply) for reply in replies] == list(range(1000))


async def test_a_watched_channel_wakes_its_listener(store: Store) -> None:
    heard: asyncio.Queue[bytes | None] = asyncio.Queue()
    await store.wakeups.listen("ch", heard.put_nowait)
    await store.command("PUBLISH", "ch", "hello")

    assert await asyncio.wait_for(heard.get(), 2) == b"hello"


async def test_a_script_that_redis_refuses_again_and_again_is_logged_once_a_second(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    await store.command("CONFIG", "SET", "min-replicas-to-write", 1)
    try:
        replies: list[object] = []
        for _ in range(100):
            store.send_script(RENEW_LEASE, [], [], replies.append)
        await store.command("PING")
    finally:
        await store.command("CONFIG", "SET", "min-replicas-to-write", 0)

    assert len(replies) == 100
    assert all(isinstance(reply, StoreUnavailable) for reply in replies)
    assert capsys.readouterr().out.count("script_failed") == 1


async def test_the_store_comes_back_after_redis_was_away() -> None:
    server = ValkeyServer()
    store = Store(Settings(redis_url=server.url))
    try:
        await store.start()
        incarnation = store.control.incarnation
        server.kill()
        await asyncio.sleep(0.1)
        with pytest.raises(StoreUnavailable):
            await store.command("PING")
        server.start()
        await store.control.wait_up(5)
        assert await store.command("PING") == b"PONG"
        assert store.control.incarnation == incarnation + 1
    finally:
        await store.close()
        server.stop()
