"""acks=all with `durability`: proved by WAIT or WAITAOF behind a write; consumers see only what was proved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.logs import TOPIC, append, append_later, batch, broker, given_log, read
from tests.support.valkey import ValkeyServer
from tidegate.errors import NotEnoughReplicasAfterAppend
from tidegate.settings import Settings
from tidegate.store.store import Store


@pytest.fixture
async def primary() -> AsyncIterator[ValkeyServer]:
    server = ValkeyServer(["--appendonly", "yes", "--repl-diskless-sync-delay", "0"])
    yield server
    server.stop()


@pytest.fixture
async def primary_store(primary: ValkeyServer) -> AsyncIterator[Store]:
    opened = Store(Settings(redis_url=primary.url))
    await opened.start()
    await given_log(opened)
    yield opened
    await opened.close()


async def _attached(store: Store, count: int) -> None:
    while b"connected_slaves:%d" % count not in str(await store.command("INFO", "replication")).encode():
        await asyncio.sleep(0.02)


async def test_replicated_appends_are_answered_when_replicas_have_them(
    primary: ValkeyServer, primary_store: Store
) -> None:
    replica = ValkeyServer(["--replicaof", f"127.0.0.1 {primary.port}"])
    try:
        await _attached(primary_store, 1)
        async with broker(primary_store.settings, durability="replicated:1") as logs:
            log = logs.partition(TOPIC, 0)
            answers = await asyncio.gather(
                *(append_later(log, batch(producer_id=7, epoch=0, sequence=i)) for i in range(9))
            )
            assert [answer.base_offset for answer in answers] == list(range(9))
            known = log.known()
            assert known is not None and known.high_watermark == 9
            again = await append(log, producer_id=7, epoch=0, sequence=8)
            assert again.base_offset == 8
    finally:
        replica.stop()


async def test_what_is_not_proved_is_stored_but_neither_acknowledged_nor_shown(
    primary: ValkeyServer, primary_store: Store
) -> None:
    async with broker(primary_store.settings, durability="replicated:1", durability_timeout_ms=50) as logs:
        log = logs.partition(TOPIC, 0)
        with pytest.raises(NotEnoughReplicasAfterAppend):
            await append(log)
        assert (await append_later(log, batch(), acks_all=False)).base_offset == 1
        known = log.known()
        assert known is not None and (known.high_watermark, known.log_end_offset) == (0, 2)
        assert (await read(log, 0)).size == 0

        replica = ValkeyServer(["--replicaof", f"127.0.0.1 {primary.port}"])
        try:
            shown = asyncio.Event()
            log.on_change(shown.set)
            while (log.known() or known).high_watermark < 2:
                await asyncio.wait_for(shown.wait(), 10)
                shown.clear()
            assert (await read(log, 0)).end_offset == 2
        finally:
            replica.stop()


async def test_fsynced_appends_are_answered_when_they_are_on_disk(primary_store: Store) -> None:
    if not any(await primary_store.command("COMMAND", "INFO", "WAITAOF")):
        pytest.skip("this server has no WAITAOF (Redis before 7.2)")
    async with broker(primary_store.settings, durability="fsynced") as logs:
        log = logs.partition(TOPIC, 0)
        assert (await append(log)).base_offset == 0
        known = log.known()

    assert known is not None and known.high_watermark == 1


async def test_a_server_without_a_file_proves_nothing(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings, durability="fsynced", durability_timeout_ms=50) as logs:
        with pytest.raises(NotEnoughReplicasAfterAppend):
            await append(logs.partition(TOPIC, 0))


async def test_a_proof_that_another_connection_gave_is_none(primary: ValkeyServer, primary_store: Store) -> None:
    replica = ValkeyServer(["--replicaof", f"127.0.0.1 {primary.port}"])
    try:
        await _attached(primary_store, 1)
        async with broker(primary_store.settings, durability="replicated:1") as logs:
            log = logs.partition(TOPIC, 0)
            await append(log)
            proofs: list[bool] = []
            log.when_durable(99, True, proofs.append)
            logs.drop_views()  # as when a lane is cut: the next one may lead elsewhere
            while not proofs:
                await asyncio.sleep(0.01)
            assert proofs == [False]
    finally:
        replica.stop()
