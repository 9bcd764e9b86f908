"""Background tasks with a strong reference; the event loop keeps only weak ones."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class TaskSet:
    """Keeps a reference to each task until it is done. For loops that must not end see `BackgroundTasks`."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Result], name: str | None = None) -> asyncio.Task[Result]:
        """Start a task. The event loop logs its exception unless a caller awaits the task."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def __len__(self) -> int:
        return len(self._tasks)

    def cancel(self) -> None:
        """Cancel the running tasks."""
        for task in list(self._tasks):
            task.cancel()

    async def wait(self) -> None:
        """Wait until the running tasks have ended; ignores their results."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Cancel the running tasks, and wait until they have ended."""
        self.cancel()
        await self.wait()
