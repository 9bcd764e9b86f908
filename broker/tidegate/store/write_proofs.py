"""Proofs that replicas or the append-only file have the earlier writes of a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tidegate.store.batching import Coalescer
from tidegate.store.link import Arg
from tidegate.store.node import Node
from tidegate.store.outcome import Moved, failure_of
from tidegate.store.store import Store

_KEYS_LEFT: Final = 1_000
"""Keys skipped after a migrating slot, so that the next key is unlikely to be in one as well."""
_TRIES: Final = 3


class WriteProofs:
    """Proves that the writes answered by a server are replicated or on disk: a small write followed directly by WAIT.

    `wait` is the command, `holds` evaluates its reply. In Redis Cluster the write must be in a slot of that server, so
    its key changes when slots move.
    """

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
            self._find_key()
        lane, replies = self._node.durable, list[Any]()
        lane.send(["SET", self._key, "1"], replies.append)
        lane.send(self._wait, lambda reply: self._answered(replies[0], reply), self._timeout_ms)

    def _find_key(self) -> None:
        keys = self._store.cluster_keys
        self._key = self._store.key_at(self._node, keys.proof, keys.proof_at, self._refusals * _KEYS_LEFT)

    def _answered(self, written: Any, held: Any) -> None:
        self._tries += 1
        failure = failure_of(written) or failure_of(held)
        if isinstance(failure, Moved) and self._tries < _TRIES:
            self._store.refused(self._node, failure.text)
            self._refusals += 1
            self._find_key()
            self._send()
            return
        proved = failure is None and self._holds(held)
        self._calls.finish(proved)
