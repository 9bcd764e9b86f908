"""Token buckets that several brokers lease from, with the clock of the server and the brokers stepped together."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.support.clock import SteppedClock
from tidegate.errors import PolicyViolation
from tidegate.quotas import leases as leases_module
from tidegate.quotas import table as table_module
from tidegate.quotas.entities import Entity, Quota
from tidegate.quotas.errors import ThrottlingQuotaExceeded
from tidegate.quotas.leases import PERIOD_MS, QuotaLeases
from tidegate.quotas.table import Quotas
from tidegate.settings import Settings
from tidegate.store.store import Store

ALICE = Entity.of({"user": "alice"})
STEP_MS = 20
Brokers = Callable[..., Any]


class Fleet:
    """Brokers whose leases are renewed by the test: nothing runs by itself."""

    def __init__(self, store: Store, settings: Settings, clock: SteppedClock, count: int) -> None:
        self.clock = clock
        self.quotas = Quotas(store, settings, self._forget_limits)
        self.brokers = [QuotaLeases(store, self.quotas, f"process-{n}", self.now_s) for n in range(count)]

    def now_s(self) -> float:
        return self.clock.now_ms / 1000

    async def set(self, quota: Quota, value: float | None, entity: Entity = ALICE, org: str = "default") -> None:
        await self.quotas.change(org, [(entity, quota, value)], "test")

    def _forget_limits(self) -> None:
        for broker in self.brokers:
            broker.forget_limits()

    async def advance(self, ms: int) -> None:
        """Let time pass; each broker leases once every PERIOD_MS."""
        for _ in range(0, ms, STEP_MS):
            self.clock.now_ms += STEP_MS
            if self.clock.now_ms % PERIOD_MS == 0:
                await self.clock.set()
                for broker in self.brokers:
                    if broker._active:
                        await broker.lease_used()


@pytest.fixture
async def fleet(clock: SteppedClock, clock_store: Store, settings: Settings) -> AsyncIterator[Brokers]:
    yield lambda count: Fleet(clock_store, settings, clock, count)


class Producer:
    """Sends as soon as its connection is not muted."""

    def __init__(self, broker: QuotaLeases, size: int, pause_ms: int = 0) -> None:
        self.broker, self.size, self.pause_ms = broker, size, pause_ms
        self.sent = 0
        self._next_s = 0.0

    def run(self, now_s: float) -> None:
        limits = self.broker.of_client("default", "User:alice", "app")
        assert limits is not None
        while self._next_s <= now_s:
            wait_s = self.broker.spend(limits.produce, self.size)
            self.sent += self.size
            self._next_s = now_s + max(wait_s, self.pause_ms / 1000, 0.001)
            if wait_s == 0 and self.pause_ms == 0:
                continue


async def transferred(fleet: Fleet, producers: list[Producer], seconds: int) -> int:
    for _ in range(seconds * 1000 // STEP_MS):
        for producer in producers:
            producer.run(fleet.now_s())
        await fleet.advance(STEP_MS)
    return sum(producer.sent for producer in producers)


RATE = 1_000_000


@pytest.mark.parametrize(
    ("sizes", "pauses_ms"),
    [
        ((20_000, 20_000, 20_000), (0, 0, 0)),
        ((1_000, 20_000, 200_000), (0, 0, 0)),
        ((20_000, 20_000, 20_000), (0, 200, 2_000)),
        ((20_000, 20_000, 20_000), (0, 20_000, 20_000)),
        ((500_000, 500_000, 500_000), (0, 0, 0)),
    ],
    ids=["equal", "sizes", "unequal", "one", "large"],
)
async def test_three_brokers_transfer_the_quota(fleet: Brokers, sizes: Any, pauses_ms: Any) -> None:
    """One principal on three brokers for 30 s: together within 10 % of the quota, after the burst of 1 s."""
    three = fleet(3)
    await three.set(Quota.PRODUCE, RATE)
    producers = [Producer(*one) for one in zip(three.brokers, sizes, pauses_ms, strict=True)]

    total = await transferred(three, producers, 30)

    assert total == pytest.approx(30 * RATE, rel=0.1)


async def test_one_broker_gets_all_that_others_do_not_use(fleet: Brokers) -> None:
    three = fleet(3)
    await three.set(Quota.PRODUCE, RATE)
    busy = Producer(three.brokers[0], 20_000)
    idle = [Producer(broker, 1_000, 500) for broker in three.brokers[1:]]

    await transferred(three, [busy, *idle], 10)

    assert busy.sent > 0.85 * 10 * RATE
    assert all(one.sent == pytest.approx(20_000, rel=0.2) for one in idle)


async def test_equally_busy_brokers_none_starves(fleet: Brokers) -> None:
    """Debts are the cluster's, so shares are not exactly equal, as those of connections in Kafka are not."""
    three = fleet(3)
    await three.set(Quota.PRODUCE, RATE)
    producers = [Producer(broker, 20_000) for broker in three.brokers]

    total = await transferred(three, producers, 10)

    assert all(one.sent > 0.5 * total / 3 for one in producers)


