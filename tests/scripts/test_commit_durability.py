"""A commit is acknowledged when it is as durable as `durability` says (promise P3), as an appended record is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.support.logs import broker
from tests.support.valkey import ValkeyServer
from tests.support.waitaof import needs_waitaof
from tidegate.groups.commits import Commit
from tidegate.groups.offsets import Offsets, entry_json, offset_field
from tidegate.log.durability import Durability
from tidegate.settings import Settings
from tidegate.store.addresses import Address
from tidegate.store.node import Node
from tidegate.store.store import Store

NONE, NOT_AVAILABLE = 0, 15


@pytest.fixture
async def primary() -> AsyncIterator[ValkeyServer]:
    server = ValkeyServer(["--repl-diskless-sync-delay", "0"])
    yield server
    server.stop()


@asynccontextmanager
async def store_on(server: ValkeyServer, timeout_ms: int) -> AsyncIterator[Store]:
    opened = Store(Settings(redis_url=server.url, durability="replicated:1", durability_timeout_ms=timeout_ms))
    await opened.start()
    try:
        yield opened
    finally:
        await opened.close()


def one_server(_: Node) -> str:
    return "the server"


async def commit(offsets: Offsets, store: Store, generation: int = -1) -> int:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    entries = [offset_field("orders", 0), entry_json(5, -1, "", "")]
    offsets.commit(store.group_keys("default", "g"), Commit(generation, "", None, entries), answer.set_result)
    return await asyncio.wait_for(answer, 30)


async def test_commit_replicated_is_acknowledged_when_a_replica_has_it(primary: ValkeyServer) -> None:
    async with store_on(primary, 20_000) as store:
        offsets = Offsets(store, prove=Durability(store, one_server).prove)
        committing = asyncio.ensure_future(commit(offsets, store))
        await asyncio.sleep(0.2)
        assert not committing.done()

        replica = ValkeyServer(["--replicaof", f"127.0.0.1 {primary.port}"])
        try:
            assert await committing == NONE
        finally:
            replica.stop()


async def test_commit_unproved_answers_coordinator_not_available(primary: ValkeyServer) -> None:
    async with store_on(primary, 50) as store:
        offsets = Offsets(store, prove=Durability(store, one_server).prove)

        assert await commit(offsets, store) == NOT_AVAILABLE


async def test_commit_refused_needs_no_proof(primary: ValkeyServer) -> None:
    def prove(node: Node, on_proved: Callable[[bool], None]) -> None:
        raise AssertionError("nothing was written")

    async with store_on(primary, 50) as store:
        assert await commit(Offsets(store, prove=prove), store, generation=3) not in (
            NONE,
            NOT_AVAILABLE,
        )


async def test_commit_connection_lost_before_the_proof_answers_coordinator_not_available(
    primary: ValkeyServer,
) -> None:
    """The proof may be another server's: after a fail-over the same address, or the same name, is another primary."""

    async def reconnect(node: Node, on_proved: Callable[[bool], None]) -> None:
        node.control.reconnect("for the test")
        await node.control.wait_up(30)
        on_proved(True)

    tasks = set()

    def prove(node: Node, on_proved: Callable[[bool], None]) -> None:
        tasks.add(asyncio.ensure_future(reconnect(node, on_proved)))

    async with store_on(primary, 50) as store:
        assert await commit(Offsets(store, prove=prove), store) == NOT_AVAILABLE
        await asyncio.gather(*tasks)


@needs_waitaof
async def test_commit_proved_by_another_server_answers_coordinator_not_available(primary: ValkeyServer) -> None:
    """Sentinels named a new primary; only the connection for proofs was lost, the others still write to the old one."""
    promoted = ValkeyServer(["--appendonly", "yes", "--appendfsync", "always"])
    settings = Settings(redis_url=primary.url, durability="fsynced", durability_timeout_ms=20_000)
    try:
        async with broker(settings) as logs:
            node = logs.store.metadata_node
            offsets = Offsets(logs.store, prove=logs.durability.prove)
            address = Address("127.0.0.1", promoted.port)

            async def find() -> Address:
                return address

            node.durable._find = find
            node.durable.reconnect("for the test")
            await node.durable.wait_up(30)
            assert await commit(offsets, logs.store) == NOT_AVAILABLE

            for lane in node.lanes:
                lane._find = find
                lane.reconnect("for the test")
            await logs.failover_epochs.ready()
            assert await commit(offsets, logs.store) == NONE
    finally:
        promoted.stop()
