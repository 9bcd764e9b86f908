"""Leases of node ids and the live set, with a clock that the test steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.support.clock import SteppedClock
from tidegate.cluster import broker_lease as broker_lease_module
from tidegate.cluster.broker_lease import SINGLE_NODE_ID, BrokerLease, State
from tidegate.cluster.drains import request_drain
from tidegate.errors import BrokerIdNotRegistered, CannotStart
from tidegate.settings import Settings
from tidegate.store.store import Store

GONE_MS, SUSPECT_MS, REUSE_MS = 10_000, 750, 60_000

Make = Callable[..., BrokerLease]


@pytest.fixture
async def brokers(clock: SteppedClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Makes brokers by port. They renew when the test says so; their monotonic clock steps as Redis's does."""
    monkeypatch.setattr(broker_lease_module, "perf_counter", lambda: clock.now_ms / 1000)
    made: list[BrokerLease] = []

    def make(port: int, state: State = "serving", **changes: Any) -> BrokerLease:
        settings = clock._store.settings.model_copy(update={"lease_renew_ms": 20, **changes})
        broker_lease = BrokerLease(clock._store, settings, {"PLAINTEXT": ("127.0.0.1", port)}, None, state)
        made.append(broker_lease)
        return broker_lease

    yield make
    for broker_lease in made:
        await broker_lease._loops.close()


async def start(*memberships: BrokerLease) -> None:
    """Start without the loop: the test renews."""
    for broker_lease in memberships:
        await broker_lease.start()
        await broker_lease._loops.close()


def ids(broker_lease: BrokerLease) -> list[int]:
    return [one.node_id for one in broker_lease.live()]


def named(broker_lease: BrokerLease) -> list[int]:
    return [one.node_id for one in broker_lease.preferred()]


async def pass_time(clock: SteppedClock, ms: int, *alive: BrokerLease) -> None:
    """Time goes by in steps of a renewal; those alive renew."""
    for _ in range(0, ms, 250):
        await clock.advance(250)
        for broker_lease in alive:
            await broker_lease.keep_once()


async def test_brokers_see_each_other(brokers: Make) -> None:
    one, two = brokers(9092), brokers(9093)
    await start(one, two)
    await one.renew()

    assert (one.node_id, two.node_id) == (1, 2)
    assert ids(one) == ids(two) == named(one) == [1, 2]
    assert one.live()[1].endpoint("PLAINTEXT") == ("127.0.0.1", 9093)
    assert one.cluster_id == two.cluster_id and len(one.cluster_id) == 22


async def test_two_brokers_race_for_an_id(clock: SteppedClock, brokers: Make, settings: Settings) -> None:
    other_store = Store(settings)
    await other_store.start()
    racing = [
        BrokerLease(store, settings, {"PLAINTEXT": ("h", port)}, None)
        for port in range(1, 21)
        for store in ((clock._store, other_store)[port % 2],)
    ]
    await asyncio.gather(*(broker_lease._take() for broker_lease in racing))
    await other_store.close()

    assert sorted(broker_lease.node_id for broker_lease in racing) == list(range(1, 21))


async def test_a_repeated_script_gives_the_same_id(brokers: Make) -> None:
    one = brokers(9092)
    await start(one)
    await one._take()
    await one._take()

    assert one.node_id == 1


async def test_nothing_changed_is_nothing_new(clock: SteppedClock, brokers: Make) -> None:
    one, two = brokers(9092), brokers(9093)
    await start(one, two)
    await one.renew()
    version = one.version
    await pass_time(clock, 2_000, one, two)

    assert one.version == version


