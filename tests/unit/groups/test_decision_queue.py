"""Work of clients that may have given up, decisions on an old copy, and the memory of large groups."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.errors import CoordinatorLoadInProgress, KafkaError
from tidegate.groups import decision_queue
from tidegate.groups.decision_queue import GIVEN_UP_S, LATE_S, DecisionQueue, StaleDecision
from tidegate.memory import MemoryShares
from tidegate.store.keys import GroupKeys

KEYS = GroupKeys.of("t", 1, "default", "g")
OTHERS = [GroupKeys.of("t", 1, "default", f"other-{number}") for number in range(4)]


@dataclass
class Held:
    held_bytes: int
    members: Sequence[str] = ("m",)
    version: int = 0


@dataclass
class Client:
    closed: bool = False


@dataclass
class Request:
    """One that came when the test began."""

    client: Client = field(default_factory=Client)
    arrived_s: float = 100.0


class Decisions(DecisionQueue[str, str, Held]):
    """Answers the work; the next decisions are stale as often as `stale` says, and take `during`."""

    def __init__(self, sizes: dict[str, int] | None = None) -> None:
        async def read(command: str, key: str, name: str) -> bytes | None:
            assert (command, name) == ("HGET", "held_bytes")
            return str((sizes or {}).get(key, 0)).encode()

        store: Any = SimpleNamespace(read=read)
        super().__init__(store, "test", MemoryShares.of(384 << 20))
        self.decided: list[list[str | None]] = []
        self.stale = 0
        self.during: list[Any] = []
        self.reading: list[Any] = []
        self.at_work = self.most_at_work = 0

    async def _read_for(self, keys: GroupKeys, works: Sequence[str | None]) -> Held:
        if self.reading:
            self.reading.pop()()
        return Held(1)

    async def _decide(self, keys: GroupKeys, base: Held, works: Sequence[str | None]) -> Sequence[str | KafkaError]:
        self.decided.append(list(works))
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        await asyncio.sleep(0.001)
        self.at_work -= 1
        if self.during:
            self.during.pop()()
        if self.stale:
            self.stale -= 1
            raise StaleDecision
        return [str(work) for work in works]


@dataclass
class Moved:
    """The clock, which a test moves on."""

    s: float = 100.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture(autouse=True)
def moved(monkeypatch: pytest.MonkeyPatch) -> Moved:
    moved = Moved()
    monkeypatch.setattr(decision_queue, "perf_counter", moved)
    return moved


async def test_decision_on_an_old_copy_is_repeated() -> None:
    decisions = Decisions()
    decisions.stale = 2
    assert await decisions.run(KEYS, "join", Request()) == "join"
    assert decisions.decided == [["join"]] * 3


async def test_group_that_always_changes_is_answered() -> None:
    decisions = Decisions()
    decisions.stale = 1_000
    with pytest.raises(CoordinatorLoadInProgress):
        await decisions.run(KEYS, "join", Request())


@pytest.mark.parametrize(("gap_s", "closed"), [(LATE_S, False), (GIVEN_UP_S, True)])
async def test_join_is_not_repeated_for_a_client_that_may_have_given_up(
    moved: Moved, gap_s: float, closed: bool
) -> None:
    decisions, request = Decisions(), Request()
    decisions.stale = 1

    def stand_still() -> None:
        moved.s += gap_s + 1
        request.client.closed = closed

    decisions.during = [stand_still]
    with pytest.raises(CoordinatorLoadInProgress):
        await decisions.run(KEYS, "join", request)
    assert decisions.decided == [["join"]]


async def test_join_that_waited_for_its_group_is_refused_before_it_is_decided(moved: Moved) -> None:
    decisions, request = Decisions(), Request()

    def stand_still() -> None:
        moved.s += GIVEN_UP_S + 1
        request.client.closed = True

    decisions.reading = [stand_still]
    with pytest.raises(CoordinatorLoadInProgress):
        await decisions.run(KEYS, "join", request)
    assert decisions.decided == []


async def test_work_that_waited_behind_a_stop_is_refused_and_later_work_is_done(moved: Moved) -> None:
    decisions, gone = Decisions(), Request()
    answers: dict[str, Any] = {}

    def stand_still() -> None:
        moved.s += GIVEN_UP_S + 1
        gone.client.closed = True
        decisions.submit(KEYS, "new", lambda answer: answers.update(new=answer), Request(arrived_s=moved.s))

    def queue() -> None:
        decisions.submit(KEYS, "leave", lambda answer: answers.update(leave=answer), gone)
        decisions.submit(KEYS, None, lambda answer: answers.update(expiry=answer))
        stand_still()

    decisions.during = [queue]
    assert await decisions.run(KEYS, "first", Request()) == "first"
    while len(answers) < 3:
        await asyncio.sleep(0)

    assert isinstance(answers.pop("leave"), CoordinatorLoadInProgress)
    assert answers == {"new": "new", "expiry": "None"}
    assert decisions.decided == [["first"], [None, "new"]]


@pytest.mark.parametrize(("waited_s", "closed"), [(LATE_S, False), (GIVEN_UP_S, True)])
async def test_join_that_waited_before_it_was_queued_is_refused(moved: Moved, waited_s: float, closed: bool) -> None:
    decisions = Decisions()
    moved.s += waited_s + 1
    with pytest.raises(CoordinatorLoadInProgress):
        await decisions.run(KEYS, "join", Request(Client(closed)))
    assert decisions.decided == []


async def test_leave_of_a_client_that_closed_its_connection_is_done() -> None:
    decisions = Decisions()
    assert await decisions.run(KEYS, "leave", Request(Client(closed=True))) == "leave"


async def test_large_groups_are_decided_on_one_after_the_other() -> None:
    large = Decisions({keys.group: 1 << 30 for keys in OTHERS})
    small = Decisions()
    for decisions in (large, small):
        await asyncio.gather(*(decisions.run(keys, "join") for keys in OTHERS))

    assert (large.most_at_work, small.most_at_work) == (1, len(OTHERS))


async def test_cached_groups_have_their_share_of_memory() -> None:
    decisions = Decisions()
    share = MemoryShares.of(384 << 20).groups
    for keys in OTHERS:
        decisions._remember(keys, Held(share // 3), 7)
    assert [decisions.cached.get(keys.group) is not None for keys in OTHERS] == [False, False, True, True]
    assert decisions.cached.bytes <= share

    decisions._remember(OTHERS[3], Held(1, members=()), 8)
    assert [decisions.cached.get(keys.group) is not None for keys in OTHERS] == [False, False, True, False]
    decisions._remember(OTHERS[0], Held(9 * share), 8)
    assert [decisions.cached.get(keys.group) is not None for keys in OTHERS] == [True, False, False, False]
