"""Requests time out in order, without a timer each."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tidegate.apis.timeouts import Timeouts, Waiting


@dataclass(eq=False)
class Request:
    name: str
    ended: list[str]
    watched: dict[Waiting, None] | None = None
    deadline_s: float = 0.0
    failure: Exception | None = None

    def time_out(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.answer()
        self.ended.append(self.name)

    def answer(self) -> None:
        assert self.watched is not None
        del self.watched[self]


async def test_unanswered_request_times_out():
    ended: list[str] = []
    timeouts = Timeouts()
    requests = [Request(name, ended) for name in ("a", "b", "c", "d")]
    for request, timeout_ms in zip(requests, (160, 20, 100, 60_000), strict=True):
        timeouts.watch(request, timeout_ms)
    requests[1].answer()
    await asyncio.sleep(0.3)

    assert ended == ["c", "a"]
    assert requests[3].watched == {requests[3]: None}
    assert list(timeouts._queues) == [600]


async def test_answered_requests_are_released_behind_one_that_waits():
    timeouts, ended = Timeouts(), []  # type: ignore[var-annotated]
    timeouts.watch(Request("waits", ended), 30_000)
    for i in range(1_000):
        request = Request(str(i), ended)
        timeouts.watch(request, 30_000)
        request.answer()
    assert [request.name for request in timeouts._queues[300]] == ["waits"]


async def test_requests_that_differ_in_their_timeouts_share_timers():
    timeouts, ended = Timeouts(), []  # type: ignore[var-annotated]
    for timeout_ms in (*range(29_000, 30_000), 1_000_000, 2**31 - 1):
        timeouts.watch(Request(str(timeout_ms), ended), timeout_ms)
    assert list(timeouts._queues) == [*range(290, 301), 6_000]


async def test_negative_timeout_is_the_shortest():
    ended: list[str] = []
    timeouts = Timeouts()
    timeouts.watch(Request("a", ended), -5)
    await asyncio.sleep(0)
    assert ended == [], "an append takes a moment"
    await asyncio.sleep(0.15)
    assert ended == ["a"] and timeouts._queues == {}


async def test_requests_behind_one_that_fails_time_out():
    ended: list[str] = []
    timeouts = Timeouts()
    timeouts.watch(Request("a", ended, failure=MemoryError()), 20)
    timeouts.watch(Request("b", ended), 20)
    async with asyncio.timeout(30):
        while ended != ["b"]:
            await asyncio.sleep(0.001)
        timeouts.watch(Request("c", ended), 20)
        while ended != ["b", "c"]:
            await asyncio.sleep(0.001)
    assert timeouts._queues == {}
