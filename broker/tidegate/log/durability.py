"""What acks=all means: held in memory, by replicas (WAIT), or on disk (WAITAOF).

WAIT on a connection that wrote nothing since proves nothing. So after the answers to appends one small
write goes out on the durable lane with WAIT right behind it: replication and the append-only file are
ordered, so it covers every append answered before by the same node. One proof serves all that ask in a tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from tidegate.store.link import Arg
from tidegate.store.node import Node
from tidegate.store.store import Store
from tidegate.store.write_proofs import WriteProofs

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
        self._nodes: dict[Node, WriteProofs] = {}
        store.follow_nodes(self._added, self._removed)

    def prove(self, node: Node, on_proved: OnProved) -> None:
        """Prove what a node has answered for until now, then call. Never calls before it returns."""
        proofs = self._nodes.get(node)
        if proofs is None:  # left meanwhile
            asyncio.get_running_loop().call_soon(on_proved, False)
        else:
            proofs.prove(on_proved)

    def _added(self, node: Node) -> None:
        wait: list[Arg] = ["WAIT", self._replicas, self._timeout_ms]
        if self._kind == "fsynced":
            wait = ["WAITAOF", 1, self._replicas, self._timeout_ms]
        self._nodes[node] = WriteProofs(self._store, node, wait, self._holds, self._timeout_ms + _SLACK_MS)

    def _removed(self, node: Node) -> None:
        self._nodes.pop(node, None)

    def _holds(self, held: Any) -> bool:
        if self._kind == "fsynced":
            return bool(held[0] >= 1 and held[1] >= self._replicas)
        return bool(held >= self._replicas)
