"""Requests time out in order, without a timer each."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tidegate.apis.timeouts import Timeouts


@dataclass(eq=False)
class Request:
    name: str
    ended: list[str]
    answered: bool = False
    deadline_s: float = 0.0
    failure: Exception | None = None

    def time_out(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.answered = True
        self.ended.append(self.name)


async def test_unanswered_request_times_out():
    ended: list[str] = []
    timeouts = Timeouts()
    requests = [Request(name, ended) for name in ("a", "b", "c", "d")]
    for request, timeout_ms in zip(requests, (60, 20, 20, 60_000), strict=True):
        timeouts.watch(request, timeout_ms)
    requests[1].answered = True
    await asyncio.sleep(0.15)

    assert ended == ["c", "a"]
    assert not requests[3].answered
    assert list(timeouts._queues) == [60_000]


async def test_answered_requests_are_released():
    timeouts, ended = Timeouts(), []  # type: ignore[var-annotated]
    for i in range(1_000):
        request = Request(str(i), ended)
        timeouts.watch(request, 30_000)
        request.answered = True
    assert len(timeouts._queues[30_000]) == 1


async def test_negative_timeout_is_none():
    ended: list[str] = []
    Timeouts().watch(Request("a", ended), -5)
    await asyncio.sleep(0.02)
    assert ended == ["a"]


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
