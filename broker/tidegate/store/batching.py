"""Work that many callers share: `Coalescer` begins after its callers asked, `SingleFlight` may have begun before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")
Key = TypeVar("Key", bound=Hashable)


class Coalescer(Generic[Result]):
    """One run for all callers of an event-loop tick; who calls during a run is answered by the next one.

    `begin()` starts a run, which must end in one call of `finish`. `reply(callback, result)` replaces the plain call.
    """

    __slots__ = ("_begin", "_reply", "_running", "_scheduled", "_waiting")

    def __init__(
        self, begin: Callable[[], None], reply: Callable[[Callable[[Result], None], Result], None] | None = None
    ) -> None:
        self._begin = begin
        self._reply = reply
        self._waiting: list[Callable[[Result], None]] = []
        self._running: list[Callable[[Result], None]] = []
        self._scheduled = False

    def add(self, on_result: Callable[[Result], None]) -> None:
        """Call with the result of a run that begins after this returns."""
        self._waiting.append(on_result)
        self._schedule()

    async def wait(self) -> Result:
        """The result of a run that begins after this call."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def on_result(result: Result) -> None:
            if not future.done():
                future.set_result(result)

        self.add(on_result)
        return await future

    def finish(self, result: Result) -> None:
        """The run has ended: call back all that it was for. A next run begins only after this tick."""
        running, self._running = self._running, []
        if self._waiting:
            self._schedule()
        for on_result in running:
            if self._reply is None:
                on_result(result)
            else:
                self._reply(on_result, result)

    def _schedule(self) -> None:
        if not self._scheduled and not self._running:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        self._running, self._waiting = self._waiting, []
        self._begin()


class SingleFlight(Generic[Key]):
    """One call of a key at a time, whose outcome all that ask for it meanwhile share."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[Key, asyncio.Task[Any]] = {}

    async def do(self, key: Key, call: Callable[[], Awaitable[Result]]) -> Result:
        """The outcome of the call that is under way, or of a new one. A caller that is cancelled ends no other's."""
        task = self._calls.get(key)
        if task is None:
            task = self._calls[key] = asyncio.get_running_loop().create_task(_awaited(call), name=f"shared-{key}")
            task.add_done_callback(lambda done: self._done(key, done))
        found: Result = await asyncio.shield(task)
        return found

    def forget(self) -> None:
        """Begin anew for whoever asks next; calls under way end for those that wait for them."""
        self._calls = {}

    async def close(self) -> None:
        """Cancel the calls under way and wait until they have ended."""
        tasks = list(self._calls.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, key: Key, task: asyncio.Task[Any]) -> None:
        if self._calls.get(key) is task:
            del self._calls[key]
        if not task.cancelled():
            task.exception()  # retrieved here: its callers may be gone


async def _awaited(call: Callable[[], Awaitable[Result]]) -> Result:
    return await call()
