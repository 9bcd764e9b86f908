"""Redis's clock steps, or every broker was away: nobody is removed for it, and nobody stays for it (promise P5)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tests.support.clock import SteppedClock
from tests.support.consumers import ConsumerWorld
from tests.support.groups import World
from tests.support.transactions import NONE, Brokers, Producer, brokers_of
from tidegate.cluster.deadlines import HOLD_MS, TAKE_DUE, Due
from tidegate.errors import StoreUnavailable
from tidegate.groups import configs, expiry
from tidegate.groups.configs import ASSIGNMENT_INTERVAL
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.transactions.completion import Completion
from tidegate.transactions.listing import list_transactions
from tidegate.transactions.model import State
from tidegate.transactions.sweep import TransactionSweep


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


async def test_sweep_clock_stepped_back_reply_is_lost_silent_member_is_removed(world: World) -> None:
    """Redis stood still, its clock stepped, and it executed a sweep that its broker had given up."""
    await given_swept(world)
    await world.clock.advance(-120_000)
    await world.store.run(TAKE_DUE, [world.keys.shard_keys.deadlines], 0, HOLD_MS, 200, 1)
    await pass_time(world, HOLD_MS + 11_000, "a")

    assert len(await world.members()) == 1


async def test_sweep_clock_stepped_back_redis_is_lost_on_the_way_is_limited_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given_swept(world)
    await world.clock.advance(-120_000)

    async def lost(*_: object) -> int:
        raise StoreUnavailable("Redis is stopped")

    with monkeypatch.context() as meanwhile, pytest.raises(StoreUnavailable):
        meanwhile.setattr(expiry, "clamp_deadlines", lost)
        await sweep(world)
    await pass_time(world, HOLD_MS + 11_000, "a")

    assert len(await world.members()) == 1
    due = await world.store.command("ZRANGE", world.keys.shard_keys.deadlines, 0, -1)
    assert not [item for item in due if item.startswith(b"clock|")]


async def test_sweep_clock_stepped_back_assigned_member_id_that_is_not_used_blocks_no_join_phase(world: World) -> None:
    """Its client got MEMBER_ID_REQUIRED and died."""
    await given_swept(world)
    a, b = world.peers
    await world.peer("c").claim_id()
    await world.clock.advance(-120_000)
    await pass_time(world, 11_000, "a", "b")
    rejoins = [await a.start_join(), await b.start_join()]
    await world.observe()

    assert await world.state() == ("CompletingRebalance", 2)
    assert all(one.done() for one in rejoins)


async def test_sweep_clock_stepped_back_assigned_member_id_of_an_empty_group_expires(world: World) -> None:
    await world.peer("c").claim_id()
    world.sweeping = False
    await sweep(world)
    await world.clock.advance(-120_000)
    await pass_time(world, 11_000)

    assert await world.store.command("HLEN", world.keys.pending) == 0


async def test_sweep_clock_stepped_back_assigned_member_id_keeps_its_time(world: World) -> None:
    await given_swept(world)
    c = world.peer("c")
    await c.claim_id()
    await world.clock.advance(-120_000)
    await pass_time(world, 9_000, "a", "b")

    joining = await c.start_join()
    assert await world.state() == ("PreparingRebalance", 1)
    del joining


async def test_session_grace_clock_stepped_back_is_granted_again_in_time(world: World) -> None:
    await given_swept(world)
    shard = world.keys.shard_keys.shard
    assert await expiry.grant_session_grace(world.store, shard) == 2
    await world.clock.advance(-120_000)
    await pass_time(world, 29_000, "a", "b")
    assert await expiry.grant_session_grace(world.store, shard) == 0

    await pass_time(world, 2_000, "a", "b")
    assert await expiry.grant_session_grace(world.store, shard) == 2


async def given_faulty(world: World, kind: str = "classic") -> GroupKeys:
    """A group of the same shard with a key of another type; its deadline is due, and its name is the first."""
    shard = world.keys.shard_keys.shard
    names = (world.store.group_keys("default", f"a{number}") for number in range(10_000))
    keys = next(one for one in names if one.shard_keys.shard == shard)
    index = [keys.ref, f"{kind} Stable consumer", b"\xff", b"\xff"]
    await world.store.command("HSET", keys.shard_keys.groups, *index)
    for key in (keys.group, keys.members, keys.sessions, keys.consumers, keys.consumer_sessions):
        await world.store.command("SET", key, "foreign")
    return keys


async def clock_items(world: World) -> list[bytes]:
    """The steps of Redis's clock that are not handled yet."""
    due = await world.store.command("ZRANGE", world.keys.shard_keys.deadlines, 0, -1)
    return [item for item in due if item.startswith(b"clock|")]


