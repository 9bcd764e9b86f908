"""Which waiting fetches of share groups read again: one for each change, and two more where one found records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import uvloop

from tidegate.groups.share.sessions import SharePartition
from tidegate.groups.share.wakeups import GroupWakeups, ShareWakeups
from tidegate.store.keys import GroupKeys

KEYS = GroupKeys.of("tidegate", 50, "default", "jobs")
P0, P1 = SharePartition(UUID(int=1), 0), SharePartition(UUID(int=1), 1)
NONE = -1


class Log:
    """A log that grows on command."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def grow(self) -> None:
        for listener in list(self.listeners):
            listener()


class Fetch:
    """A waiting fetch, and how often it was resumed."""

    def __init__(self, *partitions: SharePartition) -> None:
        self.partitions = frozenset(partitions or (P0,))
        self.resumed = 0

    def resume(self) -> None:
        self.resumed += 1


class Channels:
    """Redis's channels, subscribed at once."""

    def __init__(self) -> None:
        self.listeners: list[Any] = []

    def listen(self, channel: str, listener: Any) -> asyncio.Future[None]:
        self.listeners.append(listener)
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def forget(self, channel: str, listener: Any) -> None:
        self.listeners.remove(listener)

    def publish(self, ref: str | None) -> None:
        for listener in list(self.listeners):
            listener(None if ref is None else ref.encode())


class World:
    """A broker's waiting fetches."""

    def __init__(self) -> None:
        self.channels = Channels()
        self.wakeups = ShareWakeups(self.channels)  # type: ignore[arg-type]
        self.logs = {P0: Log(), P1: Log()}

    def wait(self, *fetches: Fetch) -> GroupWakeups:
        for fetch in fetches:
            group = self.wakeups.join(KEYS, fetch, {one: self.logs[one] for one in fetch.partitions})
        return group

    def leave(self, *fetches: Fetch) -> None:
        for fetch in fetches:
            self.wakeups.leave(KEYS, fetch)


def resumed(fetches: Iterable[Fetch]) -> list[int]:
    return [fetch.resumed for fetch in fetches]


async def test_append_resumes_the_fetch_that_waited_longest() -> None:
    world, fetches = World(), [Fetch() for _ in range(100)]
    world.wait(*fetches)

    world.logs[P0].grow()

    assert (fetches[0].resumed, sum(resumed(fetches))) == (1, 1)


async def test_fetch_without_records_resumes_none() -> None:
    world, fetches = World(), [Fetch() for _ in range(100)]
    group = world.wait(*fetches)
    world.logs[P0].grow()

    group.done(fetches[0], found=False, unlocks_in_ms=NONE)

    assert sum(resumed(fetches)) == 1


async def test_fetch_with_records_resumes_two_others() -> None:
    world, fetches = World(), [Fetch() for _ in range(5)]
    group = world.wait(*fetches)
    world.logs[P0].grow()

    group.done(fetches[0], found=True, unlocks_in_ms=NONE)
    world.leave(fetches[0])

    assert resumed(fetches[1:]) == [1, 1, 0, 0]


async def test_change_while_the_only_fetch_reads_makes_it_read_again() -> None:
    world, fetch = World(), Fetch()
    group = world.wait(fetch)
    world.logs[P0].grow()
    world.logs[P0].grow()
    assert fetch.resumed == 1

    group.done(fetch, found=False, unlocks_in_ms=NONE)

    assert fetch.resumed == 2


async def test_change_while_another_reads_resumes_the_next() -> None:
    world, fetches = World(), [Fetch(), Fetch()]
    world.wait(*fetches)

    world.logs[P0].grow()
    world.logs[P0].grow()

    assert resumed(fetches) == [1, 1]


async def test_fetch_that_leaves_while_it_reads_passes_its_change_on() -> None:
    world, fetches = World(), [Fetch(), Fetch()]
    world.wait(*fetches)
    world.logs[P0].grow()

    world.leave(fetches[0])

    assert fetches[1].resumed == 1


