"""Leases of node ids and the live set, with a clock that the test steps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.built import ENDPOINTS
from tests.support.clock import SteppedClock
from tidegate.broker import build
from tidegate.cli.commands.brokers import _through_redis
from tidegate.cli.places import AdminHttp, RedisServer
from tidegate.cluster.broker_lease import SINGLE_NODE_ID, BrokerInfo, BrokerLease, LeaseEvents, State
from tidegate.cluster.drains import request_drain
from tidegate.cluster.placement import Preferred
from tidegate.errors import BrokerIdNotRegistered, StoreUnavailable
from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.store.store import Store

GONE_MS, SUSPECT_MS, REUSE_MS = 10_000, 750, 60_000

NO_EVENTS = LeaseEvents()
Make = Callable[..., BrokerLease]


@dataclass
class Monotonic:
    """The brokers' monotonic clock: continues as Redis's does, but for its steps."""

    redis: SteppedClock
    behind_ms: int = 0

    def __call__(self) -> float:
        return (self.redis.now_ms - self.behind_ms) / 1000


@pytest.fixture
def monotonic(clock: SteppedClock) -> Monotonic:
    return Monotonic(clock)


@pytest.fixture
async def brokers(clock: SteppedClock, monotonic: Monotonic) -> AsyncIterator[Make]:
    """Makes brokers by port. They renew when the test says so."""
    made: list[BrokerLease] = []

    def make(port: int, state: State = "serving", events: LeaseEvents = NO_EVENTS, **changes: Any) -> BrokerLease:
        settings = clock._store.settings.model_copy(update=changes)
        endpoints = {"PLAINTEXT": ("127.0.0.1", port)}
        broker_lease = BrokerLease(clock._store, settings, endpoints, None, state, clock=monotonic, events=events)
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


async def test_brokers_know_each_other(brokers: Make) -> None:
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


async def test_repeated_script_gives_the_same_id(brokers: Make) -> None:
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


async def test_silent_broker_is_suspect_then_removed(clock: SteppedClock, brokers: Make) -> None:
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


async def test_broker_that_returns_in_time_preserves_its_lease(clock: SteppedClock, brokers: Make) -> None:
    lost: list[int] = []
    one, two = brokers(9092), brokers(9093, events=LeaseEvents(on_lost=lambda: lost.append(1)))
    await start(one, two)
    await pass_time(clock, 5_000, one)
    await two.keep_once()
    await one.keep_once()

    assert not lost
    assert two.node_id == 2
    assert named(one) == [1, 2]


async def test_lost_lease_is_reported_once_and_renewed(clock: SteppedClock, brokers: Make) -> None:
    lost: list[bool] = []
    one, two = brokers(9092), brokers(9093, events=LeaseEvents(on_lost=lambda: lost.append(two.held)))
    await start(one, two)
    await pass_time(clock, GONE_MS + 250, one)
    await two.keep_once()
    await two.keep_once()
    await one.keep_once()

    assert lost == [False]
    assert two.held and two.node_id == 2
    assert ids(one) == [1, 2]


async def test_refused_renewals_broker_is_ready_until_the_lease_has_expired(
    clock: SteppedClock, monotonic: Monotonic
) -> None:
    """Redis answers, but refuses every write."""
    store = clock._store
    broker = build(store.settings, store, ENDPOINTS, monotonic)
    broker.health.listening = True
    await start(broker.lease)
    await store.command("CONFIG", "SET", "min-replicas-to-write", 1)
    try:
        for _ in range(0, GONE_MS, 250):
            assert broker.health.own_reasons() == []
            monotonic.behind_ms -= 250
            with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
                await broker.lease.keep_once()

        assert broker.lease.held and broker.health.own_reasons() == ["no lease is held"]
    finally:
        await store.command("CONFIG", "SET", "min-replicas-to-write", 0)

    await broker.lease.keep_once()

    assert broker.health.own_reasons() == []
    await broker.close()


async def test_lost_id_that_another_has_by_now_is_not_taken_back(clock: SteppedClock, brokers: Make) -> None:
    one, two = brokers(9092), brokers(9093)
    await start(one, two)
    await pass_time(clock, GONE_MS + REUSE_MS + 250, one)
    three = brokers(9094)
    await start(three)
    await two.keep_once()

    assert (three.node_id, two.node_id) == (2, 3)


async def test_ended_id_rests_before_another_process_has_it(clock: SteppedClock, brokers: Make) -> None:
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


@pytest.mark.parametrize("after_ms", [0, SUSPECT_MS + 250, GONE_MS + 250, GONE_MS + REUSE_MS])
async def test_restart_on_the_same_port_has_the_node_id_of_its_predecessor(
    clock: SteppedClock, brokers: Make, after_ms: int
) -> None:
    """Clients never see two node ids at one address, also from a broker that has not noticed the restart yet.

    librdkafka drops what it has asked a node id that goes, and asks again after a minute.
    """
    joined, silent = list[tuple[int, str]](), list[int]()
    shards = list[int]()

    def on_silent(lost: BrokerInfo) -> None:
        silent.append(lost.node_id)
        shards.extend(Preferred(beside, 50).taken_from(lost))

    killed = brokers(9092)
    beside = brokers(9093, events=LeaseEvents(on_broker_joined=joined.extend, on_silent=on_silent))
    await start(killed, beside)
    await killed.renew()
    coordinated = Preferred(killed, 50).shards()
    await pass_time(clock, after_ms, beside)
    assert (joined, silent) == ([], [1] if after_ms > SUSPECT_MS else [])
    again = brokers(9092)
    await start(again)

    assert again.node_id == 1
    assert ids(again) == [1, 2]
    await beside.renew()
    assert (ids(beside), named(beside)) == ([1, 2], [1, 2])
    assert joined == [(1, again.process)], "it has no connections"
    assert (silent, shards) == ([1], coordinated), "their members get a grace: what it had yet to renew died with it"
    assert not await killed.renew()


async def test_restart_has_the_latest_of_the_node_ids_of_its_address(clock: SteppedClock, brokers: Make) -> None:
    """Versions before took a new node id with each restart."""
    beside = brokers(9093)
    await start(beside)
    store = clock._store
    seconds, _ = await store.command("TIME")
    for node_id, age_ms in ((2, GONE_MS + 500), (3, GONE_MS - 500)):
        record = json.dumps({"process": f"p{node_id}", "address": "127.0.0.1:9092"})
        await store.command("HSET", store.cluster_keys.brokers, node_id, record)
        await store.command("ZADD", store.cluster_keys.leases, int(seconds) * 1_000 - age_ms, node_id)
    again = brokers(9092)
    await start(again)

    assert (again.node_id, ids(again)) == (3, [1, 3])


async def test_brokers_given_one_address_keep_their_ids_after_both_stood_still(
    clock: SteppedClock, brokers: Make
) -> None:
    lost: list[int] = []
    first = brokers(9092, events=LeaseEvents(on_lost=lambda: lost.append(1)))
    second = brokers(9092, events=LeaseEvents(on_lost=lambda: lost.append(2)))
    await start(first, second)
    for _ in range(3):
        await clock.advance(GONE_MS + 250)
        await pass_time(clock, 1000, first, second)

    assert lost == [1, 2] * 3
    assert (first.node_id, second.node_id) == (2, 1)
    assert ids(first) == ids(second) == [1, 2]


async def test_silent_broker_is_reported_once_and_a_draining_one_is_not(clock: SteppedClock, brokers: Make) -> None:
    silent: list[int] = []
    one = brokers(9092, events=LeaseEvents(on_silent=lambda lost: silent.append(lost.node_id)))
    two, three = brokers(9093), brokers(9094)
    await start(one, two, three)
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


async def test_draining_broker_is_known_and_not_advertised(brokers: Make) -> None:
    one, two = brokers(9092), brokers(9093)
    await start(one, two)
    await one.drain()
    await two.renew()

    assert ids(two) == [1, 2]
    assert two.live()[0].state == "draining"
    assert named(two) == named(one) == [2]


async def test_draining_brokers_are_advertised_when_all_drain(brokers: Make) -> None:
    one = brokers(9092)
    await start(one)
    await one.drain()

    assert named(one) == [1]


async def test_suspicion_after_a_common_silence_is_dropped(clock: SteppedClock, brokers: Make) -> None:
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


async def test_broker_replaced_at_its_address_in_a_common_silence_is_not_listed(
    clock: SteppedClock, brokers: Make
) -> None:
    """KafkaJS sends nothing for a leader that has the address of another broker, and takes its records for stored."""
    dead, other = brokers(9092), brokers(9093)
    await start(dead, other)
    await other.renew()
    await clock.advance(5_000)
    successor = brokers(9092)
    await start(successor)
    await other.keep_once()

    assert (ids(other), named(other)) == ([1, 2], [1, 2])


async def test_store_that_lost_everything_is_opened_again_under_the_same_cluster_id(
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


async def test_fixed_id_is_taken_from_a_dead_process_when_its_lease_ended(clock: SteppedClock, brokers: Make) -> None:
    dead, two = brokers(9092, node_id=7), brokers(9093, node_id=7)
    await start(dead)
    starting = asyncio.create_task(two.start())
    await asyncio.sleep(0.1)
    assert not starting.done()
    await clock.advance(GONE_MS)
    await asyncio.wait_for(starting, 30)

    assert two.node_id == 7


async def test_fixed_id_of_a_live_process_is_refused(clock: SteppedClock, brokers: Make) -> None:
    live, two = brokers(9092, node_id=7), brokers(9093, node_id=7)
    await start(live)
    starting = asyncio.create_task(two.start())
    async with asyncio.timeout(30):
        while not starting.done():  # it observes two renewals
            await pass_time(clock, 250, live)
            await asyncio.sleep(0.05)

    with pytest.raises(CannotStart, match="node id 7 is held by another live broker"):
        await starting


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


async def test_starting_broker_is_not_advertised_until_it_serves(clock: SteppedClock, brokers: Make) -> None:
    on_broker_joined: list[set[tuple[int, str]]] = []
    one = brokers(9092, events=LeaseEvents(on_broker_joined=on_broker_joined.append))
    await start(one)
    two, three = brokers(9093, state="starting"), brokers(9094, state="starting")
    await start(two, three)
    await pass_time(clock, 250, one, two, three)
    assert (ids(one), named(one), on_broker_joined) == ([1, 2, 3], [1], [])

    await two.serve()
    await pass_time(clock, 250, one)
    assert (named(one), on_broker_joined) == ([1, 2], [{(2, two.process)}])
    await three.serve()
    await pass_time(clock, 250, one)
    assert (named(one), on_broker_joined) == ([1, 2, 3], [{(2, two.process)}, {(3, three.process)}])


async def test_suspect_broker_that_recovers_is_no_new_broker(clock: SteppedClock, brokers: Make) -> None:
    on_broker_joined: list[set[tuple[int, str]]] = []
    one, two = brokers(9092, events=LeaseEvents(on_broker_joined=on_broker_joined.append)), brokers(9093)
    await start(one, two)
    await one.renew()
    on_broker_joined.clear()
    await pass_time(clock, 2 * SUSPECT_MS, one)
    assert named(one) == [1]
    await pass_time(clock, 250, one, two)
    await one.renew()

    assert (named(one), on_broker_joined) == ([1, 2], [])


async def test_drain_is_asked_of_one_process(clock: SteppedClock, brokers: Make) -> None:
    reported: list[int] = []
    one = brokers(9092, events=LeaseEvents(on_drain_asked=lambda: reported.append(one.node_id)))
    two = brokers(9093, events=LeaseEvents(on_drain_asked=lambda: reported.append(two.node_id)))
    await start(one, two)
    await request_drain(clock._store, two.node_id)
    await request_drain(clock._store, two.node_id)
    await pass_time(clock, 250, one, two)

    assert reported == [two.node_id]

    successor = brokers(9093)
    await start(successor)
    await pass_time(clock, 250, one, successor)
    assert reported == [2], "another process at that address or id is not asked"


async def test_drain_is_not_meant_for_the_next_process_with_the_id(clock: SteppedClock, brokers: Make) -> None:
    first = brokers(9092, node_id=7)
    await start(first)
    await request_drain(clock._store, 7)
    await first.close()
    await clock.advance(GONE_MS)
    reported: list[int] = []
    second = brokers(9092, events=LeaseEvents(on_drain_asked=lambda: reported.append(7)), node_id=7)
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


async def test_drain_command_notices_a_broker_that_has_started_again(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its address, under its node id, before the command has looked whether it left."""
    at_9092 = {"PLAINTEXT": ("127.0.0.1", 9092)}
    asked, again = (BrokerLease(store, settings, at_9092, None) for _ in range(2))
    await asked.start()

    async def drained(of: Store, node_id: int) -> None:
        await request_drain(of, node_id)
        await asked.close()
        await again.start()

    monkeypatch.setattr("tidegate.cluster.drains.request_drain", drained)
    still_there = await _through_redis(AdminHttp(""), RedisServer(settings), asked.node_id, 10.0)
    await again.close()

    assert (still_there, again.node_id) == (False, asked.node_id)


