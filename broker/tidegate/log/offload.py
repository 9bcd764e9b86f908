"""Threads for computation that may take more than some milliseconds; one thread per kind of work.

With one thread per kind, few threads compete with the event loop for the interpreter lock: the loop waits for at
most one switch interval (5 ms). Work of one kind is executed in order of arrival.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Offload:
    """One thread, started with its first work."""

    def __init__(self, name: str) -> None:
        self._threads = ThreadPoolExecutor(1, name)

    async def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `work` in the thread; returns or raises what it does."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(*args, **kwargs))


PRODUCED: Final = Offload("open-produced")
"""Batches of pending Produce requests."""
STORED: Final = Offload("open-stored")
"""Stored batches that are searched by timestamp."""
DECODED: Final = Offload("decode")
"""Large requests."""
ENCODED: Final = Offload("encode")
"""Large answers."""
CONVERTED: Final = Offload("convert-fetched")
"""Batches that are sent as message sets."""
COMPACTED: Final = Offload("compact")
"""Batches that are compacted."""
