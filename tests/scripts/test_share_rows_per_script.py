"""Many rows in many share-partitions: what one script does is bounded, by the Redis calls that it makes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from types import SimpleNamespace
from typing import Any

import pytest

from tests.scripts.test_share_ordering import run_random_members
from tests.support.includes import replaced_include
from tests.support.shares import ACCEPT, GAP, LOCK_MS, REJECT, RELEASE, RENEW, Member, ShareWorld
from tidegate.errors import InvalidRequest, StoreUnavailable
from tidegate.groups.share import records
from tidegate.groups.share.acknowledgements import RUNS_MAX, Acknowledgement, checked
from tidegate.groups.share.records import ACKNOWLEDGE_RECORDS
from tidegate.groups.share.sessions import Acquirer
from tidegate.store import scripts
from tidegate.store.scripts import Script
from tidegate.store.store import Store

PARTITIONS, ROWS, ROWS_PER_SCRIPT = 4, 60, 25
CALLS_MAX = 12 * (ROWS_PER_SCRIPT + ROWS)
"""Of the rows of a script and one partition's."""
STATE, INVALID, STORAGE = "INVALID_RECORD_STATE", "INVALID_REQUEST", "KAFKA_STORAGE_ERROR"


class Calls:
    """The Redis calls of each script that was run, by its name."""

    def __init__(self) -> None:
        self.by_script: defaultdict[str, list[int]] = defaultdict(list)

    def of(self, name: str) -> list[int]:
        return self.by_script[f"share/{name}"]


