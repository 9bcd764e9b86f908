"""Decisions on groups that take long: where they are computed."""

from __future__ import annotations

import asyncio
import threading
import time

from tidegate.groups.decision_queue import INLINE_SIZE_MAX, computed


async def test_large_decisions_are_computed_one_after_the_other() -> None:
    """Each thread more that computes delays the event loop by another switch interval of the interpreter lock."""
    running: list[int] = []
    most = 0

    def compute() -> bool:
        nonlocal most
        running.append(1)
        most = max(most, len(running))
        time.sleep(0.02)
        running.pop()
        return threading.current_thread() is threading.main_thread()

    assert await asyncio.gather(*(computed([INLINE_SIZE_MAX, 1], compute) for _ in range(6))) == [False] * 6
    assert most == 1
    assert await computed([INLINE_SIZE_MAX], compute)