async def test_a_silent_broker_is_suspect_then_gone(clock: SteppedClock, brokers: Make) -> None:
    one, two = brokers(9092), brokers(9093)
    await start(one, two)
    await pass_time(clock, SUSPECT_MS, one)
    assert named(one) == [1, 2]

    version = one.version
    await pass_time(clock, 250, one)
    assert (ids(one), named(one)) == ([1, 2], [1])
    assert one.live()[1].suspect and one.version > version

    await pass_time(clock, GONE_MS - SUSPECT_MS - 500, one)
    assert ids(one) == [1, 2]
    await pass_time(clock, 250, one)
    assert ids(one) == [1]


async def test_a_broker_that_comes_back_in_time_keeps_all(clock: SteppedClock, brokers: Make) -> None:
    one, two = brokers(9092), brokers(9093)
    await start(one, two)
    await pass_time(clock, 5_000, one)
    lost: list[int] = []
    two.on_lost.append(lambda: lost.append(1))
    await two.keep_once()
    await one.keep_once()

    assert not lost
    assert two.node_id == 2
    assert named(one) == [1, 2]


async def test_a_lost_lease_is_told_once_and_taken_anew(clock: SteppedClock, brokers: Make) -> None:
    one, two = brokers(9092), brokers(9093)
    await start(one, two)
    lost: list[bool] = []
    two.on_lost.append(lambda: lost.append(two.held))
    await pass_time(clock, GONE_MS + 250, one)
    await two.keep_once()
    await two.keep_once()
    await one.keep_once()

    assert lost == [False]
    assert two.held and two.node_id == 2
    assert ids(one) == [1, 2]


async def test_a_lost_id_that_another_has_by_now_is_not_taken_back(clock: SteppedClock, brokers: Make) -> None:
    one, two = brokers(9092), brokers(9093)
    await start(one, two)
    await pass_time(clock, GONE_MS + REUSE_MS + 250, one)
    three = brokers(9094)
    await start(three)
    await two.keep_once()

    assert (three.node_id, two.node_id) == (2, 3)


async def test_an_ended_id_rests_before_another_process_has_it(clock: SteppedClock, brokers: Make) -> None:
    one, two = brokers(9092), brokers(9093)
    await start(one, two)
    await one.close()
    await two.renew()
    assert ids(two) == [2]

    await pass_time(clock, REUSE_MS - 250, two)
    early = brokers(9094)
    await start(early)
    await pass_time(clock, 250, two, early)
    late = brokers(9095)
    await start(late)

    assert (early.node_id, late.node_id) == (3, 1)


async def test_a_restart_on_the_same_port_replaces_its_dead_predecessor_at_once(brokers: Make) -> None:
    killed, beside = brokers(9092), brokers(9093)
    await start(killed, beside)
    again = brokers(9092)
    await start(again)

    assert again.node_id == 3
    assert ids(again) == [2, 3]


async def test_who_falls_silent_is_told_of_once_and_who_drains_is_not(clock: SteppedClock, brokers: Make) -> None:
    one, two, three = brokers(9092), brokers(9093), brokers(9094)
    await start(one, two, three)
    silent: list[int] = []
    one.on_silent.append(lambda lost: silent.append(lost.node_id))
    await one.renew()
    await three.drain()
    await one.renew()
    await three.close()

    await pass_time(clock, SUSPECT_MS, one)
    assert silent == []
    await pass_time(clock, 250, one)
    assert silent == [2]
    assert named(one) == [1]
    await pass_time(clock, GONE_MS, one)
    assert silent == [2]


async def test_draining_is_seen_and_not_named(brokers: Make) -> None:
    one, two = brokers(9092), brokers(9093)
    await start(one, two)
    await one.drain()
    await two.renew()

    assert ids(two) == [1, 2]
    assert two.live()[0].state == "draining"
    assert named(two) == named(one) == [2]


async def test_when_all_drain_they_are_named_all_the_same(brokers: Make) -> None:
    one = brokers(9092)
    await start(one)
    await one.drain()

    assert named(one) == [1]


