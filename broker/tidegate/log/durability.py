"""What acks=all means: held in memory, by replicas (WAIT), or on disk (WAITAOF).

WAIT on a connection that wrote nothing since proves nothing. So after the answers to appends one small
write goes out on the durable lane with WAIT right behind it: replication and the append-only file are
ordered, so it covers every append answered before by the same node. One proof serves all that ask in a tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from tidegate.store.batching import Coalescer
from tidegate.store.link import Arg
from tidegate.store.node import Node
from tidegate.store.slots import is_refusal
from tidegate.store.store import Store

OnProved = Callable[[bool], None]
"""Called with whether everything appended before the call is held as the setting asks."""

_SLACK_MS: Final = 1_000
_KEYS_LEFT: Final = 1_000
"""Keys left alone for each slot that was on its way to another node: none of them is likely to be the next as well."""
_TRIES: Final = 3


class Durability:
    """The proofs of one broker, by its `durability` setting. `immediate`: nothing needs to be proved."""

    def __init__(self, store: Store) -> None:
        self._store = store
        kind, _, count = store.settings.durability.partition(":")
        self._kind = kind
        self._replicas = int(count or 0)
        self._timeout_ms = store.settings.durability_timeout_ms
        self.immediate = kind == "memory"
        self._nodes: dict[Node, _Proofs] = {}
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
        self._nodes[node] = _Proofs(self._store, node, wait, self._holds, self._timeout_ms + _SLACK_MS)

    def _removed(self, node: Node) -> None:
        self._nodes.pop(node, None)

    def _holds(self, held: Any) -> bool:
        if self._kind == "fsynced":
            return bool(held[0] >= 1 and held[1] >= self._replicas)
        return bool(held >= self._replicas)


class _Proofs:
    """The proofs that one node gives."""

    def __init__(
        self, store: Store, node: Node, wait: list[Arg], holds: Callable[[Any], bool], timeout_ms: int
    ) -> None:
        self._store, self._node, self._wait, self._holds, self._timeout_ms = store, node, wait, holds, timeout_ms
        self._key = store.cluster_keys.proof
        self._refusals = 0
        self._tries = 0
        self._calls: Coalescer[bool] = Coalescer(self._begin)
        self.prove = self._calls.add

    def _begin(self) -> None:
        self._tries = 0
        self._send()

    def _send(self) -> None:
        if self._store.node(self._key) is not self._node:
            self._find_key()  # in Redis Cluster the write has to be to a slot that the node has
        lane, replies = self._node.durable, list[Any]()
        lane.send(["SET", self._key, "1"], replies.append)
        lane.send(self._wait, lambda reply: self._answered(replies[0], reply), self._timeout_ms)

    def _find_key(self) -> None:
        keys = self._store.cluster_keys
        self._key = self._store.key_at(self._node, keys.proof, keys.proof_at, self._refusals * _KEYS_LEFT)

    def _answered(self, written: Any, held: Any) -> None:
        self._tries += 1
        if is_refusal(written) and self._tries < _TRIES:  # that slot has moved, or is on its way
            self._store.refused(self._node, str(written))
            self._refusals += 1
            self._find_key()
            self._send()
            return
        proved = not isinstance(written, Exception) and not isinstance(held, Exception) and self._holds(held)
        self._calls.finish(proved)
