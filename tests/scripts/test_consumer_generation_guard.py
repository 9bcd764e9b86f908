"""Redis comes back without its last writes on a KIP-848 group: nobody keeps partitions of a lost reconciliation."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest

from tests.scripts.test_classic_generation_guard import fail_over, saved
from tests.support.consumers import NO_NEWS, ConsumerWorld, Peer
from tidegate.groups.generation_guard import SKIP, GenerationGuard, bump_all_generations
from tidegate.groups.group_changes import unsubscribe_group_changes

FENCED = "FENCED_MEMBER_EPOCH"

pytestmark = pytest.mark.one_server


@pytest.fixture
async def guards(consumers: ConsumerWorld) -> AsyncIterator[list[GenerationGuard]]:
    """The generation guard of each broker."""
    guards = []
    for broker in consumers.brokers:
        guard = GenerationGuard(broker.store)
        broker.consumers.groups.on_stored.append(guard.apply_write)
        await guard.start()
        guards.append(guard)
    yield guards
    for guard in guards:
        await guard.close()


async def handing_over(consumers: ConsumerWorld, *newcomers: str) -> tuple[Peer, list[Peer]]:
    """A member of `t6` that gave up partitions, and newcomers that wait for theirs."""
    a = consumers.peer("a", "t6")
    await consumers.joined(a)
    others = [consumers.peer(name, "t6") for name in newcomers]
    for other in others:
        await other.join()
    await consumers.advance(1_000)
    for peer in (others[0], a, a):
        await peer.own()
    assert (await consumers.state())[0] == "Reconciling"
    return a, others


async def rejoin(consumers: ConsumerWorld, *peers: Peer) -> None:
    """All give up what they have and join again, as clients do when their epoch is fenced."""
    for peer in peers:
        assert await peer.heartbeat() == FENCED, peer
        assert not isinstance(await peer.join(), str)
    await consumers.advance(1_000)
    await consumers.reconcile(*peers)
    owned = [partition for peer in peers for partition in peer.assigned]
    assert len(owned) == len(set(owned)) == 6


@pytest.mark.usefixtures("guards")
async def test_owner_of_a_lost_reconciliation_is_fenced(consumers: ConsumerWorld) -> None:
    a, [b] = await handing_over(consumers, "b")
    kept, epoch = await saved(consumers.store), b.epoch
    assert (await b.own())[0] == epoch
    assert b.assigned

    await fail_over(consumers, kept)

    assert await consumers.state() == ("Assigning", epoch + SKIP + 1, epoch)
    await rejoin(consumers, a, b)


@pytest.mark.usefixtures("guards")
async def test_lost_reconciliation_of_an_unfinished_round_is_known_to_every_broker(consumers: ConsumerWorld) -> None:
    a, [b, c] = await handing_over(consumers, "b", "c")
    kept, writer = await saved(consumers.store), consumers.brokers[1]
    consumers._next = itertools.cycle([writer])
    await b.own()
    assert b.assigned
    await writer.store.close()
    consumers.brokers.remove(writer)
    consumers._next = itertools.cycle(consumers.brokers)

    await fail_over(consumers, kept)

    await rejoin(consumers, a, b, c)


async def test_write_without_a_message_is_known_to_its_broker(
    consumers: ConsumerWorld, guards: list[GenerationGuard]
) -> None:
    a, [b] = await handing_over(consumers, "b")
    for guard in guards:
        unsubscribe_group_changes(guard._store, guard._on_group_change)
    kept = await saved(consumers.store)
    consumers._next = itertools.cycle(consumers.brokers[:1])  # others may connect before it reports what it wrote
    await b.own()

    await fail_over(consumers, kept)

    await rejoin(consumers, a, b)


@pytest.mark.usefixtures("guards")
async def test_no_lost_write_changes_nothing(consumers: ConsumerWorld) -> None:
    a, b = await consumers.joined(consumers.peer("a", "t6"), consumers.peer("b", "t6"))
    before = await consumers.state()

    await fail_over(consumers, await saved(consumers.store))

    assert await consumers.state() == before
    assert [await a.heartbeat(), await b.heartbeat()] == [(before[1], NO_NEWS)] * 2


@pytest.mark.usefixtures("guards")
async def test_static_member_that_is_away_returns_to_its_partitions(consumers: ConsumerWorld) -> None:
    a, b = consumers.peer("a", "t6", instance_id="a"), consumers.peer("b", "t6")
    await consumers.joined(a, b)
    had = consumers.topics.text(a.assigned)
    await a.leave(-2)
    kept = await saved(consumers.store)
    await b.ask(b.epoch, rebalance_timeout_ms=1_000)

    await fail_over(consumers, kept)

    epoch = (await consumers.state())[1]
    assert await b.heartbeat() == FENCED
    assert await a.join() == (epoch, had)


@pytest.mark.usefixtures("guards")
async def test_empty_group_continues_above_its_lost_epochs(consumers: ConsumerWorld) -> None:
    [a] = await consumers.joined(consumers.peer("a", "t6"))
    await a.leave()
    kept = await saved(consumers.store)
    await a.join()
    lost = a.epoch

    await fail_over(consumers, kept)

    state, epoch, target_epoch = await consumers.state()
    assert (state, epoch) == ("Empty", target_epoch)
    assert epoch > lost
    assert await a.heartbeat() == "UNKNOWN_MEMBER_ID"


async def test_all_brokers_new_fences_the_members_once(consumers: ConsumerWorld) -> None:
    a, b = await consumers.joined(consumers.peer("a", "t6"), consumers.peer("b", "t6"))
    await consumers.store.command("HSET", consumers.store.cluster_keys.info, "groups_incarnation", 6)

    assert [await bump_all_generations(broker.store, 7) for broker in consumers.brokers] == [1, 0, 0]

    await rejoin(consumers, a, b)
