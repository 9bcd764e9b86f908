"""Commits that Redis executes late, or a second time, behind what was acknowledged since they came to their broker."""

from __future__ import annotations

import asyncio
import json
from time import perf_counter
from typing import Any

import pytest

from tests.support.clock import SteppedClock
from tests.support.consumers import ConsumerWorld
from tests.support.handlers import given_group
from tidegate.errors import CoordinatorNotAvailable
from tidegate.groups import offsets
from tidegate.groups.commits import Commit, QueuedBatch, commit_arguments, sent_again
from tidegate.groups.consumer.commits import COMMIT_CONSUMER_OFFSETS
from tidegate.groups.offset_reset import OffsetMove, reset_offsets
from tidegate.groups.offsets import COMMIT_OFFSETS, Offsets, entry_json, offset_field
from tidegate.store.keys import GroupKeys
from tidegate.store.store import Store

NONE, NOT_AVAILABLE = 0, 15


class LateCommits:
    """Commits of t1:0 by a member, or by anybody, as Redis executes them some time after they came to a broker."""

    def __init__(self, clock: SteppedClock, store: Store, keys: GroupKeys) -> None:
        self.clock, self.store, self.keys = clock, store, keys
        self.generation, self.member_id = 2, "a"

    async def run(self, *offsets: int, arrived_ms: int | str, again: bool = False) -> list[int]:
        """The codes of commits that a broker sent together; each may have a time of its own."""
        commits: list[QueuedBatch] = [
            (Commit(self.generation, self.member_id, None, [offset_field("t1", 0), entry_json(one, -1, "", "")]), print)
            for one in offsets
        ]
        times: Any = (1 << 50, arrived_ms)
        names, args = commit_arguments([(self.keys, commits)], 0, "1", sent_again(times) if again else times)
        return list(await self.store.run(COMMIT_OFFSETS, names, *args))

    async def offset(self) -> int | None:
        value = await self.store.command("HGET", self.keys.offsets, "t1:0")
        return None if value is None else int(json.loads(value)["offset"])

    async def of_anybody(self) -> tuple[Store, GroupKeys]:
        """Commit without membership from here on."""
        await self.store.command("DEL", self.keys.members, self.keys.sessions)
        await given_group(self.store, self.keys, state="Empty", generation=0, members=(), subscribed=None)
        self.generation, self.member_id = -1, ""
        return self.store, self.keys


@pytest.fixture
async def late_commits(clock: SteppedClock, clock_store: Store) -> LateCommits:
    """Of the member a, generation 2."""
    keys = clock_store.group_keys("default", "orders")
    await given_group(clock_store, keys, generation=2, members=["a"])
    return LateCommits(clock, clock_store, keys)


@pytest.mark.parametrize("again", [False, True], ids=["late", "again"])
@pytest.mark.parametrize("wanted", [(5, 9), (9, 5)])
async def test_late_commits_in_order_are_all_stored(
    late_commits: LateCommits, wanted: tuple[int, int], again: bool
) -> None:
    """Of one client that waits for no answer, in scripts one after the other, or in one: as after a pause of Redis."""
    now_ms = late_commits.clock.now_ms
    await late_commits.clock.advance(3_000)
    assert await late_commits.run(*wanted, arrived_ms=now_ms, again=again) == [NONE, NONE]
    assert await late_commits.offset() == wanted[1]
    assert await late_commits.run(7, arrived_ms=now_ms + 100, again=again) == [NONE]
    assert await late_commits.run(8, arrived_ms=now_ms + 50, again=again) == [NOT_AVAILABLE]
    assert await late_commits.offset() == 7


async def test_late_commit_of_the_stored_offset_does_not_age_it(late_commits: LateCommits) -> None:
    """The client had it stored through another broker; what it had sent behind it is late as well."""
    now_ms = late_commits.clock.now_ms
    await late_commits.clock.advance(1_000)
    assert await late_commits.run(5, arrived_ms=now_ms + 1_000) == [NONE]
    assert await late_commits.run(5, 9, arrived_ms=now_ms) == [NONE, NOT_AVAILABLE]
    assert await late_commits.run(9, arrived_ms=now_ms + 100) == [NOT_AVAILABLE]
    assert await late_commits.offset() == 5


async def test_prompt_commit_with_a_late_one_in_its_script_is_not_late(late_commits: LateCommits) -> None:
    """It waited for the catalogue, the other did not."""
    now_ms = late_commits.clock.now_ms
    await late_commits.clock.advance(1_000)
    assert await late_commits.run(5, arrived_ms=now_ms + 1_000) == [NONE]
    await late_commits.clock.advance(1_000)
    assert await late_commits.run(3, 9, arrived_ms=f"{now_ms} {now_ms + 2_000}") == [NOT_AVAILABLE, NONE]
    assert await late_commits.offset() == 9


