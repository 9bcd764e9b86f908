"""The primaries of a Redis Cluster and the owner of each slot, refreshed each second and after a sign of change.

The broker queries one node (`CLUSTER SLOTS`) and uses its answer only if that node reports a healthy cluster: a
partitioned node would report slots that another node took over. Slots without an owner keep their last one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import hiredis
import structlog

from tidegate.errors import StoreUnavailable
from tidegate.startup import CannotStart
from tidegate.store.addresses import Address, Topology
from tidegate.store.link import Arg, Link, OnReply
from tidegate.store.node import Find, Lane, Node
from tidegate.store.primary import FOLLOW_MS
from tidegate.store.redirected import Redirected
from tidegate.store.slots import (
    CACHED_KEY_LENGTH_MAX,
    SLOTS,
    Owned,
    Place,
    Refusal,
    cached_slot,
    is_refusal,
    key_of,
    key_slot,
    parse_refusal,
    parse_slots,
)
from tidegate.store.tasks import TaskSet

logger = structlog.get_logger()

_ANSWER_S: Final = 1.0
_TROUBLED_S: Final = 0.2
"""Query interval while a node is down: its replica takes over within seconds."""
_SOON_S: Final = 0.02
_REDIRECT_TARGET_S: Final = 10.0
"""How long a node without slots is kept after it had some, or after a redirect named it."""
_NO_CLUSTER: Final = "it is not a Redis Cluster: redis:// names one server, redis+sentinel:// sentinels"


class RedisCluster:
    """The slot table, and a `Node` for each primary.

    `make` creates a node that is not started; `on_added` runs before it starts, `on_removed` before it is closed,
    `on_moved` when slots changed owner.
    """

    def __init__(
        self,
        topology: Topology,
        address: Callable[[str, int], Address],
        make: Callable[[Find], Node],
        metadata_key: str,
    ) -> None:
        self.push: Link
        self.on_added: Callable[[Node], None]
        self.on_removed: Callable[[Node], None]
        self.on_moved: Callable[[], None]
        self._seeds = list(topology.hosts)
        self._address = address
        self._make = make
        self._metadata_slot = key_slot(metadata_key)
        self._nodes: dict[Place, Node] = {}
        nowhere = make(self.find_any)  # never started: refuses commands until the table is known
        self._slots: list[Node] = [nowhere] * SLOTS
        self._slot_maps: list[Owned] = []
        self._validated: Link | None = None
        self._next_node = -1
        self._refresh_due = asyncio.Event()
        self._closing = TaskSet()
        self._why = "no node answers"
        self.redirect_count: Counter[int] = Counter()
        """Commands refused by the first node they were sent to, by slot."""

    # -- owners of keys

    def node(self, key: str) -> Node:
        """The known primary of the key's slot."""
        return self._slots[cached_slot(key) if len(key) <= CACHED_KEY_LENGTH_MAX else key_slot(key)]

    @property
    def metadata_node(self) -> Node:
        """The primary that has the keys of `{cluster}`."""
        return self._slots[self._metadata_slot]

    @property
    def nodes(self) -> list[Node]:
        """Every primary, including those without slots so far."""
        return list(self._nodes.values())

    def written_since(self, time_s: float) -> list[Node]:
        """Every primary with slots, or that a redirect named since then: a command may have followed it by ASK."""
        owners = set(self._slots)
        return [node for node in self.nodes if node in owners or node.used_at >= time_s]

    def at(self, place: Place) -> Node:
        """The node at a place, created if unknown."""
        node = self._nodes.get(place)
        if node is None:
            address = self._address(*place)

            async def find() -> Address:
                return address

            node = self._nodes[place] = created = self._make(find)
            node.control.on_up.append(lambda _: created.ask_time())
            self.on_added(node)
            node.start()
            logger.info("redis_node_found", server=f"{place[0]}:{place[1]}")
        return node

    def redirect_target(self, place: Place) -> Node:
        """The node that a redirect names. It may have no slot yet, and is kept for `_REDIRECT_TARGET_S`."""
        node = self.at(place)
        node.used_at = asyncio.get_running_loop().time()
        return node

    def moved(self, slot: int, place: Place) -> None:
        """Apply a MOVED redirect to the slot table."""
        node, before = self.redirect_target(place), self._slots[slot]
        if before is not node:
            before.used_at = node.used_at  # answers may be on their way from there
            node.take_over(before)
            self._slots[slot] = node
            self._slot_maps = []  # forces the next table to be applied
            self.on_moved()
        self.refresh_soon()

    def refused(self, node: Node, text: str) -> Refusal:
        """Parse a refusal, and apply it if it is a MOVED."""
        address = node.control.address
        refusal = parse_refusal(text, address.host if address is not None else "")
        if refusal.kind == "MOVED" and refusal.place is not None:
            self.moved(refusal.slot, refusal.place)
        self.refresh_soon()
        return refusal

    # -- commands

    def validated(self, node: Node, key: str, reply: Any) -> Any:
        """The reply, unless another node has the key by now.

        A primary that was paused executes the commands in its sockets before it learns that it was replaced; their
        effects are lost.
        """
        if self.node(key) is node or isinstance(reply, Exception):
            return reply
        return StoreUnavailable("another node has the key by now")

    def send(self, lane: Lane, args: Sequence[Arg], on_reply: OnReply, *, asking: bool = True) -> None:
        """Send to the key's node and follow redirects; without `asking`, wait while its slot is migrating."""
        key = key_of(args)
        node = self.metadata_node if key is None else self.node(key)

        def answered(reply: Any) -> None:
            if key is not None and is_refusal(reply):
                Redirected(self, node, lane, key, args, on_reply, asking=asking).go_on(str(reply))
            else:
                on_reply(reply if key is None else self.validated(node, key, reply))

        node.lane(lane).send(args, answered)

    def call(self, lane: Lane, *args: Arg, asking: bool = True) -> asyncio.Future[Any]:
        """As `send`, with a future. It raises StoreUnavailable, or `hiredis.ReplyError` for an error reply."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answer(reply: Any) -> None:
            if future.done():
                return
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self.send(lane, args, answer, asking=asking)
        return future

    # -- the slot table

    async def find_any(self) -> Address:
        """A node to query and subscribe at, rotating per call: a connected one, else any that was ever named."""
        connected = [place for place, node in self._nodes.items() if node.control.connected]
        places = connected or list(dict.fromkeys([*self._nodes, *self._seeds]))
        self._next_node += 1
        return self._address(*places[self._next_node % len(places)])

    def refresh_soon(self) -> None:
        """Query the slot table soon."""
        self._refresh_due.set()

    async def first_refresh(self, timeout_s: float) -> None:
        """Wait until the slot table is known and complete. Raises StoreUnavailable, CannotStart."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if await self._observe():
                        break
                    await asyncio.sleep(_SOON_S)
        except TimeoutError:
            raise StoreUnavailable(f"Redis Cluster is not usable: {self._why}") from None
        missing = SLOTS - sum(run.last - run.first + 1 for run in self._slot_maps)
        if missing:
            raise StoreUnavailable(f"Redis Cluster is not usable: {missing} slots have no primary")

    async def follow(self) -> None:
        """Refresh the slot table forever."""
        while True:
            troubled = not all(node.up for node in self._nodes.values())
            try:
                async with asyncio.timeout(_TROUBLED_S if troubled else FOLLOW_MS / 1000):
                    await self._refresh_due.wait()
            except TimeoutError:
                pass
            self._refresh_due.clear()
            await self._observe()
            await asyncio.sleep(_SOON_S)

    async def ask_times(self) -> None:
        """Ask every node for its time."""
        for node in self.nodes:
            node.ask_time()

    async def close(self) -> None:
        """Close every node."""
        for node in self.nodes:
            await node.close()
        await self._closing.wait()

    async def _observe(self) -> bool:
        """Query a node that reports a healthy cluster, the last such one first. Returns whether there was one."""
        links = [self._validated, self.push, *(node.control for node in self._nodes.values())]
        for link in dict.fromkeys(link for link in links if link is not None and link.connected):
            owned = await self._reported_by(link)
            if owned:
                self._validated = link
                self._apply(owned)
                return True
        return False

    async def _reported_by(self, link: Link) -> list[Owned] | None:
        asked = link.address
        try:
            async with asyncio.timeout(_ANSWER_S):
                state, reply = await asyncio.gather(link.call("CLUSTER", "INFO"), link.call("CLUSTER", "SLOTS"))
        except (TimeoutError, StoreUnavailable) as error:
            self._why = str(error) or "no answer"
            return None
        except hiredis.ReplyError as error:
            if "cluster support disabled" in str(error):
                raise CannotStart(_NO_CLUSTER) from None
            self._why = str(error)
            return None
        text = state.decode() if isinstance(state, bytes) else str(state)
        if "cluster_state:ok" not in text or asked is None:
            self._why = "a node says that the cluster is not well (cluster_state)"
            return None
        return parse_slots(reply, asked.host)

    def _apply(self, owned: list[Owned]) -> None:
        if owned != self._slot_maps:
            slots = list(self._slots)
            for run in owned:
                slots[run.first : run.last + 1] = [self.at(run.place)] * (run.last - run.first + 1)
            self._slot_maps = owned
            if slots != self._slots:
                now = asyncio.get_running_loop().time()
                for node in set(self._slots) - set(slots):
                    node.used_at = now if node.up else float("-inf")  # answers may be on their way from there
                for before, node in set(zip(self._slots, slots, strict=True)):
                    if node is not before:
                        node.take_over(before)
                self._slots = slots
                self.on_moved()
        self._retire()

    def _retire(self) -> None:
        """Remove the nodes that have no slots any more, or never got any."""
        owners, now = set(self._slots), asyncio.get_running_loop().time()
        for place, node in list(self._nodes.items()):
            if node not in owners and now - node.used_at > _REDIRECT_TARGET_S:
                del self._nodes[place]
                logger.info("redis_node_left", server=f"{place[0]}:{place[1]}")
                self.on_removed(node)
                self._closing.start(node.close())
        listening = self.push.address
        stranger = listening is not None and (listening.host, listening.port) not in self._nodes
        if stranger and any(node.control.connected for node in self._nodes.values()):
            self.push.reconnect("it is not a primary of the cluster, or one by another name")
