"""Follow the redirects of one Redis Cluster command, within its timeout.

A refused command changed nothing, so it may be sent again. A lost connection ends it with an unknown outcome.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Protocol

from tidegate.errors import StoreUnavailable
from tidegate.store.link import Arg, Link, OnReply
from tidegate.store.node import Lane, Node
from tidegate.store.scripts import Script
from tidegate.store.slots import Refusal, is_refusal, key_slot

MOVES_MAX: Final = 5
"""Redirects followed without a pause; nodes that redirect in a circle are then retried more slowly."""
PAUSE_S: Final = 0.05


class Nodes(Protocol):
    """What a redirected command uses of the cluster."""

    redirect_count: Counter[int]

    def node(self, key: str) -> Node:
        """The node that owns a key's slot, as far as is known."""

    def redirect_target(self, address: tuple[str, int]) -> Node:
        """The node of an address in a redirect."""

    def refused(self, node: Node, text: str) -> Refusal:
        """Learn from a refusal of `node`."""


class Redirected:
    """A command refused by `node`; `on_reply` gets the reply of another node, or a StoreUnavailable.

    While the slot is migrating (ASK) the command follows its key, or, without `asking`, waits for the end of the
    migration. A `script` is loaded where it is missing.
    """

    __slots__ = (
        "_args", "_asking", "_began", "_cluster", "_key", "_lane", "_loop", "_moves", "_node", "_on_reply", "_script",
        "_until",
    )  # fmt: skip

    def __init__(
        self,
        cluster: Nodes,
        node: Node,
        lane: Lane,
        key: str,
        args: Sequence[Arg],
        on_reply: OnReply,
        *,
        asking: bool = True,
        script: Script | None = None,
    ) -> None:
        self._cluster, self._node, self._lane, self._key = cluster, node, lane, key
        self._args, self._on_reply, self._asking, self._script = args, on_reply, asking, script
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._until = self._began + node.control.timeout_s
        self._moves = 0
        cluster.redirect_count[key_slot(key)] += 1

    def go_on(self, text: str) -> None:
        """Handle a refusal."""
        refusal = self._cluster.refused(self._node, text)
        if refusal.kind == "MOVED":
            self._moves += 1
            if self._moves <= MOVES_MAX:
                self._send()
                return
        elif refusal.place is not None and self._asking:
            node = self._cluster.redirect_target(refusal.place)
            if node.lane(self._lane).connected:
                self._send_to(node, ask=True)
                return
        self._later(text)

    def _later(self, why: str) -> None:
        if self._loop.time() > self._until:
            self._loop.call_soon(self._on_reply, StoreUnavailable(why))
        else:
            self._loop.call_later(PAUSE_S, self._send)

    def _send(self) -> None:
        node = self._cluster.node(self._key)
        if node.lane(self._lane).connected:
            self._send_to(node, ask=False)
        else:
            self._later(f"Redis is not reachable: {node.control.last_error}")

    def _send_to(self, node: Node, *, ask: bool) -> None:
        self._node = node
        link = node.lane(self._lane)
        self._write(link, self._args, lambda reply: self._answered(link, ask, reply), ask)

    def _answered(self, link: Link, ask: bool, reply: Any) -> None:
        if is_refusal(reply):
            self.go_on(str(reply))
        elif self._script is not None and isinstance(reply, Exception) and str(reply).startswith("NOSCRIPT"):
            link.send(["SCRIPT", "LOAD", self._script.source], _ignore)
            self._write(link, self._args, lambda again: self._loaded(again), ask)
        else:
            self._end(reply)

    def _loaded(self, reply: Any) -> None:
        if is_refusal(reply):
            self.go_on(str(reply))
        else:
            self._end(reply)

    @staticmethod
    def _write(link: Link, args: Sequence[Arg], on_reply: OnReply, ask: bool) -> None:
        if ask:  # applies to the next command only
            link.send(["ASKING"], _ignore)
        link.send(args, on_reply)

    def _end(self, reply: Any) -> None:
        self._node.outage.observe_wait(self._loop.time() - self._began)
        self._on_reply(reply)


def _ignore(_: Any) -> None:
    """Discard the reply to ASKING; the next reply reports failures."""