@pytest.mark.parametrize("waited_s", [(2.0, 0.0), (0.0, 2.0)])
async def test_commit_of_a_tick_is_as_late_as_itself(
    clock: SteppedClock, clock_store: Store, waited_s: tuple[float, float]
) -> None:
    groups = [clock_store.group_keys("default", name) for name in ("orders", "payments")]
    for keys in groups:
        await given_group(clock_store, keys, generation=2, members=["a"])
    queue = Offsets(clock_store)

    async def commit(offset: int, *waited: float) -> list[int]:
        clock_store.clock.observe(clock.now_ms, 0.0)
        answers = [asyncio.get_running_loop().create_future() for _ in waited]
        for keys, one_s, answer in zip(groups, waited, answers, strict=True):
            entries = [offset_field("t1", 0), entry_json(offset, -1, "", "")]
            one = Commit(2, "a", None, entries, arrived_s=perf_counter() - one_s)
            queue.commit(keys, one, answer.set_result)
        return await asyncio.wait_for(asyncio.gather(*answers), 30)

    assert await commit(5, 0.0, 0.0) == [NONE, NONE]
    await clock.advance(1_000)
    assert await commit(9, *waited_s) == [NOT_AVAILABLE if one else NONE for one in waited_s]


async def test_late_commit_does_not_undo_the_deletion_of_its_offset(late_commits: LateCommits) -> None:
    """By OffsetDelete, of a group that anybody commits to."""
    store, keys = await late_commits.of_anybody()
    now_ms = late_commits.clock.now_ms
    assert await late_commits.run(5, arrived_ms=now_ms) == [NONE]
    await late_commits.clock.advance(1_000)
    assert await offsets.delete(store, keys, "1", {"t1": [0]}) == set()
    assert await late_commits.run(7, arrived_ms=now_ms + 100) == [NOT_AVAILABLE]
    assert await late_commits.offset() is None
    assert await late_commits.run(7, arrived_ms=late_commits.clock.now_ms) == [NONE]


@pytest.mark.parametrize("offset", [None, 3])
async def test_late_commit_does_not_undo_a_reset(late_commits: LateCommits, offset: int | None) -> None:
    store, keys = await late_commits.of_anybody()
    now_ms = late_commits.clock.now_ms
    assert await late_commits.run(5, arrived_ms=now_ms) == [NONE]
    await late_commits.clock.advance(1_000)
    await reset_offsets(store, keys, [OffsetMove("t1", "", 0, offset)], fence=False)
    assert await late_commits.run(7, arrived_ms=now_ms + 100) == [NOT_AVAILABLE]
    assert await late_commits.offset() == offset


@pytest.mark.parametrize("again", [False, True], ids=["late", "again"])
async def test_late_commits_of_a_member_with_an_epoch(consumers: ConsumerWorld, again: bool) -> None:
    """They keep their order, and do not undo what was committed or deleted since."""
    (member,) = await consumers.joined(consumers.peer("a", "t1"))
    store, keys = consumers.store, consumers.keys
    now_ms = consumers.clock.now_ms

    async def run(offset: int, arrived_ms: int) -> int:
        entries = [offset_field("t1", 0), entry_json(offset, -1, "", "")]
        args: list[Any] = [
            1 << 50,
            -arrived_ms if again else arrived_ms,
            member.epoch,
            member.member_id,
            0,
            1,
            *entries,
        ]
        names = [keys.group, keys.consumers, keys.consumer_sessions, keys.revocations, keys.offsets]
        try:
            await store.run(COMMIT_CONSUMER_OFFSETS, names, *args)
        except CoordinatorNotAvailable:
            return NOT_AVAILABLE
        return NONE

    await consumers.clock.advance(1_000)
    assert [await run(offset, now_ms + arrived_ms) for offset, arrived_ms in ((9, 0), (5, 100), (7, 50))] == [
        NONE, NONE, NOT_AVAILABLE,
    ]  # fmt: skip
    assert await run(5, now_ms) == NONE
    assert await run(8, now_ms + 200) == NOT_AVAILABLE, "the same offset was stored with the present time"
    await store.command("HDEL", keys.offsets, "t1:0")
    await store.command("HSET", keys.group, "offsets_deleted_at", now_ms + 300)
    assert await run(8, now_ms + 299) == NOT_AVAILABLE
    assert await run(8, now_ms + 300) == NONE
