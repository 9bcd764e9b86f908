"""acks=all with `durability`: proved by WAIT or WAITAOF behind a write; consumers see only what was proved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis

from tests.support.logs import TOPIC, append, append_later, batch, broker, given_log, read
from tests.support.valkey import ValkeyServer
from tests.support.waitaof import needs_waitaof
from tidegate.errors import NotEnoughReplicasAfterAppend, OffsetNotAvailable, RequestTimedOut
from tidegate.log.loading import FENCE_LOG
from tidegate.log.progress import NOTE_PROGRESS
from tidegate.settings import Settings
from tidegate.store.store import Store

KEYS = "default", "orders", 0, "ab" * 16


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
        async with broker(primary_store.settings, durability="replicated:1", durability_timeout_ms=30_000) as logs:
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


async def test_unproved_append_is_stored_but_neither_acknowledged_nor_visible(
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
                await asyncio.wait_for(shown.wait(), 40)
                shown.clear()
            assert (await read(log, 0)).end_offset == 2
        finally:
            replica.stop()


async def test_append_behind_an_unproved_one_that_was_lost_is_not_out_of_order(primary_store: Store) -> None:
    """At OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka takes a new epoch and sends all anew, also what is stored."""
    key = primary_store.log_keys(*KEYS).log
    async with broker(primary_store.settings, durability="replicated:1", durability_timeout_ms=50) as logs:
        log = logs.partition(TOPIC, 0)
        for sequence in (0, 1):
            with pytest.raises(NotEnoughReplicasAfterAppend):
                await append(log, producer_id=7, epoch=0, sequence=sequence)
            if sequence == 0:
                replicated = await primary_store.command("DUMP", key)
        await primary_store.command("RESTORE", key, 0, replicated, "REPLACE")  # as a replica that is promoted has it
        logs.drop_states()

        with pytest.raises(RequestTimedOut):
            await append(log, producer_id=7, epoch=0, sequence=2)
        for sequence in (0, 1, 2):
            with pytest.raises(NotEnoughReplicasAfterAppend):
                await append(log, producer_id=7, epoch=0, sequence=sequence)
        known = log.known()
        assert known is not None and known.log_end_offset == 3


@needs_waitaof
async def test_fsynced_appends_are_answered_when_they_are_on_disk(primary_store: Store) -> None:
    async with broker(primary_store.settings, durability="fsynced", durability_timeout_ms=30_000) as logs:
        log = logs.partition(TOPIC, 0)
        assert (await append(log)).base_offset == 0
        known = log.known()

    assert known is not None and known.high_watermark == 1


async def test_server_without_a_file_proves_nothing(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings, durability="fsynced", durability_timeout_ms=50) as logs:
        with pytest.raises(NotEnoughReplicasAfterAppend):
            await append(logs.partition(TOPIC, 0))


async def test_proof_that_another_connection_gave_is_none(primary: ValkeyServer, primary_store: Store) -> None:
    replica = ValkeyServer(["--replicaof", f"127.0.0.1 {primary.port}"])
    try:
        await _attached(primary_store, 1)
        async with broker(primary_store.settings, durability="replicated:1", durability_timeout_ms=30_000) as logs:
            log = logs.partition(TOPIC, 0)
            await append(log)
            proofs: list[bool] = []
            log.high_watermark.when_durable(99, True, proofs.append)
            logs.drop_states()  # as when a lane is cut: the next one may lead elsewhere
            while not proofs:
                await asyncio.sleep(0.01)
            assert proofs == [False]
    finally:
        replica.stop()


async def _stored(store: Store) -> int:
    """The high watermark that is stored with the log."""
    return int(await store.command("HGET", store.log_keys(*KEYS).meta, "high_watermark") or 0)


@pytest.fixture
async def promoted(primary: ValkeyServer, primary_store: Store) -> AsyncIterator[tuple[ValkeyServer, Store]]:
    """A replica of a primary that was killed after 100 records were proved and stored so."""
    replica = ValkeyServer(["--replicaof", f"127.0.0.1 {primary.port}"])
    opened, operator = Store(Settings(redis_url=replica.url)), redis.Redis(port=replica.port)
    try:
        await _attached(primary_store, 1)
        async with broker(primary_store.settings, durability="replicated:1", durability_timeout_ms=30_000) as logs:
            log = logs.partition(TOPIC, 0)
            await asyncio.gather(*(append_later(log, batch(count=10)) for _ in range(10)))
            async with asyncio.timeout(40):
                while int(operator.hget(opened.log_keys(*KEYS).meta, "high_watermark") or 0) < 100:
                    await asyncio.sleep(0.02)
        primary.kill()
        operator.replicaof("NO", "ONE")
        await opened.start()
        yield replica, opened
    finally:
        operator.close()
        await opened.close()
        replica.stop()


async def test_load_proof_fails_shows_what_was_proved(promoted: tuple[ValkeyServer, Store]) -> None:
    _, store = promoted
    async with broker(store.settings, durability="replicated:1", durability_timeout_ms=50) as logs:
        log = logs.partition(TOPIC, 0)
        known = await log.ensure()
        assert (known.high_watermark, known.log_end_offset) == (100, 100)
        assert (await read(log, 40)).end_offset == 100
        assert (await log.latest()).high_watermark == 100


async def test_load_proof_fails_latest_is_not_available_until_proved(promoted: tuple[ValkeyServer, Store]) -> None:
    server, store = promoted
    await store.command("HSET", store.log_keys(*KEYS).meta, "high_watermark", 60)  # the last writes were lost
    async with broker(store.settings, durability="replicated:1", durability_timeout_ms=50) as logs:
        log = logs.partition(TOPIC, 0)
        known = await log.ensure()
        assert (known.high_watermark, log.high_watermark_known) == (60, False)
        assert (await read(log, 40)).end_offset == 60
        assert (await read(log, 70)).size == 0
        with pytest.raises(OffsetNotAvailable):
            await log.latest()

        replica = ValkeyServer(["--replicaof", f"127.0.0.1 {server.port}"])
        try:
            async with asyncio.timeout(40):
                while not log.high_watermark_known:
                    await asyncio.sleep(0.02)
                assert (await log.latest()).high_watermark == 100
                while await _stored(store) < 100:
                    await asyncio.sleep(0.02)
        finally:
            replica.stop()


async def test_load_proof_fails_nothing_stored_shows_nothing(promoted: tuple[ValkeyServer, Store]) -> None:
    _, store = promoted
    await store.command("HDEL", store.log_keys(*KEYS).meta, "high_watermark")
    async with broker(store.settings, durability="replicated:1", durability_timeout_ms=50) as logs:
        log = logs.partition(TOPIC, 0)
        assert (await log.ensure()).high_watermark == 0
        with pytest.raises(OffsetNotAvailable):
            await log.latest()


async def test_latest_after_appends_of_another_broker_waits_for_their_proof(
    primary: ValkeyServer, primary_store: Store
) -> None:
    replica = ValkeyServer(["--replicaof", f"127.0.0.1 {primary.port}"])
    try:
        await _attached(primary_store, 1)
        settings = primary_store.settings
        async with (
            broker(settings, durability="replicated:1") as one,
            broker(settings, durability="replicated:1") as two,
        ):
            theirs, ours = one.partition(TOPIC, 0), two.partition(TOPIC, 0)
            for end in range(1, 20):
                await ours.ensure()
                await append(theirs)
                assert (await ours.latest()).high_watermark == end
    finally:
        replica.stop()


async def test_fence_after_lost_tail_limits_the_stored_high_watermark(store: Store, settings: Settings) -> None:
    await given_log(store)
    keys = store.log_keys(*KEYS)
    async with broker(settings) as logs:
        await append(logs.partition(TOPIC, 0), count=10)
    await store.command("HSET", keys.meta, "high_watermark", 25)

    await store.run(
        FENCE_LOG, [keys.log, keys.meta, keys.archive], 1
    )  # the failover epoch that it is tied to: nothing was lost
    assert await _stored(store) == 25
    await store.command("HSET", keys.meta, "replid", "b" * 40)  # that of the server before
    await store.run(FENCE_LOG, [keys.log, keys.meta, keys.archive], 7)
    assert await _stored(store) == 10


async def test_fence_of_a_broker_that_has_not_observed_the_fail_over_hides_no_lost_tail(
    primary: ValkeyServer, primary_store: Store
) -> None:
    """As a command that Redis Cluster redirects to a promoted replica."""
    keys = primary_store.log_keys(*KEYS)
    replica = ValkeyServer(["--replicaof", f"127.0.0.1 {primary.port}"])
    promoted = Store(Settings(redis_url=replica.url, key_prefix=primary_store.settings.key_prefix))
    try:
        await _attached(primary_store, 1)
        async with broker(primary_store.settings) as logs:
            await append(logs.partition(TOPIC, 0), count=10)
        await primary_store.command("HSET", keys.meta, "high_watermark", 25)
        await primary_store.command("WAIT", 1, 10_000)
        with redis.Redis(port=replica.port) as client:
            client.execute_command("REPLICAOF", "NO", "ONE")
        await promoted.start()
        known = int(await promoted.command("HGET", keys.meta, "incarnation"))

        for failover_epoch in (known, known + 1):
            _, epochs, *_ = await promoted.run(FENCE_LOG, [keys.log, keys.meta, keys.archive], failover_epoch)
        assert epochs.decode().split()[-1] == f"{known}:10"
        assert await _stored(promoted) == 10
    finally:
        await promoted.close()
        replica.stop()


@pytest.mark.parametrize(
    ("proved", "failover_epoch", "stored"), [(9, 3, 9), (3, 3, 5), (9, 2, 5), (9, 4, 5), ("", "", 5)]
)
async def test_note_progress_stores_a_higher_proof_of_the_same_failover_epoch(
    store: Store, proved: int, failover_epoch: int, stored: int
) -> None:
    await given_log(store)
    keys = store.log_keys(*KEYS)
    await store.command("HSET", keys.meta, "incarnation", 3, "high_watermark", 5)
    await store.run(NOTE_PROGRESS, [keys.meta, keys.times], 0, 0, "", -1, proved, failover_epoch)
    assert await _stored(store) == stored


async def test_memory_stores_no_high_watermark(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        await append(logs.partition(TOPIC, 0))
    assert await _stored(store) == 0
