"""Redis Cluster where a fail-over loses writes: nothing that is gone is acknowledged, and no generation comes twice."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from tests.scripts.test_redis_cluster import ANOTHER, MOVING, count_both, topic, until
from tests.support.logs import append_later, batch, broker, given_log, read_all
from tests.support.redis_cluster import Sharded
from tests.support.valkey import ValkeyServer
from tidegate.errors import StoreUnavailable
from tidegate.groups.classic import read_members
from tidegate.groups.commits import Commit
from tidegate.groups.generation_guard import BUMP_GENERATION, GenerationGuard
from tidegate.groups.offsets import Offsets
from tidegate.log.append import Appended
from tidegate.settings import Settings
from tidegate.store.slots import key_slot
from tidegate.store.store import Store


def stand_still(server: ValkeyServer, still: bool = True) -> None:
    """As a virtual machine that is moved: what is sent to it waits in its sockets, and is done when it continues."""
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP if still else signal.SIGCONT)


async def test_write_of_a_replaced_primary_is_not_acknowledged() -> None:
    with Sharded(timeout_ms=2_000) as own:
        store = Store(Settings(redis_url=own.url, redis_command_timeout_ms=20_000))
        await store.start()
        try:
            old = own.servers[1]
            one: Any = topic(own, old)
            await given_log(store, one)
            async with broker(store.settings) as logs:
                log = logs.partition(one, 0)
                before = log.lanes.node
                assert (await append_later(log, batch())).base_offset == 0
                await asyncio.to_thread(own.in_sync)
                stand_still(old)
                late = append_later(log, batch(producer_id=7, epoch=0, sequence=0, value=b"late"))
                await until(lambda: log.lanes.node is not before)
                stand_still(old, still=False)

                (outcome,) = await asyncio.gather(late, return_exceptions=True)

                await store.wait_up(log.keys.log)
                await until(lambda: (logs.failover_epochs.number_at(log.lanes.node) or 0) > 1)
                held = [found.producer_id for found in await read_all(log)]
                if isinstance(outcome, Appended):
                    assert held[outcome.base_offset :] == [7], "it was acknowledged"
                else:
                    assert isinstance(outcome, StoreUnavailable)
                again = await append_later(log, batch(producer_id=7, epoch=0, sequence=0, value=b"late"))
                assert again.base_offset == 1 and again.leader_epoch > 0
        finally:
            await store.close()


async def test_reply_of_a_replaced_primary_is_discarded() -> None:
    with Sharded(timeout_ms=2_000) as own:
        store = Store(Settings(redis_url=own.url, redis_command_timeout_ms=20_000))
        await store.start()
        try:
            assert await count_both(store) == [1, 1]
            await asyncio.to_thread(own.in_sync)
            old, before = own.owner(MOVING), store.node(MOVING)
            stand_still(old)
            asked = [
                asyncio.create_task(coroutine)
                for coroutine in (count_both(store), store.command("INCR", MOVING), store.read("GET", ANOTHER))
            ]
            await until(lambda: store.node(MOVING) is not before)
            stand_still(old, still=False)

            reported = await asyncio.gather(*asked, return_exceptions=True)

            assert all(isinstance(one, StoreUnavailable) for one in reported), reported
            await store.wait_up(MOVING)
            assert await count_both(store) == [2, 2]
        finally:
            await store.close()


async def test_groups_are_raised_at_a_node_that_was_connected_before_it_had_them() -> None:
    with Sharded(primaries=2, replicas=0) as own:
        store = Store(Settings(redis_url=own.url))
        await store.start()
        generation_guard = GenerationGuard(store)
        try:
            await generation_guard.start()
            keys = store.group_keys("default", "orders")
            generation_guard._on_group_change(f"{keys.ref}:5:Stable:1".encode())
            slot = key_slot(keys.group)
            new_node = next(node for node in store.nodes if node is not store.node(keys.group))
            sent: list[Any] = []
            send = new_node.control.send

            def noted(args: Any, *rest: Any) -> None:
                sent.append(args[1])
                send(args, *rest)

            new_node.control.send = noted  # type: ignore[method-assign]
            target = next(server for server in own.servers if server is not own.owner_of(slot))
            await asyncio.to_thread(own.move, slot, target)
            await store.command("HGET", keys.group, "generation")

            assert [one for one in sent if one in (BUMP_GENERATION.sha, keys.group)] == [
                BUMP_GENERATION.sha, keys.group,
            ]  # fmt: skip
        finally:
            await generation_guard.close()
            await store.close()


async def test_group_that_changes_while_its_keys_move_is_not_read_half_and_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidegate.store.redirected.PAUSE_S", 1.0)
    with Sharded(primaries=2, replicas=0) as own:
        store = Store(Settings(redis_url=own.url))
        await store.start()
        try:
            keys = store.group_keys("default", "orders")
            await store.command("HSET", keys.group, "generation", 1, "state", "Stable", "version", 1)
            await store.command("HSET", keys.members, "old", "{}")
            target = await asyncio.to_thread(own.add)  # this broker knows it by the redirect only, and has to connect
            slot = key_slot(keys.group)
            source = own.begin_move(slot, target)
            own.move_keys(source, target, [keys.members])

            reading = asyncio.create_task(read_members(store, keys, 1, "range"))
            await until(lambda: len(store.nodes) == 3)
            own.move_keys(source, target, [keys.group])
            own.end_move(slot, source, target)
            with own.client(target) as client:
                client.hset(keys.group, mapping={"generation": 2, "version": 2})
                client.hset(keys.members, "new", "{}")

            assert await reading is None, "generation 1 never had the new member"
            assert [one.member_id for one in await read_members(store, keys, 2, "range") or ()] == ["old", "new"]
        finally:
            await store.close()


async def test_commit_before_topics_are_listed_is_not_stored_for_them() -> None:
    """The catalog is at the metadata node, which may answer later than the group's."""
    with Sharded(primaries=2, replicas=0) as own:
        store = Store(Settings(redis_url=own.url))
        await store.start()
        try:
            offsets = Offsets(store)
            names = (store.group_keys("default", f"orders-{number}") for number in range(100))
            keys = next(one for one in names if store.node(one.group) is not store.metadata_node)
            question, codes = offsets.next_question, []
            metadata_node = own.owner("{cluster}")
            stand_still(metadata_node)
            offsets.commit(keys, Commit(-1, "", None, [], -1, "", ""), codes.append)
            await until(lambda: bool(codes))

            assert codes == [0]
            assert not offsets.topics_were(0, question)
            stand_still(metadata_node, still=False)
            await until(lambda: offsets.topics_were(0, question))
        finally:
            await store.close()
