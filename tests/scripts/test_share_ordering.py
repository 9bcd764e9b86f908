"""Order by key, backoff of failed deliveries and times of delivery in share groups, which Kafka does not have."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.support.log_broker import produce_request
from tests.support.shares import ACCEPT, REJECT, RELEASE, Member, ShareWorld
from tidegate.groups.expiry import clamp_deadlines
from tidegate.records.batch import Codec
from tidegate.records.build import NewRecord, build_batch

KEYED = {"share_ordering": "key"}


async def produce(shares: ShareWorld, keys: str, codec: int = Codec.NONE, times: Sequence[int] = ()) -> None:
    """One batch with a record of each letter as its key, `-` for none; `times` are those of delivery, 0 for none."""
    now = shares.clock.now_ms
    times = times or [0] * len(keys)
    records = [
        NewRecord(
            b"v",
            None if key == "-" else key.encode(),
            now,
            [("tidegate.deliver.at", str(time).encode())] if time else [],
        )
        for key, time in zip(keys, times, strict=True)
    ]
    batch = build_batch(records, codec=codec)
    answer = await shares.brokers[0].connect().ask(produce_request([("t1", [(0, batch)])]))
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none


async def members(shares: ShareWorld, *names: str, **configs: Any) -> list[Member]:
    """Members of a group with these configs."""
    if configs:
        await shares.configure(**configs)
    found = [shares.member(name, broker=place % 2) for place, name in enumerate(names)]
    await shares.joined(*found)
    return found


async def trim(shares: ShareWorld, before: int) -> None:
    """Delete the records below an offset."""
    for broker in shares.brokers:
        log = broker.logs.partition(shares.topics["t1"], 0)
        await (log.delete_records(before) if broker is shares.brokers[0] else log.end_offset())


# -- order by key


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
async def test_ordering_one_record_of_a_key_in_flight(shares: ShareWorld, codec: int) -> None:
    a, b = await members(shares, "a", "b", **KEYED)
    await produce(shares, "xxyxz", codec)

    assert await a.fetch(0) == "0-0x1 2-2x1 4-4x1"
    assert await b.fetch(0) == ""

    assert await a.ack(0, 0) == "NONE"
    assert await b.fetch() == "1-1x1"
    assert await a.ack(2, 4) == "INVALID_RECORD_STATE"  # 3 waits
    assert await b.ack(1, 1) == "NONE"
    assert await b.fetch() == "3-3x1"


async def test_ordering_over_batches_and_releases(shares: ShareWorld) -> None:
    a, b = await members(shares, "a", "b", **KEYED)
    await produce(shares, "xy")
    assert await a.fetch(0) == "0-1x1"
    await produce(shares, "xw")

    assert await b.fetch(0) == "3-3x1"
    assert await a.acknowledge({0: [(0, 0, (RELEASE,))]}) == "NONE"
    assert await b.fetch() == "0-0x2"  # not 2: the earlier record of the key is not finished
    assert await b.acknowledge({0: [(0, 0, (REJECT,))]}) == "NONE"
    assert await b.fetch() == "2-2x1"


async def test_ordering_records_without_a_key(shares: ShareWorld) -> None:
    (a,) = await members(shares, "a", **KEYED)
    await produce(shares, "-x--x-")

    assert await a.fetch(0) == "0-3x1 5-5x1"


async def test_ordering_after_a_lock_expired(shares: ShareWorld) -> None:
    a, b = await members(shares, "a", "b", **KEYED)
    await produce(shares, "xx")
    assert await a.fetch(0) == "0-0x1"
    await shares.clock.advance(30_000)

    assert await b.fetch(0) == "0-0x2"
    assert await b.ack(0, 0) == "NONE"
    assert await b.fetch() == "1-1x1"


async def test_ordering_after_the_last_delivery_failed(shares: ShareWorld) -> None:
    (a,) = await members(shares, "a", **KEYED, share_delivery_count_limit=2)
    await produce(shares, "xx")
    assert await a.fetch(0) == "0-0x1"
    for count in (2, 1):
        assert await a.acknowledge({0: [(0, 0, (RELEASE,))]}) == "NONE"
        assert await a.fetch() == ("0-0x2" if count == 2 else "1-1x1")


async def test_ordering_after_a_session_was_closed(shares: ShareWorld) -> None:
    a, b = await members(shares, "a", "b", **KEYED)
    await produce(shares, "xxy")
    assert await a.fetch(0) == "0-0x1 2-2x1"
    assert await a.fetch(-1) == ""

    assert await b.fetch(0) == "0-0x2 2-2x2"
    assert await b.ack(0, 0) == "NONE"
    assert await b.fetch() == "1-1x1"


async def test_ordering_leaves_no_fields_of_finished_keys(shares: ShareWorld) -> None:
    (a,) = await members(shares, "a", **KEYED)
    await produce(shares, "xxyyz")
    answer = await a.fetch(0)
    for _ in range(2):
        for part in answer.split():
            first, last = (int(offset) for offset in part.partition("x")[0].split("-"))
            assert await a.ack(first, last) == "NONE"
        answer = await a.fetch()

    assert answer == "" and await shares.start_offset() == 5
    fields = await shares.brokers[0].store.command("HKEYS", shares.keys.share(shares.topics["t1"].topic_id.hex, 0)[0])
    assert sorted(fields) == [b"chained", b"end", b"epoch", b"unfinished"]


async def test_ordering_log_start_passes_waiting_records(shares: ShareWorld) -> None:
    a, b = await members(shares, "a", "b", **KEYED)
    await produce(shares, "xxxy")
    assert await a.fetch(0) == "0-0x1 3-3x1"
    await trim(shares, 2)

    assert await a.ack(0, 0) == "NONE"
    assert await b.fetch(0) == "2-2x1"


async def test_ordering_switched_off_ends_no_chain(shares: ShareWorld) -> None:
    a, b = await members(shares, "a", "b", **KEYED)
    await produce(shares, "xx")
    assert await a.fetch(0) == "0-0x1"
    await shares.configure(share_ordering="none")
    await produce(shares, "xx")

    assert await b.fetch(0) == "2-3x1"
    assert await a.ack(0, 0) == "NONE"
    assert await b.fetch() == "1-1x1"


async def offsets_of(member: Member, fetches: int = 20) -> list[int]:
    """The offsets of some fetches, each accepted at once."""
    offsets: list[int] = []
    for place in range(fetches):
        ranges = (await member.fetch(0 if place == 0 else None)).split()
        for first, last in (part.partition("x")[0].split("-") for part in ranges):
            offsets += range(int(first), int(last) + 1)
            assert await member.ack(int(first), int(last)) == "NONE"
    return offsets


async def test_ordering_key_of_many_records_delays_no_other(shares: ShareWorld) -> None:
    a, b = await members(shares, "a", "b", **KEYED, share_partition_max_record_locks=100)
    await produce(shares, "x")
    assert await a.fetch(0) == "0-0x1"
    await produce(shares, "x" * 300 + "y")

    assert await offsets_of(b) == [301]
    assert await a.ack(0, 0) == "NONE"
    assert await b.fetch() == "1-1x1"


async def test_ordering_waiting_records_of_a_partition_have_a_limit(shares: ShareWorld) -> None:
    a, b = await members(shares, "a", "b", **KEYED)
    await produce(shares, "x")
    assert await a.fetch(0) == "0-0x1"
    for _ in range(11):
        await produce(shares, "x" * 1_000)
    await produce(shares, "y")

    assert await offsets_of(b, 3) == []
    (found,) = await shares.brokers[0].context.shares.records.in_flight(shares.keys, [shares.first()])
    assert found is not None and found.waiting_count == 10_000 and found.end == 10_001


async def run_random_members(shares: ShareWorld, seed: int, rounds: int = 3_000) -> None:
    """Members accept, release, lose and forget records at random, until each was accepted once, in order of its key."""
    rng = random.Random(seed)
    limits = {"share_retry_backoff_ms": rng.choice([0, 500]), "share_delivery_count_limit": 25}
    people = await members(shares, "a", "b", "c", **KEYED, **limits)
    keys = "".join(rng.choice("uvwxyz") for _ in range(60))
    for first in range(0, 60, 20):
        await produce(shares, keys[first : first + 20])
    finished: list[int] = []
    held: dict[int, str] = {}
    for _ in range(rounds):
        one = rng.choice(people)
        answer = await one.fetch(max_records=rng.choice([1, 5, 50]))
        got = []
        for part in answer.split():
            first, last = (int(offset) for offset in part.partition("x")[0].split("-"))
            got += range(first, last + 1)
        for offset in got:
            assert offset not in finished
            earlier = [at for at in range(offset) if keys[at] == keys[offset] and at not in finished]
            assert not earlier, f"{offset} was delivered before {earlier}"
            held[offset] = one.name
        for offset in [at for at, name in held.items() if name == one.name]:
            kind = rng.choice([ACCEPT, ACCEPT, RELEASE, None])
            if kind is None:
                continue
            code = await one.acknowledge({0: [(offset, offset, (kind,))]})
            del held[offset]
            if code == "NONE" and kind == ACCEPT:
                finished.append(offset)
        if rng.random() < 0.1:
            await shares.clock.advance(31_000)
            held.clear()
        if await shares.start_offset() == 60:
            break
    assert await shares.start_offset() == 60, "records starve"
    assert sorted(finished) == list(range(60)), "records were lost"


@pytest.mark.parametrize("seed", range(4))
async def test_ordering_of_every_key_without_starvation(shares: ShareWorld, seed: int) -> None:
    await run_random_members(shares, seed)


# -- backoff


async def test_backoff_doubles_with_each_delivery(shares: ShareWorld) -> None:
    a, b = await members(shares, "a", "b", share_retry_backoff_ms=1_000, share_retry_backoff_max_ms=3_000)
    await produce(shares, "-")
    assert await a.fetch(0) == "0-0x1"
    await b.fetch(0)
    for count, backoff_ms in ((2, 1_000), (3, 2_000), (4, 3_000), (5, 3_000)):
        assert await a.acknowledge({0: [(0, 0, (RELEASE,))]}) == "NONE"
        await shares.clock.advance(backoff_ms - 1)
        assert await b.fetch() == await a.fetch() == ""
        await shares.clock.advance(1)
        assert await a.fetch() == f"0-0x{count}"
    assert await a.acknowledge({0: [(0, 0, (RELEASE,))]}) == "NONE"
    assert await shares.start_offset() == 1  # that was the last delivery


async def test_backoff_after_a_lock_expired(shares: ShareWorld) -> None:
    a, b = await members(shares, "a", "b", share_retry_backoff_ms=1_000)
    await produce(shares, "--")
    assert await a.fetch(0) == "0-1x1"
    await shares.clock.advance(30_000)

    assert await b.fetch(0) == ""
    await shares.clock.advance(1_000)
    assert await b.fetch() == "0-1x2"


async def test_backoff_delays_no_other_record(shares: ShareWorld) -> None:
    a, b = await members(shares, "a", "b", share_retry_backoff_ms=60_000)
    await produce(shares, "--")
    assert await a.fetch(0) == "0-1x1"
    assert await a.acknowledge({0: [(0, 0, (RELEASE,)), (1, 1, (ACCEPT,))]}) == "NONE"
    await produce(shares, "--")

    assert await b.fetch(0) == "2-3x1"
    assert await shares.start_offset() == 0


async def test_backoff_ends_a_waiting_fetch(shares: ShareWorld) -> None:
    a, b = await members(shares, "a", "b", share_retry_backoff_ms=50)
    await produce(shares, "-")
    assert await a.fetch(0) == "0-0x1"
    waiting = b.sending(0, max_wait_ms=60_000)
    assert await a.acknowledge({0: [(0, 0, (RELEASE,))]}) == "NONE"
    await shares.clock.advance(50)
    assert b.text(await waiting.answer) == "0-0x2"


# -- times of delivery


async def test_deliver_at_not_before_its_time(shares: ShareWorld) -> None:
    (a,) = await members(shares, "a", share_deliver_at_enable="true")
    now = shares.clock.now_ms
    await produce(shares, "----", times=[0, now + 10_000, now - 1, now + 5_000])

    assert await a.fetch(0) == "0-0x1 2-2x1"
    await shares.clock.advance(5_000)
    assert await a.fetch() == "3-3x1"
    await shares.clock.advance(5_000)
    assert await a.fetch() == "1-1x1"


async def test_deliver_at_stays_after_the_clock_stepped_back(shares: ShareWorld) -> None:
    (a,) = await members(shares, "a", share_deliver_at_enable="true")
    await produce(shares, "-", times=[shares.clock.now_ms + 10_000])
    assert await a.fetch(0) == ""
    await shares.clock.advance(-3_600_000)
    await clamp_deadlines(shares.brokers[0].store, shares.keys.shard_keys.shard)
    await shares.clock.advance(3_600_000)

    assert await a.fetch() == ""
    await shares.clock.advance(10_000)
    assert await a.fetch() == "0-0x1"


async def test_deliver_at_ignored_unless_enabled(shares: ShareWorld) -> None:
    (a,) = await members(shares, "a")
    await produce(shares, "-", times=[shares.clock.now_ms + 10_000])

    assert await a.fetch(0) == "0-0x1"


async def test_deliver_at_and_ordering_together(shares: ShareWorld) -> None:
    (a,) = await members(shares, "a", **KEYED, share_deliver_at_enable="true")
    now = shares.clock.now_ms
    await produce(shares, "xyxx", times=[now + 5_000, 0, 0, now + 9_000])

    assert await a.fetch(0) == "1-1x1"
    await shares.clock.advance(5_000)
    assert await a.fetch() == "0-0x1"
    assert await a.ack(0, 1) == "NONE"
    assert await a.fetch() == "2-2x1"
    assert await a.ack(2, 2) == "NONE"
    assert await a.fetch() == ""
    await shares.clock.advance(4_000)
    assert await a.fetch() == "3-3x1"


async def test_deliver_at_log_start_passes_a_waiting_record(shares: ShareWorld) -> None:
    (a,) = await members(shares, "a", share_deliver_at_enable="true")
    await produce(shares, "--", times=[shares.clock.now_ms + 10**9, 0])
    assert await a.fetch(0) == "1-1x1"
    await trim(shares, 1)

    assert await a.fetch() == ""
    assert await shares.start_offset() == 1


async def test_deliver_at_delays_no_other_record(shares: ShareWorld) -> None:
    (a,) = await members(shares, "a", share_deliver_at_enable="true", share_partition_max_record_locks=100)
    later = shares.clock.now_ms + 3_600_000
    await produce(shares, "-" * 150, times=[later] * 150)
    await produce(shares, "-" * 300)

    assert await offsets_of(a) == list(range(150, 450))
    assert await shares.start_offset() == 0
    await shares.clock.advance(3_600_000)
    assert await a.fetch() == "0-149x1"


async def test_backoff_delays_no_record_behind_a_window(shares: ShareWorld) -> None:
    backoff = {"share_retry_backoff_ms": 60_000, "share_partition_max_record_locks": 100}
    (a,) = await members(shares, "a", **backoff)
    await produce(shares, "-")
    assert await a.fetch(0) == "0-0x1"
    assert await a.acknowledge({0: [(0, 0, (RELEASE,))]}) == "NONE"
    for _ in range(3):
        await produce(shares, "-" * 100)

    assert await offsets_of(a) == list(range(1, 301))
    await shares.clock.advance(60_000)
    assert await a.fetch() == "0-0x2"


async def test_records_in_flight_fill_the_window_of_a_group_with_order(shares: ShareWorld) -> None:
    a, b = await members(shares, "a", "b", **KEYED, share_partition_max_record_locks=100)
    await produce(shares, "".join(chr(0x4E00 + place) for place in range(150)))

    assert await a.fetch(0) == "0-99x1"
    assert await b.fetch(0) == ""
    assert await a.ack(0, 9) == "NONE"
    assert await b.fetch() == "100-109x1"
