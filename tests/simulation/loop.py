"""An event loop whose time is virtual, shared by processes that can be killed and paused.

Nothing sleeps: when nothing is ready the clock jumps to the next timer. Every callback belongs to the process in
whose context it was scheduled; what belongs to a dead process never runs, what belongs to a paused one is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final

_CANCELLED_MIN: Final = 200
"""Cancelled timers that are worth sweeping out of the heap."""
_TASKS_MIN: Final = 64


class Process:
    """What a broker's tasks and callbacks belong to. Without a process (None) they are the simulator's own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.held: list[asyncio.Handle] | None = None
        """Callbacks that wait for a paused process to go on; None while it runs."""
        self.context: Context = copy_context()
        self.context.run(_PROCESS.set, self)
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = _TASKS_MIN

    def note(self, task: asyncio.Task[Any]) -> None:
        """A task of this process, in order of creation."""
        self._tasks.append(task)
        if len(self._tasks) >= self._prune_at:
            self._tasks = [one for one in self._tasks if not one.done()]
            self._prune_at = 2 * len(self._tasks) + _TASKS_MIN

    def pause(self) -> None:
        """Run nothing until `SimLoop.resume`."""
        if self.held is None:
            self.held = []

    def kill(self) -> None:
        """Run nothing ever again. Coroutines are closed where they stand; whatever they try to do then is dropped."""
        self.alive = False
        self.held = None
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if not task.done():
                task._log_destroy_pending = False
                with contextlib.suppress(BaseException):
                    self.context.copy().run(task.get_coro().close)


_PROCESS: Final[ContextVar[Process | None]] = ContextVar("process", default=None)


class Stuck(Exception):
    """Nothing is ready and nothing ever will be."""


class SimLoop(asyncio.BaseEventLoop):
    """A loop without a selector. `servers` and `connections` are made by the network that `attach` gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.turns = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_number = 0
        self.outside = copy_context()
        """The context of what belongs to no process."""
        self.connect: Callable[..., Any] | None = None
        self.listen: Callable[..., Any] | None = None

    def time(self) -> float:
        return self.now

    def later(self, delay_s: float, callback: Callable[..., Any], *args: Any, process: Process | None = None) -> None:
        """Call back after a while on behalf of a process, or of none; whoever calls."""
        self.call_at(self.now + delay_s, callback, *args, context=process.context if process else self.outside)

    def resume(self, process: Process) -> None:
        """Let a paused process go on with what came meanwhile."""
        held, process.held = process.held, None
        self._ready.extend(held or ())

    # -- what asyncio asks of a loop

    def _write_to_self(self) -> None:
        """There is no other thread."""

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        process = context.get(_PROCESS) if context is not None else _PROCESS.get()
        if process is not None:
            process.note(task)
        return task

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        assert self.listen is not None
        return self.listen(_PROCESS.get(), protocol_factory, host, port)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        assert self.connect is not None
        return await self.connect(_PROCESS.get(), protocol_factory)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        """As asyncio's, and two timers of one instant come in the order in which they were set."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True
        self._timer_number += 1
        heapq.heappush(self._timers, (when, self._timer_number, timer))
        return timer

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _run_once(self) -> None:
        if not self._ready:
            self._jump()
        self._take_due()
        ready = self._ready
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(_PROCESS)
            if process is None or (process.alive and process.held is None):
                handle._run()
            elif process.alive:
                process.held.append(handle)
        self.turns += 1

    def _jump(self) -> None:
        """Nothing is ready: it is the time of the next timer."""
        timers = self._timers
        if self._timer_cancelled_count > _CANCELLED_MIN and self._timer_cancelled_count * 2 > len(timers):
            timers[:] = [entry for entry in timers if not entry[2]._cancelled]
            heapq.heapify(timers)
            self._timer_cancelled_count = 0
        while timers and timers[0][2]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(timers)
        if not timers:
            raise Stuck
        self.now = max(self.now, timers[0][0])

    def _take_due(self) -> None:
        timers, now = self._timers, self.now
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False
            if timer._cancelled:
                self._timer_cancelled_count -= 1
            else:
                self._ready.append(timer)
