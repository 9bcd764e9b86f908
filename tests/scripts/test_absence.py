"""When Redis counts as just returned."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.valkey import ValkeyServer
from tidegate.settings import Settings
from tidegate.store.store import Store


@pytest.fixture
async def own() -> AsyncIterator[tuple[ValkeyServer, Store]]:
    server = ValkeyServer()
    store = Store(Settings(redis_url=server.url))
    await store.start()
    yield server, store
    await store.close()
    server.stop()


async def back_after(server: ValkeyServer, store: Store, away_s: float) -> None:
    server.kill()
    await asyncio.sleep(away_s)
    server.start()
    await store.metadata_node.control.wait_up(30)
    await store.command("PING")


async def test_first_connection_is_no_return(own: tuple[ValkeyServer, Store]) -> None:
    assert not own[1].metadata_node.outage.recently_recovered


async def test_short_absence_is_none(own: tuple[ValkeyServer, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.store.redis_outage._SHORT_S", 60.0)  # however slowly the server starts
    await back_after(*own, 0.1)
    assert not own[1].metadata_node.outage.recently_recovered


async def test_long_outage_is_recent_for_a_while(
    own: tuple[ValkeyServer, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.store.redis_outage._RETURN_S", 60.0)
    await back_after(*own, 1.2)
    assert own[1].metadata_node.outage.recently_recovered
    monkeypatch.setattr("tidegate.store.redis_outage._RETURN_S", 0.0)
    assert not own[1].metadata_node.outage.recently_recovered
