"""Share groups by the numbers of the specification of logs: section G, scenarios 99 to 110."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from tests.scripts.test_share_offsets import NON_EMPTY, NOT_FOUND, altered, deleted, described
from tests.support.shares import ACCEPT, GAP, REJECT, RELEASE, RENEW, Member, ShareWorld
from tests.support.transactions import Brokers, Producer

STATE, INVALID = "INVALID_RECORD_STATE", "INVALID_REQUEST"
WRONG_EPOCH, NO_SESSION = "INVALID_SHARE_SESSION_EPOCH", "SHARE_SESSION_NOT_FOUND"


async def _pair(shares: ShareWorld, topic: str = "t1") -> tuple[Member, Member]:
    """Two members, each at a broker of its own."""
    first, second = shares.member("a", topic), shares.member("b", topic, broker=1)
    await shares.joined(first, second)
    return first, second


async def test_log_99_two_members_share_one_partition(shares: ShareWorld) -> None:
    a, b = await _pair(shares)
    await shares.produce(*[1] * 10)

    assert await a.fetch(0, max_records=5) == "0-4x1"
    assert await b.fetch(0) == "5-9x1"
    assert (a.lock_ms, b.lock_ms) == (30_000, 30_000)


async def test_log_100_session_epochs(shares: ShareWorld) -> None:
    a, _ = await _pair(shares)
    await shares.produce(1)
    assert await a.fetch(0) == "0-0x1"

    assert await a.fetch(5) == WRONG_EPOCH
    assert await a.acknowledge({0: [(0, 0, (ACCEPT,))]}, epoch=0) == WRONG_EPOCH
    assert await a.fetch(1) == ""
    assert await a.ack(0, 0, epoch=2) == "NONE"
    stranger = shares.member("x")
    assert await stranger.fetch(3) == NO_SESSION
    assert await a.fetch(0, acks={0: [(0, 0, (ACCEPT,))]}) == INVALID


async def test_log_101_mixed_acknowledgement_of_one_batch(shares: ShareWorld) -> None:
    a, b = await _pair(shares)
    await shares.produce(4)
    assert await a.fetch(0) == "0-3x1"

    assert await a.ack(0, 3, ACCEPT, RELEASE, REJECT, GAP) == "NONE"

    assert await b.fetch(0) == "1-1x2"
    assert await shares.start_offset() == 1


async def test_log_102_acknowledged_by_a_stranger_and_after_expiry(shares: ShareWorld) -> None:
    a, b = await _pair(shares)
    await shares.produce(4)
    assert (await a.fetch(0), await b.fetch(0)) == ("0-3x1", "")

    assert await b.ack(0, 0) == STATE
    await shares.clock.advance(31_000)
    assert await a.ack(0, 3) == STATE
    assert await b.fetch() == "0-3x2"


@pytest.mark.parametrize(
    "batches",
    [
        [(50, 51, (ACCEPT,))],
        [(2, 1, (ACCEPT,))],
        [(2, 3, (ACCEPT,)), (0, 1, (ACCEPT,))],
        [(0, 3, ())],
        [(0, 3, (ACCEPT, ACCEPT))],
        [(0, 3, (9,))],
    ],
)
async def test_log_103_invalid_acknowledgements(
    shares: ShareWorld, batches: list[tuple[int, int, tuple[int, ...]]]
) -> None:
    a, _ = await _pair(shares)
    await shares.produce(4)
    await a.fetch(0)

    assert await a.acknowledge({0: batches}) == INVALID
    assert await a.ack(0, 3) == "NONE"


async def test_log_103_atomic_per_partition(shares: ShareWorld) -> None:
    a, b = await _pair(shares, "t2")
    await a.fetch(0, partitions=(0, 1))
    await b.fetch(0, partitions=(0, 1))
    await shares.produce(4, topic="t2")
    await shares.produce(4, topic="t2", partition=1)
    assert await a.fetch() in {"0-3x1 1: 0-3x1", "1: 0-3x1 0-3x1"}  # either partition first
    await shares.produce(6, topic="t2")
    assert await b.fetch() == "4-9x1"

    spoilt = [(0, 1, (ACCEPT,)), (9, 9, (ACCEPT,))]
    assert await a.acknowledge({0: spoilt, 1: [(0, 3, (ACCEPT,))]}) == f"{STATE} NONE"

    assert await a.ack(0, 1) == "NONE"
    assert await shares.start_offset("t2", 1) == 4


async def test_log_104_delivery_limit(shares: ShareWorld) -> None:
    a, b = await _pair(shares)
    await shares.produce(1)

    for delivery in range(5):
        assert await a.fetch(2 * delivery) == f"0-0x{delivery + 1}"
        assert await a.ack(0, 0, RELEASE, epoch=2 * delivery + 1) == "NONE"

    assert (await a.fetch(10), await b.fetch(0)) == ("", "")
    assert await shares.start_offset() == 1


async def test_log_105_renew(shares: ShareWorld) -> None:
    a, _ = await _pair(shares)
    await shares.produce(1)
    await a.fetch(0)

    await shares.clock.advance(20_000)
    assert await a.ack(0, 0, RENEW, is_renew_ack=True) == "NONE"
    await shares.clock.advance(25_000)
    assert await a.ack(0, 0, RENEW) == INVALID
    assert await a.ack(0, 0) == "NONE"
    assert await shares.start_offset() == 1


async def test_log_106_close(shares: ShareWorld) -> None:
    a, b = await _pair(shares)
    await shares.produce(5)
    assert (await a.fetch(0), await b.fetch(0)) == ("0-4x1", "")

    assert await a.fetch(-1) == ""

    assert await b.fetch() == "0-4x2"
    assert await a.fetch(2) == NO_SESSION


async def test_log_106_disconnect(shares: ShareWorld) -> None:
    a, b = await _pair(shares)
    await shares.produce(5)
    assert (await a.fetch(0), await b.fetch(0)) == ("0-4x1", "")

    a.connection.close()

    waiting = b.sending(max_wait_ms=60_000)
    assert b.text(await asyncio.wait_for(waiting.answer, 40)) == "0-4x2"


async def test_log_107_record_lock_window(shares: ShareWorld) -> None:
    a, b = await _pair(shares)
    await shares.configure(share_partition_max_record_locks=100)
    await shares.produce(*[10] * 100)

    acquired = await a.fetch(0)
    assert acquired == "0-99x1"
    assert (await a.fetch(), await b.fetch(0)) == ("", "")
    waiting = b.sending(max_wait_ms=60_000)
    await asyncio.sleep(0)
    assert await a.ack(0, 9) == "NONE"
    assert b.text(await asyncio.wait_for(waiting.answer, 40)) == "100-109x1"


async def test_log_108_read_committed(shares: ShareWorld) -> None:
    await shares.configure(share_isolation_level="read_committed")
    a, _ = await _pair(shares)
    brokers = cast(Brokers, shares.brokers[0].connect())
    committed, aborted, still_open = [await Producer(brokers, name).init() for name in ("C", "A", "O")]
    for producer, is_commit in ((committed, True), (aborted, False)):
        await producer.write("t1", 2)
        await producer.end(is_commit)
        await _until_end(shares, 3 if is_commit else 6)
    await still_open.write("t1", 2)
    await _until_end(shares, 8)

    acquired = await a.fetch(0)
    offsets = {offset for part in acquired.split() for offset in range(*_range(part))}
    assert {0, 1} <= offsets <= {0, 1, 2, 5}  # 2 and 5 are markers, 3 and 4 aborted
    await still_open.end(True)
    await _until_end(shares, 9)
    later = {offset for part in (await a.fetch()).split() for offset in range(*_range(part))}
    assert {6, 7} <= later <= {6, 7, 8}


def _range(text: str) -> tuple[int, int]:
    first, _, rest = text.partition("-")
    return int(first), int(rest.partition("x")[0]) + 1


async def _until_end(shares: ShareWorld, offset: int) -> None:
    """Wait until every broker has read t1 up to an offset."""
    async with asyncio.timeout(30):
        for broker in shares.brokers:
            log = broker.logs.partition(shares.topics["t1"], 0)
            while (await log.latest()).high_watermark < offset:
                await asyncio.sleep(0.02)


async def test_log_109_offset_administration(shares: ShareWorld) -> None:
    members = await _pair(shares)
    await shares.produce(10)
    assert await altered(shares, ("t1", 0, 5)) == NON_EMPTY
    for member in members:
        await member.leave()

    assert await altered(shares, ("t1", 0, 5)) == "NONE"
    assert await described(shares, 0) == [(5, 5)]
    assert await deleted(shares, "t1") == "NONE"
    assert await deleted(shares, "t1", group="nobody") == NOT_FOUND
    assert await altered(shares, ("t1", 0, 0), group="new") == "NONE"
    assert await altered(shares, ("none", 0, 0), group="new") == "UNKNOWN_TOPIC_OR_PARTITION"


async def test_log_110_log_start_passes_the_start_offset(shares: ShareWorld) -> None:
    """Deleted records that a member has acquired count until their locks end."""
    a, b = await _pair(shares)
    await shares.produce(*[1] * 10)
    assert await a.fetch(0, max_records=4) == "0-3x1"
    topic = shares.topics["t1"]
    await shares.brokers[0].logs.partition(topic, 0).delete_records(5)
    await shares.brokers[1].logs.partition(topic, 0).end_offset()

    assert await a.ack(3, 3) == "NONE"
    assert await b.fetch(0) == "5-9x1"
    await shares.clock.advance(31_000)
    assert await b.fetch() == "5-9x2"
    assert await shares.start_offset() == 5
