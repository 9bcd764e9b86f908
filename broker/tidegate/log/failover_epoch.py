"""Detect fail-overs of Redis and number them: the failover epoch.

Each primary has a `master_replid`, which changes at a fail-over or a restart. The broker asks for it on
every lane at each reconnection and once a second, because a server can be demoted and promoted again while a
connection stays open. A node's replication id is known once all its lanes report the same primary. The failover epoch
is one number for the replication ids of all nodes; the first broker that observes a new id increments it, by script.
While one node is away the epoch stays valid for the others; when it returns, the epoch is requested again before any
log state is loaded from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog

from tidegate.errors import StoreUnavailable
from tidegate.store.info import info_fields
from tidegate.store.link import Arg, Link
from tidegate.store.node import Node
from tidegate.store.outcome import Failure
from tidegate.store.scripts import Script
from tidegate.store.store import Store

logger = structlog.get_logger()

ASSIGN_FAILOVER_EPOCH = Script("log/assign_failover_epoch")

_ASK_AGAIN_S: Final = 0.1
_CHECK_S: Final = 1.0


class FailoverEpochs:
    """Follows the lanes of every node.

    `on_lost(node)` runs when a lane of a node is lost, and with None when no cached state is valid any more;
    `on_assigned(number)` runs whenever the epoch becomes known.
    """

    def __init__(
        self, store: Store, on_lost: Callable[[Node | None], None], on_assigned: Callable[[int], None] | None = None
    ) -> None:
        self._store = store
        self._replids: dict[Link, str] = {}
        self._replication_ids: dict[Node, str] = {}
        self._assigned: frozenset[str] = frozenset()
        self._assigning = False
        self._changed = asyncio.Event()
        self._number = 0
        self._floor = 0
        self._closed = False
        self._check_timer: asyncio.TimerHandle | None = None
        self._on_lost, self._on_assigned = on_lost, on_assigned

    def start(self) -> None:
        """Start following the lanes."""
        self._store.follow_nodes(self._added, self._removed)
        self._check()

    def _added(self, node: Node) -> None:
        for lane in node.lanes:
            lane.on_up.append(lambda lane: self._ask(node, lane))
            lane.on_down.append(lambda lane: self._lost(node, lane))

    def _removed(self, node: Node) -> None:
        for lane in node.lanes:
            self._lost(node, lane)

    def _check(self) -> None:
        self._check_timer = asyncio.get_running_loop().call_later(_CHECK_S, self._check)
        for node in self._store.nodes:
            for lane in node.lanes:
                if lane.connected:
                    self._ask(node, lane)
        if self._store.is_sharded:
            self._assign()  # another broker may have raised the epoch, or the metadata node changed

    def close(self) -> None:
        """Stop following."""
        self._closed = True
        if self._check_timer is not None:
            self._check_timer.cancel()

    async def ready(self, node: Node | None = None) -> int:
        """The failover epoch, once every lane of `node` (or of all nodes) is checked. Raises StoreUnavailable."""
        try:
            async with asyncio.timeout(self._store.settings.redis_connect_timeout_ms / 1000):
                while not self._is_ready(node):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise StoreUnavailable("no connection to one primary on every lane") from None
        return self._number

    def _is_ready(self, node: Node | None) -> bool:
        return all(self._is_known(one) for one in (self._store.nodes if node is None else [node]))

    def _is_known(self, node: Node) -> bool:
        return self._replication_ids.get(node) in self._assigned

    def number_at(self, node: Node) -> int | None:
        """The failover epoch, or None while the node's replication id is not assigned to it."""
        return self._number if self._is_known(node) else None

    @property
    def number(self) -> int | None:
        """The failover epoch, or None while no node's replication id is assigned to it."""
        return self._number if any(self._is_known(node) for node in self._store.nodes) else None

    @property
    def last_number(self) -> int:
        """The failover epoch, or the last one while it is not known; 0 before the first."""
        return self._number

    def writing_to(self, node: Node) -> str | None:
        """The replication id of the server that the lanes which write and prove are connected to.

        None while they are connected to several, as when the sentinels have named another primary, or it is not known.
        """
        replids = {self._replids.get(lane) for lane in (node.control, node.data_out, node.durable)}
        return replids.pop() if len(replids) == 1 else None

    def raise_floor(self, failover_epoch: int) -> None:
        """A log has a higher failover epoch: never use one below it."""
        if failover_epoch > self._floor:
            self._floor = failover_epoch
            self._assign()

    # -- replication ids

    def _lost(self, node: Node, lane: Link) -> None:
        self._replids.pop(lane, None)
        self._assigned -= {self._replication_ids.pop(node, "")}
        self._on_lost(node)

    def _ask(self, node: Node, lane: Link) -> None:
        connection = lane.failover_epoch
        lane.send(["INFO", "replication"], lambda reply: self._on_replication_ids(node, lane, connection, reply))

    def _on_replication_ids(self, node: Node, lane: Link, connection: int, reply: Any) -> None:
        if self._closed or connection != lane.failover_epoch or not lane.connected:
            return
        facts = info_fields(reply)
        replid = facts.get("master_replid", "") if facts.get("role") == "master" else ""
        if replid and self._replication_ids.get(node) == replid:
            return
        if node in self._replication_ids:
            logger.warning("redis_failover_detected", link=lane.name, server=str(node), role=facts.get("role"))
            self._lost(node, lane)
        if not replid:
            if facts.get("role", "master") != "master":  # an error, such as a missing right, has no role
                self._store.reconnect_to_primary()
            asyncio.get_running_loop().call_later(_ASK_AGAIN_S, self._ask_again, node, lane, connection)
            return
        self._replids[lane] = replid
        replids = {self._replids.get(one) for one in node.lanes}
        if None in replids:
            return
        if len(replids) > 1:
            for other in node.lanes:
                asyncio.get_running_loop().call_later(_ASK_AGAIN_S, self._ask_again, node, other, other.failover_epoch)
            return
        self._replication_ids[node] = replid
        self._assign()

    def _ask_again(self, node: Node, lane: Link, connection: int) -> None:
        if not self._closed and lane.connected and lane.failover_epoch == connection:
            self._ask(node, lane)

    # -- the epoch

    def _assign(self) -> None:
        """Request the epoch of the known replication ids; the first request waits until all nodes are known."""
        metadata_node, replication_ids = self._replication_ids.get(self._store.metadata_node), self._replication_ids
        at_first = self._number == 0 and len(replication_ids) < len(self._store.nodes)
        if self._assigning or self._closed or metadata_node is None or at_first:
            return
        self._assigning = True
        asked = [metadata_node, *sorted(set(replication_ids.values()) - {metadata_node})]

        def assigned(reply: Any) -> None:
            self._assigning = False
            if self._closed or self._replication_ids.get(self._store.metadata_node) != metadata_node:
                return  # requested again when its replication id is known
            if isinstance(reply, Failure):
                asyncio.get_running_loop().call_later(_ASK_AGAIN_S, self._assign)
                return
            self._known(frozenset(asked), reply[1])
            if not self._assigned >= set(self._replication_ids.values()):
                self._assign()

        args: list[Arg] = [max(self._number, self._floor), *asked]
        keys = self._store.cluster_keys
        self._store.send_script(ASSIGN_FAILOVER_EPOCH, [keys.info, keys.replids], args, assigned)

    def _known(self, assigned: frozenset[str], number: int) -> None:
        before, known = self._number, {node for node in self._store.nodes if self._is_known(node)}
        changed = number != before
        if changed and before:
            logger.warning("failover_epoch_changed", failover_epoch=number, before=before)
            self._on_lost(None)
        self._assigned, self._number = assigned, number
        self._floor = max(self._floor, number)
        self._changed.set()
        found = any(self._is_known(node) for node in self._store.nodes if node not in known)
        if self._on_assigned is not None and (changed or found):
            self._on_assigned(number)
