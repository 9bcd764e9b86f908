"""The chart's tests name pods by a resolver of their own, which libuv does not ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """asyncio's own event loop."""
    return {"asyncio": asyncio.new_event_loop}
