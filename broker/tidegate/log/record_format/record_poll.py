"""Find what Redis programs append to streams of format `record` that have waiting fetches.

Brokers publish their own appends; a Redis program need not. One XREAD for all such streams, 20 times a second while
there are any, costs the same for one consumer or a thousand, works on Redis Cluster, and holds no connection open as
XREAD BLOCK would, which must be cancelled and repeated whenever the set of streams changes.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from tidegate.store.key_lanes import poll_streams
from tidegate.store.keys import LogKeys
from tidegate.store.store import Store

POLL_S: Final = 0.05
"""Upper bound on the delay with which a waiting fetch finds a Redis program's record."""


class PolledStream(Protocol):
    """The log of a stream that has waiting fetches."""

    keys: LogKeys
    last_id: str
    """The stream's last id as of the last read."""

    def notify(self) -> None:
        """The stream has later entries."""


class RecordPoll:
    """The streams that have waiting fetches on this broker. Nothing runs while there are none."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._logs: dict[str, PolledStream] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, log: PolledStream) -> None:
        """A log has its first waiting fetch."""
        self._logs[log.keys.log] = log
        if self._timer is None:
            self._arm()

    def remove(self, log: PolledStream) -> None:
        """It has none left."""
        if self._logs.get(log.keys.log) is log:
            del self._logs[log.keys.log]

    def close(self) -> None:
        """Stop."""
        self._logs.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(POLL_S, self._poll)

    def _poll(self) -> None:
        self._timer = None
        if self._logs:
            poll_streams(self._store, {key: log.last_id for key, log in self._logs.items()}, self._grown)
            self._arm()

    def _grown(self, key: str) -> None:
        log = self._logs.get(key)
        if log is not None:
            log.notify()
