"""Combine the work of many callers: `Coalescer` runs begin after the calls, a `SingleFlight` may be under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

import structlog

logger = structlog.get_logger()

Result = TypeVar("Result")
Key = TypeVar("Key", bound=Hashable)


def fail_waiter(on_result: Callable[[Any], None], failure: object) -> None:
    """In an `except` clause: log that a callback raised, and call it once more, with a failure: its waiter ends."""
    logger.exception("result_callback_failed", callback=getattr(on_result, "__qualname__", type(on_result).__name__))
    try:
        on_result(failure)
    except Exception:
        logger.exception("failure_callback_failed")


class Coalescer(Generic[Result]):
    """One run for all callers of an event-loop tick; calls during a run are served by the next run.

    `begin()` starts a run, which must call `finish` exactly once. `reply(callback, result)` replaces the plain call.
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

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for a result."""
        return not (self._waiting or self._running)

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
        """End the run and call its callbacks, all of them if one raises. The next run begins after this tick."""
        running, self._running = self._running, []
        if self._waiting:
            self._schedule()
        for on_result in running:
            try:
                if self._reply is None:
                    on_result(result)
                else:
                    self._reply(on_result, result)
            except Exception:
                logger.exception("result_callback_failed")

    def _schedule(self) -> None:
        if not self._scheduled and not self._running:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        self._running, self._waiting = self._waiting, []
        self._begin()


class SingleFlight(Generic[Key]):
    """One call per key at a time; concurrent callers share its outcome."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[Key, asyncio.Task[Any]] = {}

    async def do(self, key: Key, call: Callable[[], Awaitable[Result]]) -> Result:
        """The outcome of the running call, or of a new one. Cancelling a caller does not cancel the call."""
        task = self._calls.get(key)
        if task is None:
            task = self._calls[key] = asyncio.get_running_loop().create_task(_awaited(call), name=f"shared-{key}")
            task.add_done_callback(lambda done: self._done(key, done))
        found: Result = await asyncio.shield(task)
        return found

    def forget(self) -> None:
        """The next caller starts a new call; running calls still end for their callers."""
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
            task.exception()  # retrieve it: all callers may be cancelled


async def _awaited(call: Callable[[], Awaitable[Result]]) -> Result:
    return await call()
