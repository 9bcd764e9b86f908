"""What Redis may have lost of groups, and that no generation is handed out twice because of it (spec R12).

A fail-over or a restart may lose the end of what Redis was told. A generation that was handed out would then be
handed out again with other members, and a member that had been removed would go on as if nothing was.

Every broker hears every generation that opens, whichever broker opened it, sees those that its own requests wait for
before it answers them, and remembers the groups that changed last. On each new connection, ahead of every other
command, it says what it remembers; a group that is behind gets a strictly higher generation next, and its members are
asked to rejoin. Where nothing was lost this changes nothing.

Where every broker is new too nobody remembers: then all groups skip ahead (`raise_all`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog

from tidegate.groups.expiry import group_of
from tidegate.groups.model import GroupState
from tidegate.groups.settled import BrokerName, group_script_args, group_script_keys, nobody
from tidegate.groups.waiters import Look
from tidegate.groups.wakes import forget_groups, hear_groups
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.node import Node
from tidegate.store.scripts import Script
from tidegate.store.store import Store

RAISE_GENERATION = Script("groups/raise_generation")

logger = structlog.get_logger()

GROUPS_MAX: Final = 10_000
"""Groups that a broker remembers: those that changed last, for what is lost is the end."""
SKIP: Final = 1_000
"""Generations skipped where nobody remembers: more than a group opens in what a fail-over loses."""
_RAISED_IN: Final = "groups_incarnation"
_STABLE: Final = GroupState.STABLE.encode()
_AGAIN_S: Final = 0.1
_AT_ONCE: Final = 200


Heard = tuple[int, bool]
"""A generation, and whether its assignments were handed out."""
_NOTHING: Final = (-1, False)


class HandedOut:
    """The newest generation of each group that changed lately, and whether its assignments were handed out."""

    def __init__(self, store: Store, broker: BrokerName = nobody) -> None:
        self._store = store
        self._broker = broker
        self._known: dict[bytes, Heard] = {}
        self._refused: dict[bytes, Heard] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._at: list[Node] = []
        self.incarnation = -1
        """What was remembered is told to this one."""

    async def start(self) -> None:
        """Hear every shard's wake channel, and tell what was heard on each new connection."""
        await hear_groups(self._store, self._heard)
        self._at = self._nodes()
        self._store.follow_nodes(self._added, lambda _: None)
        self._store.on_moved.append(self._moved)

    def _nodes(self) -> list[Node]:
        """Where each shard is."""
        store = self._store
        return [store.node(store.shard_keys(shard).groups) for shard in range(store.settings.coordinator_shards)]

    def _moved(self) -> None:
        """A replica that took over may be connected, by a redirect, before it has all of its slots in our table."""
        before, self._at = self._at, self._nodes()
        moved = {shard for shard, node in enumerate(self._at) if node is not before[shard] and node.control.connected}
        if moved and not self._closed:
            refs = [ref for ref in self._known if group_of(self._store, ref.decode()).shard_keys.shard in moved]
            self._raise({ref: self._known[ref] for ref in refs})

    def _added(self, node: Node) -> None:
        node.control.on_up.append(lambda _: self._tell(node))

    async def close(self) -> None:
        """Forget."""
        if self._timer is not None:
            self._timer.cancel()
        self._closed = True
        forget_groups(self._store, self._heard)

    def _heard(self, payload: bytes | None) -> None:
        if payload is None:
            return
        ref, generation, state, _ = payload.rsplit(b":", 3)
        heard, known = (int(generation), state == _STABLE), self._known.get(ref, _NOTHING)
        # A lower one is of a group that was deleted and made again.
        self._note(ref, max(heard, known) if heard[0] == known[0] else heard)

    def saw(self, keys: GroupKeys, look: Look) -> None:
        """A broker that dies may never send the message: whoever answers by what it saw knows at once.

        What was seen and what is heard come on two connections, so the older of the two may come last.
        """
        ref = keys.ref.encode()
        seen = look.generation, look.state == GroupState.STABLE
        self._note(ref, max(seen, self._known.get(ref, _NOTHING)))

    def _note(self, ref: bytes, heard: Heard) -> None:
        self._known.pop(ref, None)
        self._known[ref] = heard
        if len(self._known) > GROUPS_MAX:
            del self._known[next(iter(self._known))]

    def tell(self) -> None:
        """Raise the groups that are behind what was heard. What is sent after it finds them raised."""
        self._refused.clear()
        self._raise(self._known)

    def _tell(self, node: Node) -> None:
        """The same for the groups of a node that is back, or new in another's place."""
        if not self._closed:
            whole = self._store.cluster is None
            there = [ref for ref in self._known if whole or self._node_of(ref) is node]
            for ref in there:
                self._refused.pop(ref, None)
            self._raise({ref: self._known[ref] for ref in there})

    def _node_of(self, ref: bytes) -> Node:
        return self._store.node(group_of(self._store, ref.decode()).group)

    def _raise(self, groups: Mapping[bytes, Heard]) -> None:
        for ref, heard in groups.items():
            self._raise_one(ref, heard)

    def _raise_one(self, ref: bytes, heard: Heard) -> None:
        keys = group_of(self._store, ref.decode())

        def answered(reply: Any) -> None:
            if not isinstance(reply, Exception):
                _log(keys, reply)
                refused, self._refused = self._refused, {}
                self._raise(refused)
            elif self._node_of(ref).control.connected:  # it cannot write yet, so nobody else can
                self._refused[ref] = heard
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(_AGAIN_S, self._try_one)

        args = _args(self._store, keys, self._broker(), *heard)
        self._store.send_script(RAISE_GENERATION, group_script_keys(keys), args, answered)

    def _try_one(self) -> None:
        """Redis may refuse for long: one group asks for all."""
        self._timer = None
        if self._refused:
            ref = next(iter(self._refused))
            self._raise_one(ref, self._refused.pop(ref))

    def known_again(self, incarnation: int) -> None:
        """What could be lost before this incarnation is dealt with: brokers that start now need not skip ahead.

        A connection was told as it began; but its server may have become another primary since.
        """
        if incarnation != self.incarnation:
            self.incarnation = incarnation
            self.tell()
        command: list[Arg] = ["HSET", self._store.cluster_keys.info, _RAISED_IN, incarnation]
        self._store.send(command, lambda _: None)


