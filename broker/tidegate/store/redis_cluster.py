"""The primaries of a Redis Cluster: who has which slot, followed each second and at the first sign that it changed.

One node is asked (`CLUSTER SLOTS`), and believed while it calls the cluster well: one that is cut off from the others
does not, and would name itself for what is another's by now. Slots that nobody is named for keep their last owner.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import hiredis
import structlog

from tidegate.errors import CannotStart, StoreUnavailable
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
"""Between questions while a node is away: its replica takes over within seconds."""
_SOON_S: Final = 0.02
_REDIRECT_TARGET_S: Final = 10.0
"""How long a node without slots is kept after it had some, or a redirect named it."""
_NO_CLUSTER: Final = "it is no Redis Cluster: redis:// names one server, redis+sentinel:// sentinels"


class RedisCluster:
    """A table of slots, and a `Node` for each primary that has some.

    `make` makes a node that is not started; `on_added` hears of it before it is, `on_removed` before it is closed,
    `on_moved` when slots have another owner. `observe_wait(seconds)` hears how long a redirected command took.
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
        self.observe_wait: Callable[[float], None]
        self._seeds = list(topology.hosts)
        self._address = address
        self._make = make
        self._metadata_slot = key_slot(metadata_key)
        self._nodes: dict[Place, Node] = {}
        nowhere = make(self.find_any)  # never started: what is sent before the table is known is refused
        self._slots: list[Node] = [nowhere] * SLOTS
        self._slot_maps: list[Owned] = []
        self._validated: Link | None = None
        self._turn = -1
        self._hurried = asyncio.Event()
        self._closing = TaskSet()
        self._why = "no node answers"
        self.redirect_count: Counter[int] = Counter()
        """How many commands were not run where they were sent first, by slot."""

    # -- where keys are

    def node(self, key: str) -> Node:
        """The primary that has a key's slot, as far as it is known."""
        return self._slots[key_slot(key) if len(key) <= CACHED_KEY_LENGTH_MAX else key_slot.__wrapped__(key)]

    @property
    def metadata_node(self) -> Node:
        """The primary that has the keys of `{cluster}`."""
        return self._slots[self._metadata_slot]

    @property
    def nodes(self) -> list[Node]:
        """Every primary, those that are just given their first slots too."""
        return list(self._nodes.values())

    def at(self, place: Place) -> Node:
        """The node at a place, also one that was not known."""
        node = self._nodes.get(place)
        if node is None:
            address = self._address(*place)

            async def find() -> Address:
                return address

            node = self._nodes[place] = self._make(find)
            self.on_added(node)
            node.start()
            logger.info("redis_node_found", server=f"{place[0]}:{place[1]}")
        return node

    def redirect_target(self, place: Place) -> Node:
        """The node that a redirect names. It may have no slot yet, and is kept for a while all the same."""
        node = self.at(place)
        node.used_at = asyncio.get_running_loop().time()
        return node

    def moved(self, slot: int, place: Place) -> None:
        """A redirect said who has a slot."""
        node, before = self.redirect_target(place), self._slots[slot]
        if before is not node:
            before.used_at = node.used_at  # answers may be on their way from there
            self._slots[slot] = node
            self._slot_maps = []  # the whole table counts anew when it is told next
            self.on_moved()
        self.hurry()

    def refused(self, node: Node, text: str) -> Refusal:
        """Take what a node said instead of running a command."""
        address = node.control.address
        refusal = parse_refusal(text, address.host if address is not None else "")
        if refusal.kind == "MOVED" and refusal.place is not None:
            self.moved(refusal.slot, refusal.place)
        self.hurry()
        return refusal

    # -- commands

    def validated(self, node: Node, key: str, reply: Any) -> Any:
        """A node's reply, unless another one has the key by now.

        A primary that stood still takes what waits in its sockets before it learns that it was replaced: that is lost.
        """
        if self.node(key) is node or isinstance(reply, Exception):
            return reply
        return StoreUnavailable("another node has the key by now")

    def send(self, lane: Lane, args: Sequence[Arg], on_reply: OnReply, *, asking: bool = True) -> None:
        """Send where the command's key is, and on where redirects say; without `asking` none to a slot on its way."""
        key = key_of(args)
        node = self.metadata_node if key is None else self.node(key)

        def answered(reply: Any) -> None:
            if key is not None and is_refusal(reply):
                Redirected(self, node, lane, key, args, on_reply, asking=asking).go_on(str(reply))
            else:
                on_reply(reply if key is None else self.validated(node, key, reply))

        node.lane(lane).send(args, answered)

    def call(self, lane: Lane, *args: Arg, asking: bool = True) -> asyncio.Future[Any]:
        """As `send`, as a future. It raises StoreUnavailable, or `hiredis.ReplyError` for an error reply."""
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

    # -- the table

    async def find_any(self) -> Address:
        """A node to ask and to listen at, another one at each call: one that is up, else any that was ever named."""
        connected = [place for place, node in self._nodes.items() if node.control.connected]
        places = connected or list(dict.fromkeys([*self._nodes, *self._seeds]))
        self._turn += 1
        return self._address(*places[self._turn % len(places)])

    def hurry(self) -> None:
        """Something changed: ask soon."""
        self._hurried.set()

    async def first_refresh(self, timeout_s: float) -> None:
        """Wait until the table is known and whole. Raises StoreUnavailable, CannotStart."""
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
        """Ask for ever."""
        while True:
            troubled = not all(node.up for node in self._nodes.values())
            try:
                async with asyncio.timeout(_TROUBLED_S if troubled else FOLLOW_MS / 1000):
                    await self._hurried.wait()
            except TimeoutError:
                pass
            self._hurried.clear()
            await self._observe()
            await asyncio.sleep(_SOON_S)

    async def close(self) -> None:
        """Close every node."""
        for node in self.nodes:
            await node.close()
        await self._closing.wait()

    async def _observe(self) -> bool:
        """Ask one that answers and is well, the last such one first. Whether there was one."""
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
                self._slots = slots
                self.on_moved()
        self._retire()

    def _retire(self) -> None:
        """Leave the nodes that have no slots any more, or never got any."""
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
            self.push.reconnect("it is no primary of the cluster, or one by another name")
