"""Connections closed without being asked, so that clients find brokers that have come."""

from __future__ import annotations

from contextlib import AsyncExitStack
from time import perf_counter
from typing import Any

import pytest
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.create_topics.v7.request import CreateTopicsRequest
from kio.schema.fetch.v12.request import FetchRequest

from tests.support.samples import sample
from tests.unit.server.fakes import Handlers, another, closed, connected, on_both_loops, running, until
from tidegate.server import sweeping

VERSIONS: Any = ApiVersionsRequest(client_software_name="t", client_software_version="1")
CREATES: Any = sample(CreateTopicsRequest)
FETCHES: Any = sample(FetchRequest)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweeper looks at once."""
    monkeypatch.setattr(sweeping, "NOTICE_S", 0.0)
    monkeypatch.setattr(sweeping, "CHECK_INTERVAL_S", 0.01)
    monkeypatch.setattr(sweeping, "REBALANCE_WINDOW_MS", 1)


@on_both_loops
async def test_share_of_the_connections_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "REBALANCE_WINDOW_MS", 200)
    async with running(Handlers()) as (server, _), AsyncExitStack() as clients:
        for _ in range(60):
            await clients.enter_async_context(await another(server))
        await until(lambda: len(server.connections) == 60)
        server.sweeper.shed_connections(0.5)
        due = [due_s for due_s, *_ in server.sweeper._draining]
        assert 10 < len(due) < 50, "a probability of one in two"
        assert max(due) - min(due) > 0.1, "spread over the time"
        await until(lambda: len(server.connections) == 60 - len(due))


@on_both_loops
async def test_sweep_closes_all_behind_one_address_and_none_when_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    for spread_ms in (0, 100):
        monkeypatch.setattr(sweeping, "REBALANCE_WINDOW_MS", spread_ms)
        async with connected(Handlers()) as (server, client):
            await client.ask(VERSIONS)
            server.sweeper.shed_connections(0.0, lambda listener: listener == "PLAINTEXT")
            assert len(server.sweeper._draining) == (1 if spread_ms else 0)
            if spread_ms:
                assert await closed(client) == b""


@on_both_loops
async def test_long_poll_is_answered_first() -> None:
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        sent = client.send(FETCHES)
        await until(lambda: handlers.parked)
        server.sweeper.shed_connections(1.0)
        await until(lambda: not server.sweeper._draining)
        assert server.connections
        handlers.answer_fetch(handlers.parked[0])
        assert (await client.receive())[0] == sent
        assert await closed(client) == b""


@on_both_loops
async def test_sweep_connection_with_a_parked_request_stays_until_its_answer() -> None:
    handlers = Handlers()
    handlers.cold_gate.clear()
    async with connected(handlers) as (server, client):
        sent = [client.send(CREATES), client.send(VERSIONS)]
        await until(lambda: handlers.started)
        server.sweeper.shed_connections(1.0)
        tried_s = perf_counter() + 0.2
        await until(lambda: perf_counter() > tried_s)
        assert server.sweeper._draining, "it is tried again and again"
        handlers.cold_gate.set()
        assert [(await client.receive())[0] for _ in sent] == sent
        assert await closed(client) == b""
