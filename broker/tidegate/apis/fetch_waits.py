"""Fetches that wait for data: resumed together once a tick, answered early on a drain, cancelled on disconnect."""

from __future__ import annotations

import asyncio
from typing import Protocol


class WaitingFetch(Protocol):
    """A parked fetch."""

    def resume(self) -> None:
        """Read what changed, and answer if that is enough."""

    def answer(self) -> None:
        """Answer with the records read so far."""

    def cancel(self) -> None:
        """Stop, because the client disconnected."""


class FetchWaits:
    """The parked fetches of a broker, by connection."""

    def __init__(self) -> None:
        self._parked: dict[int, set[WaitingFetch]] = {}
        self._woken: list[WaitingFetch] = []
        self._drain: asyncio.Task[None] | None = None

    def follow(self, connection_id: int) -> bool:
        """Register a connection; returns whether it is new."""
        if connection_id in self._parked:
            return False
        self._parked[connection_id] = set()
        return True

    def close_connection(self, connection_id: int) -> None:
        """Cancel the fetches of a closed connection."""
        for fetch in self._parked.pop(connection_id, ()):
            fetch.cancel()

    def park(self, connection_id: int, fetch: WaitingFetch, draining: asyncio.Event) -> bool:
        """Park a fetch until `leave`; False if its connection is closed already."""
        parked = self._parked.get(connection_id)
        if parked is None:
            return False
        parked.add(fetch)
        if self._drain is None:
            self._drain = asyncio.get_running_loop().create_task(self._answer_when(draining))
        return True

    def leave(self, connection_id: int, fetch: WaitingFetch) -> None:
        """Remove an answered fetch."""
        parked = self._parked.get(connection_id)
        if parked is not None:
            parked.discard(fetch)

    def wake(self, fetch: WaitingFetch) -> None:
        """Resume a fetch at the end of this tick."""
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._resume)
        self._woken.append(fetch)

    def _resume(self) -> None:
        woken, self._woken = self._woken, []
        for fetch in woken:
            fetch.resume()

    async def _answer_when(self, draining: asyncio.Event) -> None:
        await draining.wait()
        for fetch in [fetch for parked in self._parked.values() for fetch in parked]:
            fetch.answer()
