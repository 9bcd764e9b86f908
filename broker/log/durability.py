"""What acks=all means: held in memory, by replicas (WAIT), or on disk (WAITAOF).

WAIT on a connection that wrote nothing since proves nothing. So after the answers to appends one small
write goes out on the durable lane with WAIT right behind it: replication and the append-only file are
ordered, so it covers every append answered before. One proof serves all that ask in a tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from broker.store.link import Arg
from broker.store.store import Store

OnProved = Callable[[bool], None]
"""Called with whether everything appended before the call is held as the setting asks."""

_SLACK_MS: Final = 1_000


class Durability:
    """The proofs of one broker, by its `durability` setting. `immediate`: nothing needs to be proved."""

    def __init__(self, store: Store) -> None:
        self._store = store
        kind, _, count = store.settings.durability.partition(":")
        self._kind = kind
        self._replicas = int(count or 0)
        self._timeout_ms = store.settings.durability_timeout_ms
        self.immediate = kind == "memory"
        self._key = store.cluster_keys.proof
        self._waiting: list[OnProved] = []
        self._running: list[OnProved] = []
        self._scheduled = False

    def prove(self, on_proved: OnProved) -> None:
        """Prove what Redis has answered for until now, then call. Never calls before it returns."""
        self._waiting.append(on_proved)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self._running:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._scheduled = False
        self._running, self._waiting = self._waiting, []
        lane, replies = self._store.durable, list[Any]()
        wait: list[Arg] = ["WAIT", self._replicas, self._timeout_ms]
        if self._kind == "fsynced":
            wait = ["WAITAOF", 1, self._replicas, self._timeout_ms]
        lane.send(["SET", self._key, "1"], replies.append)
        lane.send(wait, lambda reply: self._answered(replies[0], reply), self._timeout_ms + _SLACK_MS)

    def _answered(self, written: Any, held: Any) -> None:
        if isinstance(written, Exception) or isinstance(held, Exception):
            proved = False
        elif self._kind == "fsynced":
            proved = held[0] >= 1 and held[1] >= self._replicas
        else:
            proved = held >= self._replicas
        running, self._running = self._running, []
        if self._waiting:
            self._schedule()
        for on_proved in running:
            on_proved(proved)
