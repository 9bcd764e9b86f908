"""Whether Redis was away until a moment ago: what fell due meanwhile fell due because nobody could say otherwise."""

from __future__ import annotations

import asyncio
from typing import Final

from broker.store.link import Link

_SHORT_S: Final = 1.0
"""An absence up to this is none: a client's own tries cover it."""
_RETURN_S: Final = 5.0
"""How long Redis counts as just returned: time for every group to be looked at, less than a session timeout."""


class Absence:
    """Follows one link. A server that still loads its data is no connection (see `Link`), so it counts as away."""

    def __init__(self, link: Link) -> None:
        self._loop = asyncio.get_event_loop()
        self._down_at: float | None = None
        self._returned_at = float("-inf")
        link.on_down.append(self._down)
        link.on_up.append(self._up)

    @property
    def ended_lately(self) -> bool:
        """Whether Redis was away for long, and is back for a moment only."""
        now = self._loop.time()
        if self._down_at is not None:
            return now - self._down_at > _SHORT_S
        return now - self._returned_at < _RETURN_S

    def _down(self, link: Link) -> None:
        if self._down_at is None:
            self._down_at = self._loop.time()

    def _up(self, link: Link) -> None:
        if self._down_at is None:
            return
        now = self._loop.time()
        if now - self._down_at > _SHORT_S:
            self._returned_at = now
        self._down_at = None