async def test_loop_renews(store: Store, settings: Settings) -> None:
    """On the real clock."""
    broker_lease = BrokerLease(store, settings, {"PLAINTEXT": ("h", 1)}, "r1")
    await broker_lease.start()
    first = float(await store.command("ZSCORE", "tidegate:{cluster}:leases", 1))
    async with asyncio.timeout(30):
        while float(await store.command("ZSCORE", "tidegate:{cluster}:leases", 1)) < first + 500:
            await asyncio.sleep(0.05)
    await broker_lease.close()

    assert broker_lease.live()[0].rack == "r1"
    ended = float(await store.command("ZSCORE", "tidegate:{cluster}:leases", 1))
    seconds, microseconds = await store.command("TIME")
    assert int(seconds) * 1000 + int(microseconds) / 1000 - ended >= settings.broker_lease_timeout_ms


# -- Redis's clock steps


async def redis_clock_stepped(monotonic: Monotonic, ms: int) -> None:
    """Redis's clock steps; time continues for everybody else."""
    await monotonic.redis.advance(ms)
    monotonic.behind_ms += ms


async def test_renew_clock_stepped_forward_ends_no_lease(
    brokers: Make, clock: SteppedClock, monotonic: Monotonic
) -> None:
    lost: list[int] = []
    one, two = (brokers(port, events=LeaseEvents(on_lost=lambda: lost.append(1))) for port in (9092, 9093))
    await start(one, two)
    await one.keep_once()

    await redis_clock_stepped(monotonic, 30_000)
    for broker_lease in (one, two, one):
        await broker_lease.keep_once()

    assert lost == []
    assert ids(one) == ids(two) == named(one) == [1, 2]


async def test_renew_clock_stepped_back_silent_broker_expires_in_time(
    brokers: Make, clock: SteppedClock, monotonic: Monotonic
) -> None:
    one, two = brokers(9092), brokers(9093)
    await start(one, two)
    await one.keep_once()

    await redis_clock_stepped(monotonic, -120_000)
    await pass_time(clock, GONE_MS + 250, one)

    assert ids(one) == [1]
