"""Detect recent outages of a Redis node: deadlines that passed during an outage say nothing about clients."""

from __future__ import annotations

import asyncio
from typing import Final

_SHORT_S: Final = 1.0
"""Shorter absences are ignored: clients' retries cover them."""
_RETURN_S: Final = 5.0
"""How long Redis counts as just recovered: enough to check every group, less than a session timeout."""


class RedisOutage:
    """The outages of one node, which concern its keys only.

    A server that still loads its data is not connected (see `Link`), so it counts as down.
    """

    __slots__ = ("_asked_at", "_down_at", "_loop", "_returned_at")

    def __init__(self) -> None:
        self._loop = asyncio.get_event_loop()
        self._asked_at: float | None = None
        self._down_at: float | None = None
        self._returned_at = float("-inf")

    @property
    def recently_recovered(self) -> bool:
        """Whether the node is down for more than `_SHORT_S`, or was until a moment ago."""
        if self._down_at is not None:
            return self._loop.time() - self._down_at > _SHORT_S
        return self._loop.time() - self._returned_at < _RETURN_S

    @property
    def has_returned(self) -> bool:
        """Whether the node was down for more than `_SHORT_S` until a moment ago."""
        return self._loop.time() - self._returned_at < _RETURN_S

    def down(self) -> None:
        """The node was disconnected."""
        if self._down_at is None:
            self._down_at = self._loop.time() if self._asked_at is None else self._asked_at

    def up(self) -> None:
        """The node was connected."""
        if self._down_at is not None:
            self.observe_wait(self._loop.time() - self._down_at)
            self._down_at = None

    def asked(self) -> None:
        """A command was sent that a server answers at once."""
        if self._asked_at is None:
            self._asked_at = self._loop.time()

    def answered(self) -> None:
        """Such a command was answered, or failed."""
        self._asked_at = None

    def observe_wait(self, seconds: float) -> None:
        """A command was delayed for `seconds`, which is an outage for its keys."""
        if seconds > _SHORT_S:
            self._returned_at = self._loop.time()

    def inherit(self, before: RedisOutage) -> None:
        """Keys of another node are at this one now, and with them what its outage means: `up` follows."""
        self._returned_at = max(self._returned_at, before._returned_at)
        began = [at for at in (self._down_at, before._down_at, before._asked_at) if at is not None]
        self._down_at = min(began, default=None)
