"""One look for everybody who asks within a moment: pages that are open side by side cost what one costs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from time import monotonic
from typing import Any, TypeVar

Found = TypeVar("Found")


class Shared:
    """What was found lately, by key; failures are not kept."""

    def __init__(self, fresh_s: float) -> None:
        self._fresh_s = fresh_s
        self._found: dict[Hashable, tuple[float, asyncio.Future[Any]]] = {}

    def forget(self) -> None:
        """Look again, whoever asks next: something was changed."""
        self._found.clear()

    async def get(self, key: Hashable, look: Callable[[], Awaitable[Found]]) -> Found:
        """What `look` finds, or found for somebody else a moment ago."""
        now_s = monotonic()
        self._found = {
            one: (at_s, found)
            for one, (at_s, found) in self._found.items()
            if not found.done() or (now_s - at_s < self._fresh_s and not found.cancelled() and not found.exception())
        }
        if key not in self._found:
            looking = asyncio.ensure_future(look())
            looking.add_done_callback(lambda done: done.cancelled() or done.exception())  # its readers may be gone
            self._found[key] = now_s, looking
        found: Found = await asyncio.shield(self._found[key][1])
        return found
