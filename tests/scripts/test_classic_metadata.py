"""What the members of one group may hand in together: the leader is sent all of it, and Redis keeps it."""

from __future__ import annotations

import pytest

from tests.support.groups import World, answer, refused
from tidegate.errors import GroupMaxSizeReached, InvalidRequest, KafkaError
from tidegate.groups.classic import ASSIGNMENTS_BYTES_MAX, MEMBER_METADATA_BYTES_MAX, PROTOCOLS_MAX

LARGE = (("range", bytes(MEMBER_METADATA_BYTES_MAX - 100)),)
MEMBERS_OF_LARGE = 8


async def counted(world: World) -> int:
    return int(await world.store.command("HGET", world.keys.protocols, "metadata_bytes:large") or 0)


async def test_join_more_metadata_than_a_member_may_have_is_invalid(world: World) -> None:
    too_large = (("range", bytes(MEMBER_METADATA_BYTES_MAX)),)

    assert await refused(world.peer("a").ask_join(protocols=too_large), InvalidRequest) == ""
    assert await world.members() == set()


async def test_join_more_protocols_than_a_member_may_have_is_invalid(world: World) -> None:
    a, names = world.peer("a"), [(f"p{n}", b"") for n in range(PROTOCOLS_MAX + 1)]

    assert await refused(a.ask_join(protocols=names), InvalidRequest) == ""
    await a.claim_id()
    join = await a.parked(a.ask_join(protocols=names[:-1]))
    await world.advance(6_000)
    assert (await answer(join)).protocol == "p0"


async def test_join_more_metadata_than_a_group_may_have_is_full(world: World) -> None:
    peers = [world.peer(f"{n}") for n in range(MEMBERS_OF_LARGE)]
    for peer in peers:
        await peer.claim_id()
    joins = [await peer.parked(peer.ask_join(protocols=LARGE)) for peer in peers]
    one_more, small = world.peer("large"), world.peer("small")

    assert await refused(one_more.ask_join(protocols=LARGE), GroupMaxSizeReached) == ""
    await small.claim_id()
    joins.append(await small.start_join())
    await world.advance(6_000)

    assert {(await answer(join)).generation for join in joins} == {1}
    assert 0 < await counted(world) <= 8 << 20


async def test_join_long_names_count_for_what_a_group_may_have(world: World) -> None:
    """Kafka takes ids of 32,767 bytes; the leader is sent the ids of all members, with small metadata too."""
    static, ordinary = world.peer("a", instance_id="i" * 32_000), world.peer("b")
    await static.start_join()
    assert await counted(world) > 32_000
    await ordinary.claim_id()
    await ordinary.start_join()
    before = await counted(world)

    await static.leave()

    assert before > 32_000
    assert await counted(world) == 0


async def test_join_metadata_of_a_member_that_left_or_shrank_is_no_longer_counted(world: World) -> None:
    a, b = world.peer("a"), world.peer("b")
    for peer in (a, b):
        await peer.claim_id()
    joins = [await peer.parked(peer.ask_join(protocols=LARGE)) for peer in (a, b)]
    assert await counted(world) > 2 * (MEMBER_METADATA_BYTES_MAX - 200)
    await world.advance(6_000)
    for join in joins:
        await answer(join)

    await b.leave()
    rejoined = await answer(await a.parked(a.ask_join(protocols=(("range", b"small"),))))

    assert rejoined.generation == 2
    assert await counted(world) == 0


@pytest.mark.parametrize("is_assigned", [True, False])
async def test_join_with_too_much_metadata_of_a_member_starts_a_rebalance(world: World, is_assigned: bool) -> None:
    peers = [world.peer("small"), *(world.peer(f"{n}", protocols=LARGE) for n in range(MEMBERS_OF_LARGE))]
    for peer in peers:
        await peer.claim_id()
    joins = [await peer.start_join() for peer in peers]
    await world.advance(6_000)
    for join in joins:
        await answer(join)
    if is_assigned:
        await world.sync_all(*peers)

    assert await refused(peers[0].ask_join(protocols=LARGE), GroupMaxSizeReached) == ""

    assert (await world.state())[0] == "PreparingRebalance"


async def test_sync_assignments_above_the_cap_are_refused(world: World) -> None:
    (one,) = await world.stable("one")
    await one.join()
    with pytest.raises(KafkaError, match="assignments have more than"):
        await one.sync({one.member_id: bytes(ASSIGNMENTS_BYTES_MAX + 1)})
    assert (await one.sync({one.member_id: b"mine"})).assignment == b"mine"
