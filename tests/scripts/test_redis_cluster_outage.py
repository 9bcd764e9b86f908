"""Redis Cluster while one primary is away: what it means for the groups and logs at the others; with real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.scripts.test_redis_cluster import MOVING, group_at, port_of, topic, until
from tests.scripts.test_redis_cluster_lost import stand_still
from tests.support.handlers import given_group
from tests.support.logs import append, batch, broker, given_log
from tests.support.redis_cluster import Sharded
from tidegate.errors import StoreUnavailable
from tidegate.groups.expiry import expire_group
from tidegate.settings import Settings
from tidegate.store.keys import ClusterKeys, GroupKeys
from tidegate.store.store import Store

OVERDUE_MS = 1_000


@pytest.fixture
async def own() -> AsyncIterator[tuple[Sharded, Store]]:
    """Three primaries without replicas, of which the tests kill one."""
    with Sharded(replicas=0) as servers:
        store = Store(Settings(redis_url=servers.url))
        await store.start()
        yield servers, store
        await store.close()


def healthy_and_other(sharded: Sharded) -> tuple[Any, Any]:
    """A primary that stays, and one that is killed; the latter without the keys of `{cluster}`."""
    other = next(one for one in sharded.servers if one is not sharded.owner(ClusterKeys("tidegate").info))
    return next(one for one in sharded.servers if one is not other), other


async def kill(store: Store, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any absence counts from now on, and this server is away."""
    monkeypatch.setattr("tidegate.store.redis_outage._SHORT_S", -1.0)
    server.kill()
    await until(lambda: any(not node.control.connected for node in store.nodes))


async def members(store: Store, keys: GroupKeys) -> int:
    return int(await store.command("HLEN", keys.members))


async def test_expire_group_another_node_away_removes_the_overdue_member(
    own: tuple[Sharded, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    sharded, store = own
    healthy, other = healthy_and_other(sharded)
    keys = group_at(store, sharded, healthy)
    await given_group(store, keys, deadline=OVERDUE_MS)
    await kill(store, other, monkeypatch)

    await expire_group(store, keys)

    assert await members(store, keys) == 0


async def test_expire_group_another_node_away_ends_the_overdue_join_phase(
    own: tuple[Sharded, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    sharded, store = own
    healthy, other = healthy_and_other(sharded)
    keys = group_at(store, sharded, healthy)
    phase: dict[str, Any] = {"prev_state": "Stable", "round": 2, "join_deadline": OVERDUE_MS}
    await given_group(store, keys, state="PreparingRebalance", members=("m-1", "m-2"), **phase)
    await store.command("DEL", keys.protocols)  # the script counts them
    await kill(store, other, monkeypatch)

    await expire_group(store, keys)

    assert await store.command("HGET", keys.group, "join_deadline") == b"0"


async def test_append_another_node_away_accepts_a_producer_that_continues(
    own: tuple[Sharded, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    sharded, store = own
    healthy, other = healthy_and_other(sharded)
    at_healthy: Any = topic(sharded, healthy)
    await given_log(store, at_healthy)
    async with broker(store.settings) as logs:
        log = logs.partition(at_healthy, 0)
        await append(log)
        await kill(logs.store, other, monkeypatch)

        assert (await append(log, batch(producer_id=7, epoch=0, sequence=5))).base_offset == 1


async def test_append_after_the_node_of_the_topics_was_away_waits_for_batches_before_it(
    own: tuple[Sharded, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches before it may have been refused because their topic was not found."""
    monkeypatch.setattr("tidegate.store.redis_outage._RETURN_S", 60.0)
    sharded, store = own
    _, without_topics = healthy_and_other(sharded)
    elsewhere: Any = topic(sharded, without_topics)
    await given_log(store, elsewhere)
    async with broker(store.settings) as logs:
        log = logs.partition(elsewhere, 0)
        await append(log)
        logs.store.metadata_node.outage.observe_wait(2.0)

        with pytest.raises(StoreUnavailable):
            await append(log, batch(producer_id=7, epoch=0, sequence=5))


@pytest.mark.parametrize("hangs", [False, True], ids=["killed", "hangs"])
async def test_node_that_takes_over_has_the_outage_of_the_one_before_it(
    monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """A server that hangs is replaced before its command times out: its connections are intact."""
    monkeypatch.setattr("tidegate.store.redis_outage._RETURN_S", 60.0)
    with Sharded(timeout_ms=4_000) as sharded:
        store = Store(Settings(redis_url=sharded.url, redis_command_timeout_ms=60_000 if hangs else 5_000))
        await store.start()
        try:
            before = sharded.owner(MOVING)
            others = [node for node in store.nodes if node is not store.node(MOVING)]
            if hangs:
                stand_still(before)
            else:
                before.kill()
            await until(lambda: port_of(store, MOVING) != before.port)

            await until(lambda: store.node(MOVING).control.connected)
            assert store.node(MOVING).outage.recently_recovered
            assert not any(node.outage.recently_recovered for node in others)
        finally:
            if hangs:
                stand_still(before, still=False)
            await store.close()
