"""Scenarios 36-45 of the specification's share groups: acknowledgements, locks."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.support.shares import ACCEPT, GAP, REJECT, RELEASE, RENEW, Member, ShareWorld

STATE, INVALID = "INVALID_RECORD_STATE", "INVALID_REQUEST"


async def holding(shares: ShareWorld, count: int = 6) -> Member:
    """A member that has acquired one batch."""
    a = shares.member("a")
    await shares.joined(a)
    await shares.produce(count)
    assert await a.fetch(0) == f"0-{count - 1}x1"
    return a


async def test_scenario_36_kinds_in_one_request(shares: ShareWorld) -> None:
    a = await holding(shares)

    batches = [(0, 1, (ACCEPT,)), (2, 3, (RELEASE,)), (4, 4, (REJECT,)), (5, 5, (GAP,))]
    assert await a.acknowledge({0: batches}) == "NONE"

    assert await a.fetch() == "2-3x2"
    assert await shares.start_offset() == 2


async def test_scenario_37_a_kind_for_each_offset(shares: ShareWorld) -> None:
    a = await holding(shares, 4)

    assert await a.ack(0, 3, ACCEPT, GAP, RELEASE, REJECT) == "NONE"

    assert await a.fetch() == "2-2x2"
    assert await a.ack(2, 2) == "NONE"
    assert await shares.start_offset() == 4


@pytest.mark.parametrize(
    "batches",
    [
        [(3, 2, (ACCEPT,))],
        [(-1, 2, (ACCEPT,))],
        [(3, 3, (ACCEPT,)), (0, 1, (ACCEPT,))],
        [(0, 2, ())],
        [(0, 2, (ACCEPT, ACCEPT))],
        [(0, 2, (5,))],
        [(0, 2, (-1,))],
        [(0, 2, (RENEW,))],
        [(0, 6, (ACCEPT,))],
        [(0, 0, (ACCEPT,)), (1, 99, (ACCEPT,))],
        [(0, 1 << 40, (ACCEPT,))],
    ],
)
async def test_scenario_38_what_is_invalid_changes_nothing(
    shares: ShareWorld, batches: list[tuple[int, int, tuple[int, ...]]]
) -> None:
    a = await holding(shares)

    assert await a.acknowledge({0: batches}) == INVALID

    assert await a.ack(0, 5) == "NONE"


async def test_scenario_38_no_renewal_before_version_2(shares: ShareWorld) -> None:
    a = await holding(shares)

    assert await a.acknowledge({0: [(0, 5, (RENEW,))]}, version=1) == INVALID
    assert await a.acknowledge({0: [(0, 5, (ACCEPT,))]}, version=1) == "NONE"


async def test_scenario_39_overlapping_ranges(shares: ShareWorld) -> None:
    a = await holding(shares)

    assert await a.acknowledge({0: [(0, 3, (ACCEPT,)), (3, 4, (ACCEPT,))]}) == STATE


async def test_scenario_40_one_bad_batch_spoils_its_partition_only(shares: ShareWorld) -> None:
    a = shares.member("a", "t2")
    await shares.joined(a)
    await shares.produce(2, topic="t2")
    await shares.produce(2, topic="t2", partition=1)
    await a.fetch(0, partitions=(0, 1))

    asked = {0: [(0, 0, (ACCEPT,)), (1, 9, (ACCEPT,))], 1: [(0, 1, (ACCEPT,))]}
    assert await a.acknowledge(asked) == f"{INVALID} NONE"

    assert await shares.start_offset("t2") == 0
    assert await shares.start_offset("t2", 1) == 2


async def test_scenario_41_members_that_may_acknowledge(shares: ShareWorld) -> None:
    a, b = await holding(shares), shares.member("b", broker=1)
    await shares.joined(b)
    await b.fetch(0)
    assert await b.ack(0, 5) == STATE
    assert await a.ack(2, 3) == "NONE"
    assert await a.ack(2, 2) == await a.ack(1, 4) == STATE

    assert await a.ack(0, 1) == "NONE"
    assert await a.ack(0, 1) == "NONE"  # below the start offset
    assert await a.ack(1, 4) == "NONE"
    await shares.clock.advance(30_000)
    assert await a.ack(5, 5) == STATE
    assert await b.fetch() == "5-5x2"


async def test_scenario_42_unknown_partitions(shares: ShareWorld) -> None:
    a = await holding(shares)
    await shares.produce(2)

    assert await a.acknowledge({7: [(0, 0, (ACCEPT,))]}) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert await a.ack(0, 0, topic_id=UUID(int=99)) == "UNKNOWN_TOPIC_ID"
    assert await a.fetch(acks={0: [(0, 99, (ACCEPT,))]}) == f"6-7x1 / {INVALID}"


async def test_scenario_43_renewal(shares: ShareWorld) -> None:
    a = await holding(shares)
    await shares.clock.advance(20_000)
    assert await a.ack(2, 3, RENEW, is_renew_ack=True) == "NONE"
    await shares.clock.advance(20_000)

    assert await a.ack(2, 3) == "NONE"
    assert await a.ack(0, 1) == STATE

    assert await a.fetch() == "0-1x2 4-5x2"
    mixed = {0: [(0, 1, (RENEW, ACCEPT)), (4, 5, (ACCEPT,))]}
    assert await a.acknowledge(mixed, is_renew_ack=True) == "NONE"
    assert await a.ack(0, 0, is_renew_ack=True) == "NONE"
    assert await shares.start_offset() == 6


async def test_scenario_44_a_fetch_that_renews(shares: ShareWorld) -> None:
    a = await holding(shares)
    await shares.produce(1)
    renewed = {0: [(0, 5, (RENEW,))]}
    nothing = {"max_bytes": 0, "max_records": 0, "min_bytes": 0, "is_renew_ack": True}

    for limit in ("max_bytes", "max_records", "min_bytes", "max_wait_ms"):
        assert await a.fetch(1, acks=renewed, **(nothing | {limit: 1})) == INVALID
    assert await a.fetch(1, acks=renewed, **nothing) == ""
    await shares.clock.advance(30_000)
    assert await a.fetch(acks=renewed, **nothing) == f" / {STATE}"


async def test_scenario_45_a_new_lock_duration(shares: ShareWorld) -> None:
    a = await holding(shares)
    await shares.configure(share_record_lock_duration_ms=60_000)
    await shares.produce(1)

    assert await a.fetch() == "6-6x1"
    assert a.lock_ms == 60_000
    await shares.clock.advance(30_000)
    assert await a.ack(0, 5) == STATE
    await shares.clock.advance(29_999)
    assert await a.ack(6, 6) == "NONE"
    assert a.lock_ms == 60_000


async def test_acknowledging_parts_keeps_the_rest_locked(shares: ShareWorld) -> None:
    a, b = await holding(shares, 100), shares.member("b", broker=1)
    await shares.joined(b)
    assert await b.fetch(0) == ""

    for offset in range(1, 100, 2):
        assert await a.ack(offset, offset, epoch=a.session_epoch) == "NONE"
    assert await b.fetch() == ""
    assert await shares.start_offset() == 0
    await shares.clock.advance(30_000)

    assert await b.fetch() == " ".join(f"{offset}-{offset}x2" for offset in range(0, 100, 2))