async def test_share_of_a_dead_broker_returns_to_the_others(fleet: Brokers) -> None:
    """A broker that reports no more loses its lease by Redis's clock; the rest of the rate is not lost."""
    two = fleet(2)
    await two.set(Quota.PRODUCE, RATE)
    first, second = (Producer(broker, 20_000) for broker in two.brokers)
    await transferred(two, [first, second], 5)
    two.brokers.pop()
    before = first.sent

    await transferred(two, [first], 10)

    assert first.sent - before == pytest.approx(10 * RATE, rel=0.1)


async def test_debt_survives_a_new_broker(fleet: Brokers) -> None:
    """A client that overdraws at one broker and goes to another waits there too."""
    two = fleet(2)
    await two.set(Quota.PRODUCE, RATE)
    limits = [broker.of_client("default", "User:alice", "app") for broker in two.brokers]
    two.brokers[0].spend(limits[0].produce, 10 * RATE)
    await two.advance(PERIOD_MS)

    two.brokers[1].spend(limits[1].produce, 1)
    await two.advance(PERIOD_MS)

    assert limits[1].produce[0].wait_s(two.now_s()) == pytest.approx(8.9, abs=0.5)


async def test_lease_repeated_counts_use_once(fleet: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply to a report is lost: the next one carries its use again, which is taken from the bucket once."""
    one = fleet(1)
    await one.set(Quota.PRODUCE, RATE)
    [broker] = one.brokers
    limits = broker.of_client("default", "User:alice", "app")
    broker.spend(limits.produce, 600_000)
    [bucket] = limits.produce
    lost = bucket.report(one.now_s())
    await broker.lease_used()
    bucket._confirmed = lost.confirmed  # as before the reply

    await broker.lease_used()

    assert bucket.available(one.now_s()) == pytest.approx(400_000)


async def test_idle_bucket_is_not_reported_and_expires(fleet: Brokers, clock_store: Store) -> None:
    one = fleet(1)
    await one.set(Quota.PRODUCE, RATE)
    [broker] = one.brokers
    limits = broker.of_client("default", "User:alice", "app")
    broker.spend(limits.produce, 100)
    await one.advance(PERIOD_MS)
    [bucket] = limits.produce
    assert await clock_store.command("TTL", bucket.key) in (1, 2)

    await one.advance(2_000)

    assert not broker._active


async def test_quota_removed_limits_no_longer(fleet: Brokers) -> None:
    one = fleet(1)
    await one.set(Quota.PRODUCE, RATE)
    await one.set(Quota.PRODUCE, None)

    assert one.brokers[0].of_client("default", "User:alice", "app") is None
    assert one.quotas.table.values == {}


async def test_many_client_ids_are_bounded(fleet: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client chooses its client id: limits of 10 are remembered here, however many there are."""
    monkeypatch.setattr(leases_module, "CLIENTS_MAX", 10)
    one = fleet(1)
    await one.set(Quota.PRODUCE, RATE, Entity.of({"client-id": None}))
    [broker] = one.brokers

    for n in range(100):
        broker.of_client("default", "User:alice", f"app-{n}")
        broker.of_client("default", "User:alice", f"app-{n}" + "x" * 30_000)

    assert len(broker._limits) <= 10
    assert len(broker._buckets) <= 10
    assert all(len(key) < 400 for key in broker._buckets)


async def test_limits_of_long_client_ids_are_not_remembered(fleet: Brokers) -> None:
    """A client id may have 32 kB."""
    one = fleet(1)
    await one.set(Quota.PRODUCE, RATE, Entity.of({"client-id": None}))
    [broker] = one.brokers

    first, second = (broker.of_client("default", "User:alice", "c" * 30_000) for _ in range(2))

    assert first.produce == second.produce
    assert not broker._limits


async def test_debt_survives_many_client_ids(fleet: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A muted client lets its bucket become idle and floods the broker with client ids."""
    monkeypatch.setattr(leases_module, "CLIENTS_MAX", 10)
    one = fleet(1)
    await one.set(Quota.PRODUCE, RATE)
    [broker] = one.brokers
    broker.spend(broker.of_client("default", "User:alice", "app").produce, 6 * RATE)
    await one.advance(2_000)
    assert not broker._active

    flood(broker)

    [bucket] = broker.of_client("default", "User:alice", "app").produce
    assert bucket.wait_s(one.now_s()) == pytest.approx(3.0, abs=0.2)


async def test_use_after_many_client_ids_is_counted(fleet: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis has the count of the bucket that the broker forgot: use up to that count was free."""
    monkeypatch.setattr(leases_module, "CLIENTS_MAX", 10)
    one = fleet(1)
    await one.set(Quota.PRODUCE, RATE)
    [broker] = one.brokers
    broker.spend(broker.of_client("default", "User:alice", "app").produce, 0.9 * RATE)
    await one.advance(2_000)
    assert not broker._active

    for _ in range(3):
        flood(broker)
        [bucket] = broker.of_client("default", "User:alice", "app").produce
        broker.spend([bucket], 0.8 * RATE)
        await broker.lease_used()
        assert bucket.available(one.now_s()) == pytest.approx(0.2 * RATE)
        del bucket
        await one.advance(2_000)


async def test_request_that_waits_spends_from_the_bucket_of_the_others(
    fleet: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Fetch has the limits of its beginning; two buckets of one limit would hide each other's use."""
    monkeypatch.setattr(leases_module, "CLIENTS_MAX", 10)
    one = fleet(1)
    await one.set(Quota.FETCH, RATE)
    [broker] = one.brokers
    parked = broker.of_client("default", "User:alice", "app")
    await one.advance(2_000)

    flood(broker)

    assert broker.of_client("default", "User:alice", "app").fetch[0] is parked.fetch[0]


async def test_debts_of_many_client_ids_are_bounded_and_known_to_redis(
    fleet: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "CLIENTS_MAX", 10)
    one = fleet(1)
    await one.set(Quota.PRODUCE, RATE, Entity.of({"client-id": None}))
    [broker] = one.brokers
    for n in range(100):
        broker.spend(broker.of_client("default", "User:alice", f"app-{n}").produce, 11 * RATE)
    await one.advance(2_000)
    assert not broker._active
    assert len(broker._buckets) <= 20  # of 10 remembered clients, and 10 in debt

    [bucket] = broker.of_client("default", "User:alice", "app-0").produce
    broker.spend([bucket], 0.5 * RATE)
    await broker.lease_used()

    assert bucket.wait_s(one.now_s()) == pytest.approx(8.5, abs=0.2)


def flood(broker: QuotaLeases) -> None:
    for n in range(100):
        broker.of_client("default", "User:mallory", f"app-{n}")


async def test_mutations_strict_are_refused_beyond_the_quota(fleet: Brokers) -> None:
    """KIP-599: one call may overdraw; from then on every broker refuses until the debt is paid."""
    two = fleet(2)
    await two.set(Quota.MUTATION, 2.0)
    alice = ("default", "User:alice", "app")
    assert await two.brokers[0].mutate(*alice, 30, strict=True) == 0.0
    await two.brokers[0].lease_used()

    with pytest.raises(ThrottlingQuotaExceeded):
        await two.brokers[1].mutate(*alice, 1, strict=True)

    assert two.brokers[1].mutation_wait_s(*alice) == pytest.approx(4.0, abs=0.5)  # 22 at once, 8 more at 2 a second
    await two.advance(4_500)
    assert await two.brokers[1].mutate(*alice, 1, strict=True) == 0.0


async def test_mutations_permissive_are_throttled(fleet: Brokers) -> None:
    one = fleet(1)
    await one.set(Quota.MUTATION, 2.0)

    assert await one.brokers[0].mutate("default", "User:alice", "app", 30, strict=False) == pytest.approx(4.0)


async def test_connections_of_an_address_are_limited(fleet: Brokers) -> None:
    one = fleet(1)
    await one.set(Quota.CONNECTION, 5.0, Entity.of({"ip": None}))
    [broker] = one.brokers
    accepted = 0
    for _ in range(10_000 // STEP_MS):
        accepted += broker.connect("10.0.0.1") == 0
        await one.advance(STEP_MS)

    assert accepted == pytest.approx(50, abs=7)  # 10 s at 5 a second, and the burst
    assert broker.connect("10.0.0.2") == 0


async def test_change_beyond_the_cap_changes_nothing(fleet: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "QUOTAS_MAX", 2)
    one = fleet(1)
    rates = [(Entity.of({"user": name}), Quota.PRODUCE, 1.0) for name in ("a", "b", "c")]

    with pytest.raises(PolicyViolation):
        await one.quotas.change("default", rates, "test")

    await one.quotas.refresh()
    assert one.quotas.table.values == {}


async def test_another_broker_gets_a_change(fleet: Brokers, clock_store: Store, settings: Settings) -> None:
    one, changed = fleet(1), []
    other = Quotas(clock_store, settings, lambda: changed.append(dict(other.table.values)))
    await one.set(Quota.PRODUCE, 5.0)
    await other.refresh()
    await other.refresh()

    assert len(changed) == 1
    assert other.table.of_org("default") == {ALICE: {Quota.PRODUCE: 5.0}}


async def test_random_use_of_random_brokers_stays_at_the_quota(fleet: Brokers) -> None:
    """Clients that move between brokers at random and send whenever they may."""
    rng = random.Random(7)
    three = fleet(3)
    await three.set(Quota.PRODUCE, RATE)
    producers = [Producer(rng.choice(three.brokers), rng.choice((5_000, 50_000, 150_000))) for _ in range(6)]
    total = 0
    for _ in range(15):
        for producer in producers:
            producer.broker = rng.choice(three.brokers)
        total = await transferred(three, producers, 2)

    assert total == pytest.approx(30 * RATE, rel=0.1)
