"""log/assign_failover_epoch: no number is given for two histories of a server."""

from __future__ import annotations

import asyncio

import redis

from tests.support.clock import SteppedClock
from tests.support.valkey import ValkeyServer
from tidegate.log.failover_epoch import ASSIGN_FAILOVER_EPOCH, FailoverEpochs
from tidegate.settings import Settings
from tidegate.store.store import Store

INT32_MAX = (1 << 31) - 1


async def assign(store: Store, replid: str, floor: int = 0) -> int:
    """The number that a broker is given which sees one primary."""
    keys = store.cluster_keys
    (number,) = await store.run(ASSIGN_FAILOVER_EPOCH, [keys.info, keys.replids], floor, replid)
    return int(number)


async def test_assign_second_crash_forgets_the_first_number_is_not_given_again(
    clock: SteppedClock, clock_store: Store
) -> None:
    store, keys = clock_store, clock_store.cluster_keys
    assert await assign(store, "a" * 40) == 1
    fsynced = [await store.command("DUMP", key) for key in (keys.info, keys.replids)]
    await clock.advance(5_000)
    lost = await assign(store, "b" * 40)
    # The server crashes before that is on disk, and no broker lives that remembers it.
    for key, dump in zip((keys.info, keys.replids), fsynced, strict=True):
        await store.command("RESTORE", key, 0, dump, "REPLACE")
    await clock.advance(1_000)

    again = await assign(store, "c" * 40)

    assert 1 < lost < again < INT32_MAX


async def test_assign_same_primary_keeps_its_number(clock: SteppedClock, clock_store: Store) -> None:
    await assign(clock_store, "a" * 40)
    number = await assign(clock_store, "b" * 40)
    await clock.advance(60_000)

    assert await assign(clock_store, "b" * 40) == number


async def test_assign_clock_behind_still_grows(clock: SteppedClock, clock_store: Store) -> None:
    await assign(clock_store, "a" * 40)
    number = await assign(clock_store, "b" * 40)
    await clock.advance(-60_000)

    assert await assign(clock_store, "c" * 40) == number + 1
    assert await assign(clock_store, "d" * 40, number + 10) == number + 11


async def test_epochs_right_to_info_is_lost_connections_stay() -> None:
    server = ValkeyServer()
    with redis.Redis(port=server.port) as operator:
        operator.acl_setuser("broker", enabled=True, nopass=True, keys=["*"], channels=["*"], categories=["+@all"])
        store = Store(Settings(redis_url=f"redis://broker:any@127.0.0.1:{server.port}/0"))
        lost = asyncio.Event()
        epochs = FailoverEpochs(store, lambda _: lost.set())
        try:
            await store.start()
            epochs.start()
            await epochs.ready()
            before = [lane.failover_epoch for lane in store.metadata_node.lanes]

            operator.execute_command("ACL", "SETUSER", "broker", "-info")
            await asyncio.wait_for(lost.wait(), 30)
            await asyncio.sleep(0.5)  # some more requests

            assert store.available
            assert [lane.failover_epoch for lane in store.metadata_node.lanes] == before
        finally:
            epochs.close()
            await store.close()
            server.stop()
