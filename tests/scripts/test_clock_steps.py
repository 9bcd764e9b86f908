"""Redis's clock steps, or every broker was away: nobody is removed for it, and nobody stays for it (promise P5)."""

from __future__ import annotations

from tests.support.groups import World


async def sweep(world: World) -> None:
    """One round of a broker's loop over the group's shard."""
    await world.brokers[0].expiry.deadlines.poll(world.keys.shard_keys.shard, marks=True)


async def pass_time(world: World, ms: int, *beating: str) -> None:
    """Time goes by while brokers sweep; members heartbeat whose names are given."""
    for _ in range(0, ms, 1_000):
        await world.clock.advance(1_000)
        for peer in world.peers:
            if peer.name in beating:
                await peer.heartbeat()
        await sweep(world)


async def given_swept(world: World) -> None:
    """A Stable group of two, and a broker that sweeps."""
    await world.stable("a", "b")
    world.sweeping = False
    await sweep(world)


async def test_sweep_after_a_gap_members_have_a_whole_session(world: World) -> None:
    await given_swept(world)
    await world.clock.advance(3_600_000)
    await sweep(world)
    await pass_time(world, 9_000)

    assert await world.state() == ("Stable", 1)
    assert len(await world.members()) == 2


async def test_sweep_after_a_gap_silent_member_is_removed_in_time(world: World) -> None:
    await given_swept(world)
    await world.clock.advance(3_600_000)
    await sweep(world)
    await pass_time(world, 10_000, "a")

    assert len(await world.members()) == 1


async def test_heartbeat_clock_stepped_forward_no_sweep_yet_keeps_all(world: World) -> None:
    await given_swept(world)
    a, b = world.peers
    await world.clock.advance(30_000)

    assert await a.heartbeat() == 0
    assert await b.heartbeat() == 0
    assert await world.state() == ("Stable", 1)


async def test_join_phase_clock_stepped_forward_waits_for_missing_members(world: World) -> None:
    await given_swept(world)
    a, b = world.peers
    joining = await a.start_join()
    rejoining = await world.peer("c").start_join()
    await sweep(world)
    await world.clock.advance(3_600_000)
    await sweep(world)
    assert await world.state() == ("PreparingRebalance", 1)

    await b.start_join()
    assert b.member_id in await world.members()
    del joining, rejoining


async def test_sweep_clock_stepped_back_silent_member_is_removed_in_time(world: World) -> None:
    await given_swept(world)
    await world.clock.advance(-120_000)
    await pass_time(world, 11_000, "a")

    assert len(await world.members()) == 1