async def test_after_a_silence_of_all_nobody_is_suspect(clock: SteppedClock, brokers: Make) -> None:
    """Redis was away: the first broker back must not take the others for dead."""
    one, two = brokers(9092), brokers(9093)
    await start(one, two)
    await one.renew()
    await clock.advance(5_000)
    await one.keep_once()
    assert named(one) == [1, 2]

    await clock.advance(20_000)
    await one.keep_once()
    assert (ids(one), named(one)) == ([1, 2], [1, 2])

    one._lenient_until = 0.0
    await pass_time(clock, 250, one)
    assert ids(one) == [1]


async def test_a_store_that_lost_everything_is_opened_again_under_the_same_cluster_id(
    clock: SteppedClock, brokers: Make
) -> None:
    one = brokers(9092)
    await start(one)
    await clock._store.command("FLUSHALL")
    await clock.set()
    await one.keep_once()
    two = brokers(9093)
    await start(two)

    assert two.cluster_id == one.cluster_id
    assert one.held


async def test_a_fixed_id_is_taken_from_a_dead_process_when_its_lease_ended(clock: SteppedClock, brokers: Make) -> None:
    dead, two = brokers(9092, node_id=7), brokers(9093, node_id=7)
    await start(dead)
    starting = asyncio.create_task(two.start())
    await asyncio.sleep(0.1)
    assert not starting.done()
    await clock.advance(GONE_MS)
    await asyncio.wait_for(starting, 2)

    assert two.node_id == 7


async def test_a_fixed_id_of_a_live_process_is_refused(clock: SteppedClock, brokers: Make) -> None:
    live, two = brokers(9092, node_id=7), brokers(9093, node_id=7)
    await start(live)
    starting = asyncio.create_task(two.start())
    await asyncio.sleep(0.05)
    await pass_time(clock, 250, live)

    with pytest.raises(CannotStart, match="node id 7 is held by another live broker"):
        await asyncio.wait_for(starting, 2)


async def test_settings_that_place_data_must_be_the_clusters(brokers: Make) -> None:
    await start(brokers(9092))

    with pytest.raises(CannotStart, match=r"coordinator_shards=50, this broker has coordinator_shards=10") as refusal:
        await brokers(9093, coordinator_shards=10).start()
    assert "\n" not in str(refusal.value)


async def test_one_address_is_one_node_for_clients(brokers: Make) -> None:
    one, two = brokers(9092, address_mode="single"), brokers(9092, address_mode="single")
    await start(one, two)
    await one.renew()

    assert ids(one) == [1, 2]
    for broker_lease in (one, two):
        assert [(shown.node_id, shown.endpoint("PLAINTEXT")) for shown in broker_lease.shown("PLAINTEXT")] == [
            (SINGLE_NODE_ID, ("127.0.0.1", 9092))
        ]
        assert broker_lease.nameable("PLAINTEXT") == broker_lease.shown("PLAINTEXT")
        assert broker_lease.shown_node_id("PLAINTEXT") == SINGLE_NODE_ID


async def test_who_starts_is_not_named_and_is_told_of_when_it_serves(clock: SteppedClock, brokers: Make) -> None:
    one = brokers(9092)
    on_broker_joined: list[set[int]] = []
    one.on_broker_joined_listeners.append(on_broker_joined.append)
    await start(one)
    two, three = brokers(9093, state="starting"), brokers(9094, state="starting")
    await start(two, three)
    await pass_time(clock, 250, one, two, three)
    assert (ids(one), named(one), on_broker_joined) == ([1, 2, 3], [1], [])

    await two.serve()
    await pass_time(clock, 250, one)
    assert (named(one), on_broker_joined) == ([1, 2], [{2}])
    await three.serve()
    await pass_time(clock, 250, one)
    assert (named(one), on_broker_joined) == ([1, 2, 3], [{2}, {3}])


