"""An event loop whose time is virtual, shared by processes that can be killed and paused.

Nothing sleeps: when nothing is ready the clock jumps to the next timer. Every callback belongs to the process in
whose context it was scheduled; what belongs to a dead process never runs, what belongs to a paused one is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final

_TASKS_MIN: Final = 64


class Timer(list[Any]):
    """A callback that can be taken back, as asyncio's handles: callback, arguments, context."""

    __slots__ = ("_when",)

    def cancel(self) -> None:
        """Do not call back."""
        self[0] = None
        self[1] = ()

    def cancelled(self) -> bool:
        """Whether it was taken back."""
        return self[0] is None

    def at(self, when: float) -> Timer:
        """Itself, due at a time of the loop."""
        self._when = when
        return self

    def when(self) -> float:
        """The time at which it is due."""
        return self._when


Entry = tuple[Callable[..., Any], tuple[Any, ...], Context | None] | Timer
"""Something to call: in a context, whose process it belongs to, or without one on behalf of no process."""


class Process:
    """What a broker's tasks and callbacks belong to. Without a process (None) they are the simulator's own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = self.running = True
        """`running`: alive and not paused."""
        self.held: list[Entry] | None = None
        """Callbacks that wait for a paused process to continue; None while it runs."""
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
            self.held, self.running = [], False

    def kill(self) -> None:
        """Run nothing ever again. Coroutines are closed where they stand; whatever they try to do then is dropped."""
        self.alive = self.running = False
        self.held = None
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if not task.done():
                task._log_destroy_pending = False
                with contextlib.suppress(BaseException):
                    self.context.copy().run(task.get_coro().close)


_PROCESS: Final[ContextVar[Process | None]] = ContextVar("process", default=None)


def current_process() -> Process | None:
    """The process on whose behalf this runs; None for the simulator itself."""
    return _PROCESS.get()


class Stuck(Exception):
    """Nothing is ready and nothing ever will be."""


class SimLoop(asyncio.BaseEventLoop):
    """A loop without a selector. `servers` and `connections` are made by the network that `attach` gives it.

    What is due at one instant is one list, so that a thousand messages of an instant cost one jump of the clock.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.iterations = self.callbacks = 0
        self._ready: list[Entry] = []
        self._instants: list[float] = []
        """A heap of the keys of `_due`."""
        self._due: dict[float, list[Entry]] = {}
        self.connect: Callable[..., Any] | None = None
        self.listen: Callable[..., Any] | None = None

    def time(self) -> float:
        return self.now

    def post(self, when: float, callback: Callable[..., Any], *args: Any, process: Process | None = None) -> None:
        """Call back at an instant on behalf of a process, or of none; whoever calls. It cannot be taken back."""
        self._file(when, (callback, args, process.context if process is not None else None))

    def later(self, delay_s: float, callback: Callable[..., Any], *args: Any, process: Process | None = None) -> None:
        """`post` after a while."""
        self._file(self.now + delay_s, (callback, args, process.context if process is not None else None))

    def _file(self, when: float, entry: Entry) -> None:
        due = self._due.get(when)
        if due is not None:
            due.append(entry)
        else:
            self._due[when] = [entry]
            heapq.heappush(self._instants, when)

    def next_timer(self) -> float:
        """When the next timer that was not cancelled is due; infinity without one."""
        return min((when for when, due in self._due.items() if any(entry[0] for entry in due)), default=math.inf)

    def resume(self, process: Process) -> None:
        """Let a paused process continue with what came meanwhile."""
        held, process.held, process.running = process.held, None, True
        self._ready.extend(held or ())

    # -- what asyncio asks of a loop

    def _write_to_self(self) -> None:
        """There is no other thread."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """There is no other thread: it is done at once."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is the caller's
            done.set_exception(error)
        return done

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

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        """As asyncio's, and two timers of one instant come in the order in which they were set."""
        timer = Timer((callback, args, context or copy_context())).at(when)
        self._file(when, timer)
        return timer

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        """As asyncio's; tasks and futures, which give their context, never take back what they ask for."""
        entry: Entry = (callback, args, context) if context is not None else Timer((callback, args, copy_context()))
        self._ready.append(entry)
        return entry

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        """There is no other thread. asyncio closes abandoned async generators by it, also those of a killed process."""
        return self.call_soon(callback, *args, context=context)

    def _run_once(self) -> None:
        if not self._ready:
            self._jump()
        if self._instants and self._instants[0] <= self.now:
            self._take_due()
        ready, self._ready = self._ready, []
        for entry in ready:
            callback, args, context = entry
            if callback is None:
                continue
            try:
                if context is None:
                    callback(*args)
                    continue
                process = context.get(_PROCESS)
                if process is None or process.running:
                    context.run(callback, *args)
                elif process.held is not None:
                    process.held.append(entry)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio's handles do
                self.call_exception_handler({"message": f"Exception in callback {callback}", "exception": error})
        self.iterations += 1
        self.callbacks += len(ready)

    def _jump(self) -> None:
        """Nothing is ready: it is the time of the next timer."""
        if not self._instants:
            raise Stuck
        self.now = max(self.now, self._instants[0])

    def _take_due(self) -> None:
        instants = self._instants
        while instants and instants[0] <= self.now:
            self._ready.extend(self._due.pop(heapq.heappop(instants)))
