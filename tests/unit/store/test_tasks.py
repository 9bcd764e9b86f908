"""Tasks beside their starter."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import tidegate
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


OWN_TASKS: Final = {
    "apis/waiting_fetches.py": "one task for all connections, which is there or not",
    "cli/doctor/run.py": "a result that is awaited",
    "cluster/deadlines.py": "a poll of each shard, which is frequent",
    "groups/waiting.py": "a task that is part of an entry's state",
    "http/group_views.py": "results that are awaited",
    "log/partition.py": "a task that is part of the log's state",
    "log/record_format/record_append.py": "a task that is part of the log's state",
    "server/dispatch.py": "the task of a request, which its connection cancels",
    "server/pending_request.py": "the same, of a request that failed and has a large answer",
    "server/routes.py": "one task for each API, which callers await",
    "server/sweeping.py": "a second start has no effect",
    "server/tls_port.py": "the port serves while there is a task",
    "share/membership.py": "a member has joined once there is a task",
    "store/batching.py": "calls that are shared",
    "store/link.py": "ends with its link, which does not wait for it",
    "store/sentinels.py": "answers that are awaited",
    "store/tasks.py": "TaskSet",
    "telemetry/background_tasks.py": "below the store's layer",
    "topics/catalog.py": "one refresh, which is there or not",
}
"""Modules that start tasks themselves, and what they need the task for."""


def test_task_set_starts_every_other_task() -> None:
    package = Path(tidegate.__file__).parent
    sources = {str(path.relative_to(package)): path.read_text("utf-8") for path in package.rglob("*.py")}

    assert {name for name, text in sources.items() if ".create_task(" in text} == OWN_TASKS.keys()
