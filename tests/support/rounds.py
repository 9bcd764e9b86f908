"""What is done between two rounds of the event loop: work without a pause, as a count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Rounds:
    """Counts calls of `note`; `most` is their highest number in one round of the event loop."""

    def __init__(self) -> None:
        self.total = self.most = self._in_this = 0
        self._handle: asyncio.Handle | None = None

    def note(self, *_: Any) -> None:
        """One more item was handled."""
        self.total += 1
        self._in_this += 1
        self.most = max(self.most, self._in_this)

    def counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose calls are counted."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.note()
            return function(*args, **kwargs)

        return counted

    def begin(self) -> None:
        """Count from zero, in this round and in each that follows."""
        self._in_this = 0
        self._handle = asyncio.get_running_loop().call_soon(self.begin)

    def end(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


@contextmanager
def counted_rounds() -> Iterator[Rounds]:
    """Count in each round of the running event loop."""
    rounds = Rounds()
    rounds.begin()
    try:
        yield rounds
    finally:
        rounds.end()
