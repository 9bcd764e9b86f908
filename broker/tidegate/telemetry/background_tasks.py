"""Background loops with supervision: a failure is logged once, counted, and the loop is restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from tidegate.errors import KafkaError
from tidegate.telemetry.metrics import metrics

logger = structlog.get_logger()

BACK_OFF_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_STABLE_AFTER_S: Final = 10.0


class BackgroundTasks:
    """The background loops of one broker. Each `loop()` runs until it is cancelled, and is restarted when it fails.

    Consecutive equal failures are logged once: a KafkaError (usually Redis is unavailable) as one line, any other
    exception with its traceback, because it is a bug.
    """

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def run(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run and supervise `loop` under this name."""
        self._tasks.append(asyncio.get_running_loop().create_task(self._keep(name, loop), name=name))

    def every(self, name: str, interval_ms: int, step: Callable[[], Awaitable[object]]) -> None:
        """Call `step` repeatedly, `interval_ms` after the previous call ended."""

        async def loop() -> None:
            while True:
                await asyncio.sleep(interval_ms / 1000)
                await step()

        self.run(name, loop)

    async def _keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        attempt, reported = 0, ""
        clock = asyncio.get_running_loop().time
        while True:
            started = clock()
            error: Exception | None = None
            try:
                await loop()
            except Exception as raised:  # noqa: BLE001 - whatever it is, the loop must continue
                error = raised
            metrics.loops_failed += 1
            if clock() - started > _STABLE_AFTER_S:
                attempt, reported = 0, ""
            failure = "it returned" if error is None else f"{type(error).__name__}: {error}"
            if failure != reported:
                _report(name, failure, error)
            reported = failure
            await asyncio.sleep(BACK_OFF_S[min(attempt, len(BACK_OFF_S) - 1)])
            attempt += 1

    async def close(self) -> None:
        """Cancel every loop and wait for its end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()


def _report(name: str, failure: str, error: Exception | None) -> None:
    if error is None or isinstance(error, KafkaError):
        logger.warning("background_loop_failed", loop=name, reason=failure)
    else:
        logger.error("background_loop_failed", loop=name, reason=failure, exc_info=error)