async def calls_so_far(store: Store) -> int:
    """Redis calls since the start of the server, without this one."""
    lines = (await store.command("INFO", "commandstats")).decode().splitlines()
    found = [line for line in lines if line.startswith("cmdstat_") and not line.startswith("cmdstat_info")]
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in found)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What each script calls, while scripts read few rows."""
    counted, run = Calls(), Store.run
    monkeypatch.setattr(records, "ROWS_PER_SCRIPT", ROWS_PER_SCRIPT, raising=False)

    async def counting(store: Store, script: Script, *args: Any) -> list[Any]:
        before = await calls_so_far(store)
        try:
            return await run(store, script, *args)
        finally:
            counted.by_script[script.name].append(await calls_so_far(store) - before - 1)

    monkeypatch.setattr(Store, "run", counting)
    return counted


async def full(shares: ShareWorld, name: str = "a", count: int = ROWS) -> Member:
    """A member that has acquired so many rows of one record in each of four share-partitions."""
    member = shares.member(name, "t4")
    await shares.joined(member)
    for partition in range(PARTITIONS):
        await shares.produce(*[1] * count, topic="t4", partition=partition)
    asked = member.sending(0, partitions=range(PARTITIONS), batch_size=1, max_records=1 << 30)
    (topic,) = (await asked.answer).responses
    assert [len(one.acquired_records) for one in topic.partitions] == [count] * PARTITIONS
    return member


def whole(kind: int, count: int = ROWS) -> dict[int, list[tuple[int, int, tuple[int, ...]]]]:
    """All records of each partition."""
    return {partition: [(0, count - 1, (kind,))] for partition in range(PARTITIONS)}


def assert_divided(calls: Sequence[int]) -> None:
    assert len(calls) > 1
    assert max(calls) <= CALLS_MAX, calls


async def counts(shares: ShareWorld) -> list[tuple[int, int]]:
    """Ranges that are locked and that are available, of each share-partition."""
    partitions = [shares.first("t4", partition) for partition in range(PARTITIONS)]
    found = await shares.brokers[0].context.shares.records.progress(shares.keys, partitions)
    return [(one.locked_ranges, one.available_ranges) for one in found]


async def test_release_reads_few_rows_in_a_script(shares: ShareWorld, calls: Calls) -> None:
    a = await full(shares)

    assert await a.fetch(epoch=-1) == ""

    assert_divided(calls.of("release_records"))
    assert await counts(shares) == [(0, ROWS)] * PARTITIONS


async def test_release_passes_over_the_rows_of_others(shares: ShareWorld, calls: Calls) -> None:
    a, b = await full(shares), shares.member("b", "t4")
    await shares.joined(b)
    await shares.produce(*[1] * 3, topic="t4", partition=2)
    assert await b.fetch(0, partitions=range(PARTITIONS)) == "2: 60-62x1"

    assert await b.fetch(epoch=-1) == ""

    assert_divided(calls.of("release_records"))
    assert await counts(shares) == [(ROWS, 0), (ROWS, 0), (ROWS, 1), (ROWS, 0)]
    assert await a.acknowledge(whole(ACCEPT)) == "NONE NONE NONE NONE"


async def test_acquire_expires_few_locks_in_a_script(shares: ShareWorld, calls: Calls) -> None:
    await full(shares)
    b = shares.member("b", "t4", broker=1)
    await shares.joined(b)
    calls.of("acquire_records").clear()
    await shares.clock.advance(LOCK_MS)

    got = await b.fetch(0, partitions=range(PARTITIONS), max_records=1 << 30)

    assert_divided(calls.of("acquire_records"))
    assert got == "0-59x2 1: 0-59x2 2: 0-59x2 3: 0-59x2"


async def test_acquire_finishes_few_rows_below_the_log_start_in_a_script(shares: ShareWorld, calls: Calls) -> None:
    a = await full(shares)
    assert await a.fetch(epoch=-1) == ""
    for partition in range(PARTITIONS):
        log = shares.brokers[0].logs.partition(shares.topics["t4"], partition)
        await log.delete_records(ROWS - 1)
    calls.of("acquire_records").clear()

    got = await a.fetch(0, partitions=range(PARTITIONS))

    assert_divided(calls.of("acquire_records"))
    assert got == "59-59x2 1: 59-59x2 2: 59-59x2 3: 59-59x2"


async def test_acquire_checks_few_rows_for_lost_keys_in_a_script(shares: ShareWorld, calls: Calls) -> None:
    a = await full(shares)
    for partition in range(PARTITIONS):
        _, _, acquired, locks = shares.keys.share(shares.first("t4").topic_id.hex, partition)
        await shares.brokers[0].store.command("DEL", acquired, locks)
    calls.of("acquire_records").clear()
    await shares.clock.advance(LOCK_MS)

    got = await a.fetch(max_records=1 << 30)

    assert_divided(calls.of("acquire_records"))
    assert got == "1: 0-59x2 2: 0-59x2 3: 0-59x2 0-59x2"


async def test_acquire_adds_few_new_rows_in_a_script(shares: ShareWorld, calls: Calls) -> None:
    await full(shares)

    assert max(calls.of("acquire_records")) <= 5 * ROWS_PER_SCRIPT


@pytest.mark.parametrize(
    ("kind", "locked", "available"),
    [(ACCEPT, 0, 0), (RELEASE, 0, ROWS), (REJECT, 0, 0), (RENEW, ROWS, 0)],
)
async def test_acknowledge_reads_few_rows_in_a_script(
    shares: ShareWorld, calls: Calls, kind: int, locked: int, available: int
) -> None:
    a = await full(shares)

    assert await a.acknowledge(whole(kind), is_renew_ack=kind == RENEW) == "NONE NONE NONE NONE"

    assert_divided(calls.of("acknowledge_records"))
    assert await counts(shares) == [(locked, available)] * PARTITIONS


async def test_acknowledge_expires_few_locks_in_a_script(shares: ShareWorld, calls: Calls) -> None:
    a = await full(shares)
    await shares.clock.advance(LOCK_MS)

    assert await a.acknowledge(whole(ACCEPT)) == " ".join([STATE] * PARTITIONS)

    assert_divided(calls.of("acknowledge_records"))
    assert await counts(shares) == [(0, ROWS)] * PARTITIONS


async def test_acknowledge_of_one_partition_is_never_divided(shares: ShareWorld, calls: Calls) -> None:
    a = await full(shares)
    assert await a.acknowledge({1: [(ROWS - 1, ROWS - 1, (ACCEPT,))]}) == "NONE"
    calls.of("acknowledge_records").clear()

    assert await a.acknowledge({**whole(ACCEPT), 2: [(0, ROWS, (ACCEPT,))]}) == f"NONE {STATE} {INVALID} NONE"

    assert await counts(shares) == [(0, 0), (ROWS - 1, 0), (ROWS, 0), (0, 0)]
    assert_divided(calls.of("acknowledge_records"))


async def test_acknowledge_sends_few_batches_in_a_script(shares: ShareWorld, calls: Calls) -> None:
    a = await full(shares)
    kinds = tuple(islice(cycle((ACCEPT, RELEASE)), ROWS))

    assert await a.acknowledge({one: [(0, ROWS - 1, kinds)] for one in range(PARTITIONS)}) == "NONE NONE NONE NONE"

    assert len(calls.of("acknowledge_records")) == PARTITIONS
    assert max(calls.of("acknowledge_records")) <= CALLS_MAX
    assert await counts(shares) == [(0, ROWS // 2)] * PARTITIONS


async def test_acknowledge_reports_what_is_known_though_a_later_script_fails(
    shares: ShareWorld, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, run = await full(shares), Store.run

    async def run_once(store: Store, script: Script, *args: Any) -> list[Any]:
        if script is ACKNOWLEDGE_RECORDS and calls.of("acknowledge_records"):
            raise StoreUnavailable("no answer")
        return await run(store, script, *args)

    monkeypatch.setattr(Store, "run", run_once)

    assert await a.acknowledge(whole(ACCEPT)) == f"NONE {STORAGE} {STORAGE} {STORAGE}"

    assert await counts(shares) == [(0, 0), (ROWS, 0), (ROWS, 0), (ROWS, 0)]


async def test_in_flight_reads_few_rows_in_a_script(shares: ShareWorld, calls: Calls) -> None:
    await full(shares)
    partitions = [shares.first("t4", partition) for partition in range(PARTITIONS)]

    found = await shares.brokers[0].context.shares.records.in_flight(shares.keys, partitions)

    assert [one.by_member if one else {} for one in found] == [{"member-a": ROWS}] * PARTITIONS
    assert len(calls.of("read_in_flight")) == PARTITIONS


async def test_few_rows_take_one_script(shares: ShareWorld, calls: Calls) -> None:
    a = await full(shares, count=3)
    partitions = [shares.first("t4", partition) for partition in range(PARTITIONS)]
    own = shares.brokers[0].context.shares.records
    calls.by_script.clear()

    await own.in_flight(shares.keys, partitions)
    assert await a.acknowledge(whole(RENEW, 3), is_renew_ack=True) == "NONE NONE NONE NONE"
    await own.release(shares.keys, Acquirer("member-a"), partitions)
    assert await a.fetch() == "1: 0-2x2 2: 0-2x2 3: 0-2x2 0-2x2"

    steps = ("read_in_flight", "acknowledge_records", "release_records", "acquire_records")
    assert {name: len(calls.of(name)) for name in steps} == dict.fromkeys(steps, 1)
    assert all(calls.of(name)[0] <= most for name, most in zip(steps, (32, 119, 78, 98), strict=True))


async def test_locks_of_lost_rows_are_removed(shares: ShareWorld, calls: Calls) -> None:
    a = await full(shares)
    store, (rows, _, acquired, locks) = shares.brokers[0].store, shares.keys.share(shares.first("t4").topic_id.hex, 0)
    await store.command("HDEL", rows, *map(str, range(50)))
    await store.command("ZREM", acquired, *map(str, range(55)))
    await shares.clock.advance(LOCK_MS)

    assert await a.acknowledge({0: [(59, 59, (ACCEPT,))]}) == STATE

    assert await store.command("ZCARD", locks) == 0
    assert_divided(calls.of("acknowledge_records"))


async def test_batches_of_one_record_are_acknowledged_as_one_range(shares: ShareWorld, calls: Calls) -> None:
    a = await full(shares)

    assert await a.acknowledge({0: [(0, ROWS - 1, (RENEW,))]}, is_renew_ack=True) == "NONE"
    assert await a.acknowledge({1: [(at, at, (RENEW,)) for at in range(ROWS)]}, is_renew_ack=True) == "NONE"

    together, apart = calls.of("acknowledge_records")
    assert apart == together <= 4 * ROWS
    assert await counts(shares) == [(ROWS, 0)] * PARTITIONS


class Kinds(tuple[int, ...]):
    """Acknowledge types that count how often they are read."""

    reads = 0

    def __iter__(self) -> Iterator[int]:
        self.reads += 1
        return super().__iter__()


def batch(first: int, kinds: Sequence[int]) -> SimpleNamespace:
    return SimpleNamespace(first_offset=first, last_offset=first + len(kinds) - 1, acknowledge_types=kinds)


async def test_kinds_change_a_limited_number_of_times() -> None:
    checked([batch(0, tuple(islice(cycle((GAP, ACCEPT)), RUNS_MAX + 1)))], allows_renewal=True)
    checked([batch(0, tuple(islice(cycle((RELEASE, ACCEPT)), RUNS_MAX)))], allows_renewal=True)
    changing = tuple(islice(cycle((RELEASE, ACCEPT)), RUNS_MAX + 1))

    for batches in ([batch(0, changing)], [batch(0, changing[:-3]), batch(RUNS_MAX, (ACCEPT, ACCEPT, REJECT, GAP))]):
        with pytest.raises(InvalidRequest, match="more than 10000 runs"):
            checked(batches, allows_renewal=True)


async def test_kinds_are_read_once() -> None:
    kinds = Kinds((GAP, ACCEPT, RELEASE, REJECT, RENEW))

    assert checked([batch(7, kinds)], allows_renewal=True) == [Acknowledgement(7, 11, b"11234")]

    assert kinds.reads == 1


async def test_acknowledge_splits_no_row_of_a_partition_with_too_many(shares: ShareWorld) -> None:
    a = shares.member("a")
    await shares.joined(a)
    await shares.produce(20)
    assert await a.fetch(0) == "0-19x1"
    text = scripts.read("lib/share_rows").replace("local ROWS_MAX = 20000", "local ROWS_MAX = 4")

    with replaced_include("lib/share_rows", text):
        assert await a.ack(0, 9, *islice(cycle((RELEASE, RENEW)), 10), is_renew_ack=True) == "NONE"
        assert await a.ack(10, 10) == INVALID
        assert await a.acknowledge({0: [(1, 1, (ACCEPT,)), (3, 3, (ACCEPT,)), (10, 19, (ACCEPT,))]}) == "NONE"


@pytest.mark.parametrize("rows", [1, 3, 10])
async def test_random_members_with_few_rows_in_a_script(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(records, "ROWS_PER_SCRIPT", rows)

    await run_random_members(shares, seed=rows, rounds=200)