@pytest.mark.parametrize("kind", ["classic", "consumer"])
async def test_sweep_clock_stepped_back_faulty_group_delays_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(expiry, "_AT_ONCE", 1)
    await given_swept(world)
    await given_faulty(world, kind)
    await world.clock.advance(-120_000)
    await pass_time(world, 11_000, "a")

    assert len(await world.members()) == 1
    assert not await clock_items(world)


async def test_sweep_clock_step_that_cannot_be_handled_delays_no_deadline(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given_swept(world)
    await world.store.command("ZADD", world.keys.shard_keys.deadlines, 1, "clock|120000")
    handled = []

    async def lost(*_: object) -> int:
        raise StoreUnavailable("Redis is stopped")

    async def expire(due: list[Due]) -> None:
        handled.extend(due)

    await world.clock.advance(10_000)
    deadlines = world.brokers[0].expiry.deadlines
    monkeypatch.setattr(expiry, "clamp_deadlines", lost)
    monkeypatch.setattr(deadlines, "_on_due", expire)
    with pytest.raises(StoreUnavailable):
        await sweep(world)

    assert Due("session", world.keys.ref) in handled
    assert await clock_items(world) == [b"clock|120000"]


async def test_sweep_foreign_items_delay_no_deadline(world: World) -> None:
    await given_swept(world)
    deadlines = world.keys.shard_keys.deadlines
    foreign = ["no kind", "clock|no number", b"\xff|x"]
    for item in foreign:
        await world.store.command("ZADD", deadlines, 1, item)
    await pass_time(world, 12_000, "a")

    assert len(await world.members()) == 1
    left = await world.store.command("ZRANGE", deadlines, 0, -1)
    assert not {b"no kind", b"clock|no number", b"\xff|x"} & {*left}


async def test_session_grace_faulty_group_denies_it_to_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_AT_ONCE", 1)
    await given_swept(world)
    await given_faulty(world)

    assert await expiry.grant_session_grace(world.store, world.keys.shard_keys.shard) == 2


async def test_verified_index_faulty_group_stops_no_other(world: World) -> None:
    await given_swept(world)
    await given_faulty(world)
    keys = world.keys.shard_keys
    await world.store.command("DEL", keys.deadlines)
    await world.store.command("ZADD", keys.deadlines, 1, b"\xff|x")

    await expiry.verify_index(world.store, keys.shard)

    assert await world.store.command("ZSCORE", keys.deadlines, f"session|{world.keys.ref}")


async def sweep_consumers(consumers: ConsumerWorld) -> None:
    """One round of a broker's loop over the shard of the KIP-848 group."""
    await consumers.brokers[0].expiry.deadlines.poll(consumers.keys.shard_keys.shard, marks=True)


async def test_consumers_sweep_after_a_gap_members_have_a_whole_session(consumers: ConsumerWorld) -> None:
    """Redis's clock stepped forward, or every broker was away."""
    a, b = await consumers.joined(consumers.peer("a", "t4"), consumers.peer("b", "t4"))
    await sweep_consumers(consumers)
    await consumers.clock.advance(3_600_000)
    await sweep_consumers(consumers)

    for _ in range(40):
        await consumers.advance(1_000)
        await sweep_consumers(consumers)
    assert {*(await consumers.group()).members} == {a.member_id, b.member_id}

    for _ in range(10):
        await consumers.advance(1_000, [a])
        await sweep_consumers(consumers)
    assert {*(await consumers.group()).members} == {a.member_id}


async def test_consumers_clock_stepped_back_silent_member_is_removed_in_time(consumers: ConsumerWorld) -> None:
    a, _ = await consumers.joined(consumers.peer("a", "t4"), consumers.peer("b", "t4"))
    await sweep_consumers(consumers)
    await consumers.clock.advance(-3_600_000)
    await sweep_consumers(consumers)

    for _ in range(46):
        await consumers.advance(1_000, [a])
        await sweep_consumers(consumers)

    assert {*(await consumers.group()).members} == {a.member_id}


async def test_consumers_session_grace_clock_stepped_back_is_granted_again_in_time(consumers: ConsumerWorld) -> None:
    members = await consumers.joined(consumers.peer("a", "t4"), consumers.peer("b", "t4"))
    await sweep_consumers(consumers)
    shard = consumers.keys.shard_keys.shard
    assert await expiry.grant_session_grace(consumers.store, shard) == 2
    await consumers.clock.advance(-3_600_000)
    await sweep_consumers(consumers)
    for _ in range(150):  # three session timeouts, and more
        await consumers.advance(1_000, members)
        await sweep_consumers(consumers)

    assert await expiry.grant_session_grace(consumers.store, shard) == 2


async def test_consumers_clock_stepped_back_revocation_times_out(consumers: ConsumerWorld) -> None:
    a, b = consumers.peer("a", "t4", rebalance_timeout_ms=1_500), consumers.peer("b", "t4")
    await a.join()
    await b.join()
    assert await a.heartbeat() == (2, "t4:0,1")
    await sweep_consumers(consumers)
    await consumers.clock.advance(-3_600_000)
    await sweep_consumers(consumers)

    await consumers.advance(1_600, [b])

    assert {*(await consumers.group()).members} == {b.member_id}


async def test_consumers_clock_stepped_back_next_target_is_computed(consumers: ConsumerWorld) -> None:
    await configs.alter(consumers.store, consumers.keys, {ASSIGNMENT_INTERVAL: "1000"}, [])
    a, b = consumers.peer("a", "t4"), consumers.peer("b", "t4")
    await a.join()
    await consumers.clock.advance(-3_600_000)

    assert await b.join() == (3, "")
    assert await a.heartbeat() == (2, "t4:0,1")


async def test_sweep_after_a_gap_then_clock_stepped_back_silent_member_is_removed_in_time(world: World) -> None:
    await given_swept(world)
    await world.clock.advance(5_000)
    await sweep(world)
    await world.clock.advance(-3_600_000)
    await pass_time(world, 22_000, "a")

    assert len(await world.members()) == 1


# -- transactions


@dataclass
class Transactions:
    """One broker with the topic `t`, its sweep, and a producer with an open transaction; time-outs after 60 s."""

    brokers: Brokers
    clock: SteppedClock
    producer: Producer
    sweeping: TransactionSweep

    async def pass_time(self, ms: int) -> None:
        """Time goes by while the broker sweeps."""
        for _ in range(0, ms, 1_000):
            await self.clock.advance(1_000)
            await self.sweep()

    async def sweep(self) -> None:
        """One sweep, and what it began."""
        await self.sweeping.sweep()
        await self.brokers.all[0].context.transactions.tasks.wait()

    async def state(self) -> State:
        """The state of the transactional id."""
        records = self.brokers.all[0].context.transactions.records
        one = await records.read(records.keys("default", "T"))
        assert one is not None
        return one.state


@pytest.fixture
async def transactions(clock: SteppedClock, settings: Settings) -> AsyncIterator[Transactions]:
    """An open transaction, and a broker that sweeps."""
    async with brokers_of(settings, 1) as opened:
        await opened.create("t")
        producer = await opened.producer().init()
        await producer.write("t")
        context = opened.all[0].context
        sweeping = TransactionSweep(opened.all[0].store, context.transactions, lambda shard: True)
        world = Transactions(opened, clock, producer, sweeping)
        await world.sweep()
        yield world
        await sweeping.close()


async def test_transactions_clock_stepped_back_decided_one_is_completed_at_once(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker died before it wrote the markers."""
    with monkeypatch.context() as patched:
        patched.setattr(Completion, "complete", _dies)
        await transactions.producer.end(True)
    await transactions.clock.advance(-600_000)
    await transactions.sweep()

    assert await transactions.state() is State.COMPLETE_COMMIT
    assert (await transactions.brokers.fetch("t", committed=True, end=2)).last_stable_offset == 2


async def _dies(*_: object, **__: object) -> None:
    """A broker that dies before it completes."""


async def test_transactions_clock_stepped_back_open_one_times_out(transactions: Transactions) -> None:
    await transactions.clock.advance(-600_000)
    await transactions.pass_time(59_000)
    assert await transactions.state() is State.ONGOING
    [listed] = await list_transactions(transactions.brokers.all[0].store, "default", range(50))
    assert (listed.state, listed.start_ms) == ("Ongoing", transactions.clock.now_ms - 58_000)

    await transactions.pass_time(4_000)
    assert await transactions.state() is State.COMPLETE_ABORT


@pytest.mark.parametrize("step_ms", [900_000, 45_000])
async def test_transactions_sweep_after_a_gap_open_one_has_a_whole_timeout(
    transactions: Transactions, step_ms: int
) -> None:
    """Redis's clock stepped forward, or every broker was away."""
    await transactions.pass_time(30_000)
    await transactions.clock.advance(step_ms)
    await transactions.pass_time(59_000)
    assert await transactions.state() is State.ONGOING
    await transactions.producer.write("t")

    await transactions.pass_time(3_000)
    assert await transactions.state() is State.COMPLETE_ABORT


async def test_transactions_sweep_in_time_open_one_times_out(transactions: Transactions) -> None:
    await transactions.pass_time(54_000)
    await transactions.clock.advance(5_000)  # as late as a broker that is not preferred
    assert await transactions.state() is State.ONGOING

    await transactions.pass_time(3_000)
    assert await transactions.state() is State.COMPLETE_ABORT
    assert await transactions.producer.add(("t", 0)) != [NONE]


async def test_transactions_sweep_after_a_gap_then_clock_stepped_back_open_one_times_out(
    transactions: Transactions,
) -> None:
    await transactions.clock.advance(60_000)
    await transactions.sweep()
    await transactions.clock.advance(-3_600_000)
    await transactions.pass_time(63_000)

    assert await transactions.state() is State.COMPLETE_ABORT
