"""Tasks beside their starter."""

from __future__ import annotations

import asyncio

from tidegate.store.tasks import TaskSet


async def test_task_set_keeps_tasks_until_they_are_done() -> None:
    tasks, gate = TaskSet(), asyncio.Event()
    task = tasks.start(gate.wait(), name="waiter")
    assert len(tasks) == 1

    gate.set()
    assert await task
    await asyncio.sleep(0)

    assert len(tasks) == 0


async def test_task_set_close_cancels_and_waits() -> None:
    tasks, ended = TaskSet(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = tasks.start(work())
    await asyncio.sleep(0)
    await tasks.close()

    assert task.cancelled()
    assert ended.is_set()


async def test_task_set_wait_outlives_a_failure() -> None:
    tasks = TaskSet()

    async def fail() -> None:
        raise ValueError("no")

    task = tasks.start(fail())
    await tasks.wait()

    assert isinstance(task.exception(), ValueError)
