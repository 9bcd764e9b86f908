"""Work beside the event loop, in a thread for each kind of it: what only computes and may take more than some ms.

One thread a kind, so that the loop competes with few for the interpreter: it waits for one switch interval
(5 ms) at most, and what one client sends queues behind what others sent before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Offload:
    """One thread, started at its first work."""

    def __init__(self, name: str) -> None:
        self._threads = ThreadPoolExecutor(1, name)

    async def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What `work` returns or raises."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(*args, **kwargs))


PRODUCED: Final = Offload("open-produced")
"""Batches that a producer waits for."""
STORED: Final = Offload("open-stored")
"""Batches of the log that are searched by time."""
DECODED: Final = Offload("decode")
"""Large requests."""
