"""Equal fetches wait behind one of them, and each is answered as if it waited by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.log_broker import Asked, Connection, fetch_request
from tests.unit.apis.fakes import BATCH_BYTES, FakeBroker, FakeLog
from tidegate.apis.equal_fetches import EqualFetch, connection_of
from tidegate.errors import StoreUnavailable

WAIT_MS = 30_000
TICKS = 6
"""Rounds of the event loop after which nothing happens any more."""


class Clock:
    """The running loop's time, which a test moves."""

    def __init__(self) -> None:
        self.added_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time

    def __call__(self) -> float:
        return self._time() + self.added_s

    async def advance(self, seconds: float) -> None:
        """Let time pass, and what is due then run."""
        self.added_s += seconds
        await run_callbacks()


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The loop's time."""
    clock = Clock()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", clock)
    return clock


class Waiting:
    """A broker with one log, at whose end clients wait."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.log.subscribed = True
        self.broker = FakeBroker([self.log])
        self.connections: list[Connection] = []

    def send(self, count: int = 1, org: str = "default", **fields: Any) -> list[Asked]:
        """Have new clients send the same request."""
        request = fetch_request([("t", [(0, self.log.end)])], **{"max_wait_ms": WAIT_MS} | fields)
        connections = [self.broker.connect(len(self.connections) + number) for number in range(count)]
        self.connections += connections
        for connection in connections:
            connection.client.org = org
        return [connection.send(request) for connection in connections]

    @property
    def evaluated(self) -> int:
        """Fetches that listen to the log by themselves."""
        return sum(len(end.waiting) for end in self.broker.context.log_ends._ends.values())

    @property
    def parked(self) -> int:
        """Fetches that wait, by themselves or in a queue."""
        return sum(map(len, self.broker.context.fetch_waits._parked.values()))


async def run_callbacks() -> None:
    for _ in range(TICKS):
        await asyncio.sleep(0)


def answered(asked: Sequence[Asked]) -> list[bool]:
    return [one.answer.done() for one in asked]


def sizes(asked: Sequence[Asked]) -> list[int]:
    """Bytes of records in each answer."""
    return [len(one.answer.result().responses[0].partitions[0].records or b"") for one in asked]


async def test_equal_fetches_one_is_evaluated():
    waiting = Waiting()
    asked = waiting.send(1_000)
    before = len(waiting.log.reads)

    assert (waiting.evaluated, waiting.parked) == (1, 1_000)
    waiting.log.grow()
    await run_callbacks()

    assert sizes(asked) == [BATCH_BYTES] * 1_000 and len({one.body for one in asked}) == 1
    assert (len(waiting.log.reads) - before, waiting.evaluated, waiting.parked) == (1, 0, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"isolation_level": 1}, {"max_bytes": 10}, {"min_bytes": 2}, {"version": 11}, {"session": (0, 0)},
        {"org": "other"},
    ],
)  # fmt: skip
async def test_equal_fetches_different_request_is_evaluated(fields: dict[str, Any]):
    waiting = Waiting()
    waiting.send()
    waiting.send(**fields)

    assert (waiting.evaluated, waiting.parked) == (2, 2)


async def test_equal_fetches_sessions_are_evaluated():
    waiting = Waiting()
    waiting.send(3, session=(0, 0))

    assert (waiting.evaluated, waiting.parked) == (3, 3)


async def test_equal_fetches_changed_catalog_is_evaluated():
    waiting = Waiting()
    waiting.send()
    waiting.broker.context.catalog.version += 1
    waiting.send(2)

    assert (waiting.evaluated, waiting.parked) == (2, 3)


async def test_equal_fetches_after_unread_change_is_answered():
    waiting = Waiting()
    first = waiting.send()
    waiting.log.end += 1
    request = fetch_request([("t", [(0, 0)])], max_wait_ms=WAIT_MS)
    late = waiting.broker.connect(9).send(request)

    assert (answered(first), answered([late])) == ([False], [True])


async def test_equal_fetches_each_waits_its_own_time(clock: Clock):
    waiting = Waiting()
    asked = []
    for _ in range(3):
        asked += waiting.send()
        await clock.advance(10)
    assert (answered(asked), waiting.evaluated) == ([True, False, False], 1)
    await clock.advance(10)
    assert (answered(asked), waiting.evaluated) == ([True, True, False], 1)
    asked += waiting.send()
    assert waiting.evaluated == 1
    waiting.log.grow()
    await run_callbacks()

    assert sizes(asked) == [0, 0, BATCH_BYTES, BATCH_BYTES]
    assert waiting.parked == 0


async def test_equal_fetches_of_one_moment_end_together(clock: Clock):
    waiting = Waiting()
    asked = waiting.send(100)
    await clock.advance(WAIT_MS / 1_000 + 1)

    assert sizes(asked) == [0] * 100
    assert (waiting.evaluated, waiting.parked, len(waiting.broker.context.first_fetches)) == (0, 0, 0)


async def test_equal_fetches_closed_clients_are_removed(clock: Clock):
    waiting = Waiting()
    asked = waiting.send(5)
    for number in (3, 0, 1):
        waiting.connections[number].close()
    assert (waiting.evaluated, waiting.parked) == (1, 2)
    waiting.log.grow()
    await run_callbacks()

    assert answered(asked) == [False, False, True, False, True]
    assert not waiting.log.listeners


async def test_equal_fetches_closed_first_client_hands_over_its_deadline(clock: Clock):
    waiting = Waiting()
    asked = waiting.send(2)
    await clock.advance(20)
    waiting.connections[0].close()
    await clock.advance(11)

    assert answered(asked) == [False, True]


async def test_equal_fetches_drain_answers_all():
    waiting = Waiting()
    asked = waiting.send(50)
    await run_callbacks()
    waiting.broker.draining.set()
    await run_callbacks()
    asked += waiting.send(2)

    assert sizes(asked) == [0] * 52
    assert (waiting.evaluated, waiting.parked) == (0, 0)


async def test_equal_fetches_fewer_bytes_than_asked_for_wait_on(clock: Clock):
    waiting = Waiting()
    asked = waiting.send(3, min_bytes=2 * BATCH_BYTES)
    waiting.log.grow()
    await run_callbacks()
    assert (answered(asked), waiting.parked) == ([False] * 3, 3)
    waiting.log.grow()
    await run_callbacks()

    assert sizes(asked) == [2 * BATCH_BYTES] * 3


async def test_equal_fetches_slow_read_delays_no_deadline(clock: Clock):
    waiting = Waiting()
    asked = waiting.send(3)
    waiting.log.held = True
    waiting.log.grow()
    await run_callbacks()
    await clock.advance(WAIT_MS / 1_000 + 1)
    waiting.log.release()
    await run_callbacks()

    assert sizes(asked) == [0, BATCH_BYTES, BATCH_BYTES]
    assert waiting.parked == 0


async def test_equal_fetches_unavailable_store_is_reported_to_all(clock: Clock):
    waiting = Waiting()
    asked = waiting.send(3)
    waiting.log.failure = StoreUnavailable("connection lost")
    waiting.log.grow()
    await run_callbacks()
    for _ in range(3):
        await clock.advance(0.2)

    assert [one.answer.result().responses[0].partitions[0].error_code.value for one in asked] == [56] * 3


async def test_equal_fetches_failed_reply_closes_its_connection_only(monkeypatch: pytest.MonkeyPatch):
    waiting = Waiting()
    asked = waiting.send(4)
    (queued,) = waiting.broker.context.fetch_waits._parked[2]
    assert isinstance(queued, EqualFetch)
    monkeypatch.setattr(queued._call, "reply", lambda body: 1 / 0)
    waiting.log.grow()
    await run_callbacks()

    assert [one.closed for one in asked] == [None, None, "Fetch v12 failed", None]
    assert answered(asked) == [True] * 4


async def test_fetch_connection_is_known_to_mirror_until_it_closes():
    waiting = Waiting()
    mirror: Any = SimpleNamespace(connections=set(), fetched_together=lambda *_: None)
    waiting.broker.context.mirror = mirror
    waiting.send(2)
    assert mirror.connections == {0, 1}
    waiting.connections[1].close()

    assert mirror.connections == {0}


async def test_connection_of_is_one_object_per_client_id():
    waiting = Waiting()
    waiting.send()
    (fetch,) = waiting.broker.context.fetch_waits._parked[0]
    call: Any = fetch._call  # type: ignore[attr-defined]
    first, second = connection_of(call), connection_of(call)
    call.client_id = "other"

    assert first is second and first == ("test", "/127.0.0.1", 0)
    assert connection_of(call) == ("other", "/127.0.0.1", 0)


async def test_equal_fetches_of_one_moment_end_in_slices(clock: Clock):
    waiting = Waiting()
    asked = waiting.send(1_000)
    clock.added_s += WAIT_MS / 1_000 + 1
    ended = [0]
    while ended[-1] < 1_000:
        await asyncio.sleep(0)
        ended.append(sum(answered(asked)))

    assert max(after - before for before, after in pairwise(ended)) <= 101
    assert (waiting.evaluated, waiting.parked) == (0, 0)


async def test_equal_fetches_failed_report_leaves_none_waiting():
    waiting = Waiting()
    waiting.broker.context.mirror = SimpleNamespace(connections=set(), fetched_together=lambda *_: 1 / 0)
    asked = waiting.send(600)
    waiting.log.grow()
    await run_callbacks()

    assert sizes(asked) == [BATCH_BYTES] * 600
    assert waiting.parked == 0


async def test_equal_fetches_joined_during_a_read_are_answered_by_another():
    waiting = Waiting()
    asked = waiting.send(2)
    waiting.log.held = True
    waiting.log.grow()
    await run_callbacks()
    waiting.log.held = False
    waiting.log.end -= 1  # lost in a fail-over
    waiting.log.changed()
    await run_callbacks()
    asked += waiting.send()
    waiting.log.grow()
    waiting.log.release()
    await run_callbacks()

    assert sizes(asked) == [BATCH_BYTES] * 3
    assert waiting.parked == 0