async def test_a_broker_that_was_only_suspect_has_not_come(clock: SteppedClock, brokers: Make) -> None:
    one, two = brokers(9092), brokers(9093)
    await start(one, two)
    await one.renew()
    on_broker_joined: list[set[int]] = []
    one.on_broker_joined_listeners.append(on_broker_joined.append)
    await pass_time(clock, 2 * SUSPECT_MS, one)
    assert named(one) == [1]
    await pass_time(clock, 250, one, two)
    await one.renew()

    assert (named(one), on_broker_joined) == ([1, 2], [])


async def test_a_drain_is_asked_of_one_process(clock: SteppedClock, brokers: Make) -> None:
    one, two = brokers(9092), brokers(9093)
    reported: list[int] = []
    for broker_lease in (one, two):
        broker_lease.on_drain_asked.append(lambda port=broker_lease: reported.append(port.node_id))  # type: ignore[misc]
    await start(one, two)
    await request_drain(clock._store, two.node_id)
    await request_drain(clock._store, two.node_id)
    await pass_time(clock, 250, one, two)

    assert reported == [two.node_id]

    successor = brokers(9093)
    await start(successor)
    await pass_time(clock, 250, one, successor)
    assert reported == [2], "another process at that address or id is not asked"


async def test_a_drain_is_not_meant_for_the_next_process_with_the_id(clock: SteppedClock, brokers: Make) -> None:
    first = brokers(9092, node_id=7)
    await start(first)
    await request_drain(clock._store, 7)
    await first.close()
    await clock.advance(GONE_MS)
    second = brokers(9092, node_id=7)
    reported: list[int] = []
    second.on_drain_asked.append(lambda: reported.append(7))
    await start(second)

    assert second.node_id == 7 and not reported


async def test_only_a_live_broker_can_be_asked_to_drain(clock: SteppedClock, brokers: Make) -> None:
    one = brokers(9092)
    await start(one)
    with pytest.raises(BrokerIdNotRegistered):
        await request_drain(clock._store, 9)
    await clock.advance(GONE_MS)
    with pytest.raises(BrokerIdNotRegistered):
        await request_drain(clock._store, one.node_id)


async def test_the_loop_renews(store: Store, settings: Settings) -> None:
    """On the real clock."""
    broker_lease = BrokerLease(store, settings.model_copy(update={"lease_renew_ms": 20}), {"PLAINTEXT": ("h", 1)}, "r1")
    await broker_lease.start()
    first = float(await store.command("ZSCORE", "tidegate:{cluster}:leases", 1))
    await asyncio.sleep(0.2)
    second = float(await store.command("ZSCORE", "tidegate:{cluster}:leases", 1))
    await broker_lease.close()

    assert 100 <= second - first <= 400
    assert broker_lease.live()[0].rack == "r1"
    assert float(await store.command("ZSCORE", "tidegate:{cluster}:leases", 1)) < second - 5_000


# -- Redis's clock steps


async def redis_clock_stepped(clock: SteppedClock, ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis's clock steps; time goes on for everybody else."""
    await clock.advance(ms)
    monkeypatch.setattr(broker_lease_module, "perf_counter", lambda: (clock.now_ms - ms) / 1000)


async def test_renew_clock_stepped_forward_ends_no_lease(
    brokers: Make, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = brokers(9092), brokers(9093)
    await start(one, two)
    await one.keep_once()
    lost: list[int] = []
    for broker_lease in (one, two):
        broker_lease.on_lost.append(lambda: lost.append(1))

    await redis_clock_stepped(clock, 30_000, monkeypatch)
    for broker_lease in (one, two, one):
        await broker_lease.keep_once()

    assert lost == []
    assert ids(one) == ids(two) == named(one) == [1, 2]


async def test_renew_clock_stepped_back_silent_broker_goes_in_time(
    brokers: Make, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = brokers(9092), brokers(9093)
    await start(one, two)
    await one.keep_once()

    await redis_clock_stepped(clock, -120_000, monkeypatch)
    await pass_time(clock, GONE_MS + 250, one)

    assert ids(one) == [1]
