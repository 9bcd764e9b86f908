"""Locks and backoffs of share groups after Redis's clock stepped back."""

from __future__ import annotations

from tests.support.shares import LOCK_MS, RELEASE, Member, ShareWorld
from tidegate.groups.expiry import clamp_deadlines

HOUR_MS = 3_600_000


async def given_members(shares: ShareWorld) -> tuple[Member, Member]:
    """Two members of which the first has acquired all records, 0 to 4."""
    a, b = shares.member("a"), shares.member("b", broker=1)
    await shares.joined(a, b)
    await shares.produce(5)
    assert await a.fetch(0) == "0-4x1"
    assert await b.fetch(0) == ""
    return a, b


async def step_back(shares: ShareWorld) -> int:
    """Let the clock step, and a broker notice it; the number of deadlines that it limited."""
    await shares.clock.advance(-HOUR_MS)
    return await clamp_deadlines(shares.brokers[0].store, shares.keys.shard_keys.shard)


async def test_clock_stepped_back_locks_expire_in_time(shares: ShareWorld) -> None:
    _, b = await given_members(shares)
    await step_back(shares)
    await shares.clock.advance(LOCK_MS - 1)
    assert await b.fetch() == ""
    await shares.clock.advance(1)

    assert await b.fetch() == "0-4x2"


async def test_clock_stepped_back_locks_of_an_empty_group_expire_in_time(shares: ShareWorld) -> None:
    a, b = await given_members(shares)
    await a.leave()
    await b.leave()
    await step_back(shares)
    await shares.clock.advance(LOCK_MS)
    c = shares.member("c")
    await shares.joined(c)

    assert await c.fetch(0) == "0-4x2"


async def test_clock_stepped_back_backoff_ends_in_time(shares: ShareWorld) -> None:
    await shares.configure(share_retry_backoff_ms=1_000, share_retry_backoff_max_ms=2_000)
    a, b = await given_members(shares)
    assert await a.ack(0, 4, RELEASE) == "NONE"
    await step_back(shares)
    await shares.clock.advance(2_000)

    assert await b.fetch() == "0-4x2"