async def test_released_records_resume_one_fetch_for_each_partition() -> None:
    world, fetches = World(), [Fetch(P0), Fetch(P0), Fetch(P1), Fetch(P1), Fetch(P0, P1)]
    world.wait(*fetches)

    world.channels.publish(KEYS.ref)

    assert resumed(fetches) == [1, 0, 1, 0, 0]


async def test_records_of_other_groups_resume_none() -> None:
    world, fetch = World(), Fetch()
    world.wait(fetch)

    world.channels.publish("default/other")

    assert fetch.resumed == 0


async def test_lost_subscription_resumes_as_a_change() -> None:
    world, fetch = World(), Fetch()
    world.wait(fetch)

    world.channels.publish(None)

    assert fetch.resumed == 1


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.005)


async def test_expired_lock_resumes_one_fetch() -> None:
    world, fetches = World(), [Fetch() for _ in range(10)]
    group = world.wait(*fetches)
    for fetch in fetches:
        group.done(fetch, found=False, unlocks_in_ms=20)
    assert sum(resumed(fetches)) == 0

    await until(lambda: sum(resumed(fetches)) > 0)

    assert sum(resumed(fetches)) == 1


async def test_later_lock_is_followed_after_the_first() -> None:
    world, fetch = World(), Fetch()
    group = world.wait(fetch)
    group.done(fetch, found=False, unlocks_in_ms=20)
    await until(lambda: fetch.resumed == 1)

    group.done(fetch, found=False, unlocks_in_ms=20)

    await until(lambda: fetch.resumed == 2)


def test_lock_that_expired_meanwhile_is_awaited_on_the_loop_of_brokers() -> None:
    async def scenario() -> None:
        world, fetch = World(), Fetch()
        group = world.wait(fetch)
        group._unlocks_at_s[P1] = asyncio.get_running_loop().time() - 1.0  # as on a machine that was busy meanwhile
        for _ in range(2):
            group.done(fetch, found=False, unlocks_in_ms=60_000)
        async with asyncio.timeout(30):
            while P1 in group._unlocks_at_s:
                await asyncio.sleep(0.001)
        assert P0 in group._unlocks_at_s
        group.close()

    uvloop.run(scenario())


async def test_lock_that_another_fetch_found_released_is_not_awaited() -> None:
    world, fetches = World(), [Fetch(), Fetch()]
    group = world.wait(*fetches)
    group.done(fetches[0], found=False, unlocks_in_ms=20)

    group.done(fetches[1], found=False, unlocks_in_ms=NONE)

    await asyncio.sleep(0.1)
    assert resumed(fetches) == [0, 0]


async def test_nothing_is_followed_without_a_waiting_fetch() -> None:
    world, fetches = World(), [Fetch(P0, P1), Fetch(P1)]
    group = world.wait(*fetches)
    group.done(fetches[0], found=False, unlocks_in_ms=60_000)

    world.leave(*fetches)

    assert world.wakeups.find(KEYS) is None
    assert (world.channels.listeners, world.logs[P0].listeners, world.logs[P1].listeners) == ([], [], [])


async def test_listening_is_equal_only_where_nothing_changed() -> None:
    world, fetch = World(), Fetch()
    group = world.wait(fetch)
    before = group.listening([P0])

    assert before is not None
    assert group.listening([P0]) == before
    assert group.listening([P0, P1]) is None
    world.logs[P0].grow()
    assert group.listening([P0]) != before


async def test_listening_differs_where_it_was_interrupted() -> None:
    world, fetches = World(), [Fetch(P0), Fetch(P1)]
    group = world.wait(*fetches)
    before = group.listening([P0])

    world.leave(fetches[0])
    world.wait(Fetch(P0))

    assert group.listening([P0]) != before


async def test_replaced_log_is_followed() -> None:
    world, fetches = World(), [Fetch(), Fetch()]
    world.wait(fetches[0])
    former, world.logs[P0] = world.logs[P0], Log()

    world.wait(fetches[1])
    world.logs[P0].grow()
    assert sum(resumed(fetches)) == 1
    world.leave(*fetches)
    assert (former.listeners, world.logs[P0].listeners) == ([], [])
