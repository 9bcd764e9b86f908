"""An event loop whose time is the test's: it runs what is ready, and jumps to what comes next."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

_ROUNDS_AT_ONCE_MAX = 20_000


class _Selector(selectors.SelectSelector):
    """No file is ever ready; where the loop would sleep it asks what to do instead."""

    def __init__(self, on_idle: Callable[[float | None], None]) -> None:
        super().__init__()
        self._on_idle = on_idle

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._on_idle(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at 0 s. `work()` is asked for more whenever nothing is ready; it says whether there was any."""

    def __init__(self, work: Callable[[], bool]) -> None:
        self._now = self._until = 0.0
        self._work = work
        self._rounds = 0
        self.faults: list[BaseException | str] = []
        super().__init__(_Selector(self._idle))
        self.set_exception_handler(self._note_fault)

    def time(self) -> float:
        return self._now

    @property
    def now_ms(self) -> int:
        """Milliseconds since the start."""
        return int(self._now * 1000 + 0.001)

    def run(self, ms: int = 0) -> None:
        """Let so many milliseconds pass, then all that is ready be done."""
        self._until = round(self._now + ms / 1000, 3)
        self._rounds = 0
        self.run_forever()

    def stall(self, ms: int) -> None:
        """Time passes and nobody runs."""
        self._now = round(self._now + ms / 1000, 3)

    def _idle(self, timeout: float | None) -> None:
        self._rounds += 1
        assert self._rounds < _ROUNDS_AT_ONCE_MAX, "the brokers never come to rest"
        if self._work():
            return
        if timeout is None or self._now + timeout > self._until:
            self._now = max(self._now, self._until)
            self.stop()
        else:
            self._now += timeout
            self._rounds = 0

    def _note_fault(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.faults.append(context.get("exception") or str(context["message"]))
