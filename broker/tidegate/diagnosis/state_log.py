"""One log line for each state that a group enters, with its cause, from the broker named as the coordinator.

A phase that ends as it begins is one line, that of the next generation. The lines come from the notifications that
every broker receives anyway, so they cost no request anything. The events, which scripts write, contain what a lost
notification omits here (docs/explain.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import structlog

from tidegate.groups.group_changes import subscribe_group_changes, unsubscribe_group_changes
from tidegate.groups.group_index import group_of
from tidegate.groups.model import GroupState
from tidegate.store.keys import GroupKeys
from tidegate.store.store import Store

logger = structlog.get_logger()

GROUPS_MAX: Final = 10_000
"""Groups whose last line is remembered, to avoid duplicate lines."""

LINES: Final = {
    GroupState.PREPARING.encode(): "rebalance_started",
    GroupState.COMPLETING.encode(): "generation_opened",
    GroupState.STABLE.encode(): "group_stable",
    GroupState.EMPTY.encode(): "group_empty",
}


class StateLog:
    """Logs state changes of groups. `prefers(shard)`: whether this broker is named for a shard."""

    def __init__(self, store: Store, prefers: Callable[[int], bool]) -> None:
        self._store = store
        self._prefers = prefers
        self._last: dict[bytes, tuple[bytes, bytes]] = {}

    async def start(self) -> None:
        """Subscribe to all shards, because the broker named for a shard may change."""
        await subscribe_group_changes(self._store, self._on_group_change)

    async def close(self) -> None:
        """Unsubscribe."""
        unsubscribe_group_changes(self._store, self._on_group_change)

    def _on_group_change(self, payload: bytes | None) -> None:
        if payload is None:
            return
        ref, generation, state, _ = payload.rsplit(b":", 3)
        if self._last.pop(ref, None) != (generation, state):
            self._log(group_of(self._store, ref.decode()), int(generation), state)
        self._last[ref] = generation, state
        if len(self._last) > GROUPS_MAX:
            del self._last[next(iter(self._last))]

    def _log(self, keys: GroupKeys, generation: int, state: bytes) -> None:
        line = LINES.get(state)
        if line is None or not self._prefers(keys.shard_keys.shard):
            return

        def answered(reply: Any) -> None:
            reason, now = reply if isinstance(reply, list) else (b"", None)
            more = {}
            if now == b"%d" % generation:  # otherwise the group has changed again meanwhile
                more["reason"] = reason.decode()
            logger.info(line, group=keys.ref, generation=generation, **more)

        self._store.send(["HMGET", keys.group, "reason", "generation"], answered)
