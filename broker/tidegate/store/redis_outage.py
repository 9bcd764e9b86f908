"""Detect recent outages of Redis: deadlines that passed during an outage say nothing about clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_SHORT_S: Final = 1.0
"""Shorter absences are ignored: clients' retries cover them."""
_RETURN_S: Final = 5.0
"""How long Redis counts as just recovered: enough to check every group, less than a session timeout."""


class RedisOutage:
    """Tracks outages: one begins when any node is down and ends when `all_up()`.

    A server that still loads its data is not connected (see `Link`), so it counts as down.
    """

    def __init__(self, all_up: Callable[[], bool]) -> None:
        self._all_up = all_up
        self._loop = asyncio.get_event_loop()
        self._down_at: float | None = None
        self._returned_at = float("-inf")

    @property
    def recently_recovered(self) -> bool:
        """Whether Redis is down for more than `_SHORT_S`, or was until a moment ago."""
        if self._down_at is not None:
            self.up()  # the connection that ended may be one of a removed node, which never comes back
        now = self._loop.time()
        if self._down_at is not None:
            return now - self._down_at > _SHORT_S
        return now - self._returned_at < _RETURN_S

    def down(self) -> None:
        """A node was disconnected."""
        if self._down_at is None:
            self._down_at = self._loop.time()

    def up(self) -> None:
        """A node was connected, or removed."""
        if self._down_at is None or not self._all_up():
            return
        self.observe_wait(self._loop.time() - self._down_at)
        self._down_at = None

    def observe_wait(self, seconds: float) -> None:
        """A command was delayed for `seconds`, which is an outage for its keys."""
        if seconds > _SHORT_S:
            self._returned_at = self._loop.time()
