"""Whether Redis was away until a moment ago: what fell due meanwhile fell due because nobody could say otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_SHORT_S: Final = 1.0
"""An absence up to this is none: a client's own tries cover it."""
_RETURN_S: Final = 5.0
"""How long Redis counts as just returned: time for every group to be looked at, less than a session timeout."""


class RedisOutage:
    """Told when a node goes and comes: while any is away Redis is, and it is back when `all_up()`.

    A server that still loads its data is no connection (see `Link`), so it counts as away.
    """

    def __init__(self, all_up: Callable[[], bool]) -> None:
        self._all_up = all_up
        self._loop = asyncio.get_event_loop()
        self._down_at: float | None = None
        self._returned_at = float("-inf")

    @property
    def recently_recovered(self) -> bool:
        """Whether Redis was away for long, and is back for a moment only."""
        now = self._loop.time()
        if self._down_at is not None:
            return now - self._down_at > _SHORT_S
        return now - self._returned_at < _RETURN_S

    def down(self) -> None:
        """A node is gone."""
        if self._down_at is None:
            self._down_at = self._loop.time()

    def up(self) -> None:
        """A node is there, or no longer needed."""
        if self._down_at is None or not self._all_up():
            return
        self.observe_wait(self._loop.time() - self._down_at)
        self._down_at = None

    def observe_wait(self, seconds: float) -> None:
        """Some keys were answered for only after so long: to those who asked for them Redis was away."""
        if seconds > _SHORT_S:
            self._returned_at = self._loop.time()