def _args(
    store: Store, keys: GroupKeys, broker: str, generation: int, assigned: bool, incarnation: int = 0
) -> list[Arg]:
    return [*group_script_args(store, keys, broker), generation, int(assigned), SKIP, incarnation]


def _log(keys: GroupKeys, reply: Sequence[int]) -> None:
    if reply[1]:
        logger.warning("generation_raised", group=keys.ref)


async def raise_all(store: Store, incarnation: int, broker: str = "") -> int:
    """Have every group skip ahead, unless a broker dealt with this incarnation already. Returns how many did.

    For a broker that starts, before it serves: those that live through a change of incarnation remember.
    Raises StoreUnavailable.
    """
    info = store.cluster_keys.info
    dealt_with = await store.command("HGET", info, _RAISED_IN)
    raised = 0
    if dealt_with is not None and int(dealt_with) != incarnation:
        for shard in range(store.settings.coordinator_shards):
            names = await store.command("HKEYS", store.shard_keys(shard).groups)
            for at in range(0, len(names), _AT_ONCE):
                groups = [group_of(store, name.decode()) for name in names[at : at + _AT_ONCE]]
                calls = (_skip(store, keys, incarnation, broker) for keys in groups)
                raised += sum(await asyncio.gather(*calls))
    await store.command("HSET", info, _RAISED_IN, incarnation)
    return raised


async def _skip(store: Store, keys: GroupKeys, incarnation: int, broker: str) -> int:
    args = _args(store, keys, broker, -1, False, incarnation)
    (raised,) = await store.run(RAISE_GENERATION, group_script_keys(keys), *args)
    _log(keys, (0, raised))
    return int(raised)
