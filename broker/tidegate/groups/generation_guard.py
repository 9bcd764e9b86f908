"""Prevents a generation from being used twice after Redis lost writes (spec R12).

A fail-over or a restart may lose Redis's last writes. Redis would then assign a lost generation again to other members,
and a removed member could continue with its old generation.

Every broker receives a message for every generation that opens, on any broker. It also records the generations that its
own requests wait for, before it answers them, and remembers the groups that changed last. On each new connection,
before every other command, it reports the remembered generations; a group that is behind gets a strictly higher
generation next, and its members are asked to rejoin. If nothing was lost, this changes nothing.

Members of groups with epochs get and give up partitions within an epoch. Their groups are behind too if the version is,
which every write increases; then all their members are fenced, give up their partitions and join again.

If all brokers are new, none remembers a generation: then all groups skip ahead (`bump_all_generations`), unless the
last brokers stopped in order and Redis has lost nothing since (`cluster/clean_shutdown`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from tidegate.cluster.clean_shutdown import begin_serving
from tidegate.errors import StoreUnavailable
from tidegate.groups.expire_and_retry import BrokerName, group_script_args, group_script_keys, nobody
from tidegate.groups.group_changes import subscribe_group_changes, unsubscribe_group_changes
from tidegate.groups.group_index import decode_name, group_of
from tidegate.groups.model import GroupState
from tidegate.groups.waiters import GroupStatus
from tidegate.store.calls import gather_readable, log_faulty
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.node import Node
from tidegate.store.outcome import Failure, Faulty, FaultyKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store

BUMP_GENERATION = Script("groups/bump_generation")

logger = structlog.get_logger()

GROUPS_MAX: Final = 10_000
"""Groups that a broker remembers: the most recently changed, because a fail-over loses the most recent writes."""
SKIP: Final = 1_000
"""Generations skipped when no broker remembers, and in groups with epochs, of which the newest writes may be unknown:
more than a group opens in the time that a fail-over loses."""
_RAISED_IN: Final = "groups_incarnation"
_STABLE: Final = GroupState.STABLE.encode()
_AGAIN_S: Final = 0.1
_FAULTY_AGAIN_S: Final = 10.0
"""Between two attempts with groups of which a key cannot be read, one at a time until one succeeds."""
_AT_ONCE: Final = 200


ReportedGeneration = tuple[int, bool, int]
"""A generation, whether its assignments were sent to members, and the newest version of the group in it."""
_NOTHING: Final = (-1, False, -1)


class GenerationGuard:
    """The newest generation of each recently changed group, and whether its assignments were sent to members."""

    def __init__(self, store: Store, broker: BrokerName = nobody) -> None:
        self._store = store
        self._broker = broker
        self._known: dict[bytes, ReportedGeneration] = {}
        self._refused: dict[bytes, ReportedGeneration] = {}
        self._faulty: dict[tuple[bytes, bool], ReportedGeneration] = {}
        """Groups with a key that cannot be read, and whether no broker remembers the generation."""
        self._timer: asyncio.TimerHandle | None = None
        self._faulty_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._at: list[Node] = []
        self.failover_epoch = -1
        """The failover epoch that the remembered generations were reported to."""

    async def start(self) -> None:
        """Subscribe to every shard's wake channel, and report the remembered generations on each new connection."""
        await subscribe_group_changes(self._store, self._on_group_change)
        self._at = self._nodes()
        self._store.follow_nodes(self._added, lambda _: None)
        self._store.on_moved.append(self._moved)

    def _nodes(self) -> list[Node]:
        store = self._store
        return [store.node(store.shard_keys(shard).groups) for shard in range(store.settings.coordinator_shards)]

    def _moved(self) -> None:
        """Slots moved: a redirect may connect a promoted replica before our table has all of its slots."""
        before, self._at = self._at, self._nodes()
        moved = {shard for shard, node in enumerate(self._at) if node is not before[shard] and node.control.connected}
        if moved and not self._closed:
            refs = [ref for ref in self._known if group_of(self._store, ref.decode()).shard_keys.shard in moved]
            self._bump({ref: self._known[ref] for ref in refs})

    def _added(self, node: Node) -> None:
        node.control.on_up.append(lambda _: self._announce(node))

    async def close(self) -> None:
        """Unsubscribe and drop what is remembered."""
        for timer in (self._timer, self._faulty_timer):
            if timer is not None:
                timer.cancel()
        self._closed = True
        unsubscribe_group_changes(self._store, self._on_group_change)

    def _on_group_change(self, payload: bytes | None) -> None:
        if payload is None:
            return
        ref, generation, state, version = payload.rsplit(b":", 3)
        self._note(ref, (int(generation), state == _STABLE, int(version)))

    def apply_status(self, keys: GroupKeys, status: GroupStatus) -> None:
        """Record the generation of a status that this broker is about to answer requests with.

        The broker that opened the generation may die before it publishes the message. Status and message arrive on two
        connections, so the older of the two may arrive last.
        """
        reported = status.generation, status.state == GroupState.STABLE, status.version
        self._note(keys.ref.encode(), reported, may_be_late=True)

    def apply_write(self, keys: GroupKeys, epoch: int, version: int) -> None:
        """Record what this broker wrote to a group with member epochs, before it answers the members."""
        self._note(keys.ref.encode(), (epoch, False, version), may_be_late=True)

    def _note(self, ref: bytes, reported: ReportedGeneration, may_be_late: bool = False) -> None:
        """A lower generation is late, or belongs to a group that was deleted and created again."""
        known = self._known.pop(ref, reported)
        if known[0] == reported[0]:
            reported = known[0], known[1] or reported[1], max(known[2], reported[2])
        elif may_be_late and known > reported:
            reported = known
        self._known[ref] = reported
        if len(self._known) > GROUPS_MAX:
            del self._known[next(iter(self._known))]

    def announce(self) -> None:
        """Bump the generations of groups that are behind; commands sent afterwards find them bumped."""
        self._refused.clear()
        self._bump(self._known)

    def _announce(self, node: Node) -> None:
        """Do the same for the groups of one node that reconnected or was replaced."""
        if not self._closed:
            sharded = self._store.is_sharded
            there = [ref for ref in self._known if not sharded or self._node_of(ref) is node]
            for ref in there:
                self._refused.pop(ref, None)
            self._bump({ref: self._known[ref] for ref in there})

    def _node_of(self, ref: bytes) -> Node:
        return self._store.node(group_of(self._store, ref.decode()).group)

    def _bump(self, groups: Mapping[bytes, ReportedGeneration]) -> None:
        for ref, reported in groups.items():
            self._bump_one(ref, reported)

    def _bump_one(self, ref: bytes, reported: ReportedGeneration, was_faulty: bool = False) -> None:
        keys = group_of(self._store, ref.decode())

        def answered(reply: Any) -> None:
            if not isinstance(reply, Failure):
                _log(keys, reply)
                refused, self._refused = self._refused, {}
                self._bump(refused)
                if was_faulty:
                    self._retry_all_faulty()
            elif isinstance(reply, Faulty) or reported == _NOTHING:  # no new connection reports what nobody remembers
                self._retry_later(ref, reported)
            elif self._node_of(ref).control.connected:  # the node accepts no writes yet from any broker
                self._refused[ref] = reported
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(_AGAIN_S, self._try_one)

        args = _args(self._store, keys, self._broker(), reported, self.failover_epoch)
        self._store.send_script(BUMP_GENERATION, _key_names(keys), args, answered)

    def _try_one(self) -> None:
        """Retry with one group while Redis refuses, instead of with all of them."""
        self._timer = None
        if self._refused:
            ref = next(iter(self._refused))
            self._bump_one(ref, self._refused.pop(ref))

    def _retry_later(self, ref: bytes, reported: ReportedGeneration) -> None:
        """A key of the group cannot be read, so it is bumped once somebody has moved that key away."""
        if len(self._faulty) < GROUPS_MAX:
            self._faulty[ref, reported == _NOTHING] = reported
        if self._faulty_timer is None and not self._closed:
            self._faulty_timer = asyncio.get_running_loop().call_later(_FAULTY_AGAIN_S, self._try_one_faulty)

    def _try_one_faulty(self) -> None:
        self._faulty_timer = None
        if self._faulty:
            ref, is_unknown = next(iter(self._faulty))
            self._bump_one(ref, self._faulty.pop((ref, is_unknown)), was_faulty=True)

    def _retry_all_faulty(self) -> None:
        faulty, self._faulty = self._faulty, {}
        for (ref, _), reported in faulty.items():
            self._bump_one(ref, reported)

    async def skip_lost_generations(self, failover_epoch: int) -> None:
        """Before this broker serves: if nobody handled the losses before this failover epoch, all groups skip ahead.

        Raises StoreUnavailable.
        """
        faulty: list[GroupKeys] = []
        raised = await bump_all_generations(self._store, failover_epoch, self._broker(), faulty.append)
        self.failover_epoch = failover_epoch  # by which a repeat finds that a group has skipped
        for keys in faulty:
            self._retry_later(keys.ref.encode(), _NOTHING)
        if raised:
            logger.warning("generations_bumped", groups=raised)

    def on_failover_handled(self, failover_epoch: int) -> None:
        """Report that the losses before this failover epoch are handled: brokers that start now need not skip ahead.

        The connection reported its generations when it opened, but its server may have been replaced as primary since.
        Has no effect before `skip_lost_generations`: a broker that starts remembers nothing.
        """
        if self.failover_epoch < 0:
            return
        if failover_epoch != self.failover_epoch:
            self.failover_epoch = failover_epoch
            self.announce()
        command: list[Arg] = ["HSET", self._store.cluster_keys.info, _RAISED_IN, failover_epoch]
        self._store.send(command, lambda _: None)


def _key_names(keys: GroupKeys) -> list[str]:
    return [*group_script_keys(keys), keys.consumers]


def _args(store: Store, keys: GroupKeys, broker: str, reported: ReportedGeneration, failover_epoch: int) -> list[Arg]:
    generation, is_assigned, version = reported
    return [*group_script_args(store, keys, broker), generation, int(is_assigned), SKIP, failover_epoch, version]


def _log(keys: GroupKeys, reply: Sequence[int]) -> None:
    if reply[1]:
        logger.warning("generation_bumped", group=keys.ref)


async def bump_all_generations(
    store: Store, failover_epoch: int, broker: str = "", on_faulty: Callable[[GroupKeys], None] = lambda _: None
) -> int:
    """Let every group skip ahead, unless nothing was lost or a broker handled this epoch. Returns the number of groups.

    For a starting broker, before it serves; brokers that run through a change of the epoch remember their generations.
    A group with a key that cannot be read stops no start: its floor is stored if its hash can be read, and `on_faulty`
    has the rest repeated. Raises StoreUnavailable, also if the names of a shard's groups cannot be read.
    """
    raised = 0
    if await begin_serving(store, failover_epoch):
        for shard in range(store.settings.coordinator_shards):
            names = await _groups_of(store, shard)
            for at in range(0, len(names), _AT_ONCE):
                groups = {keys.ref: keys for keys in (group_of(store, name) for name in names[at : at + _AT_ONCE])}
                calls = {ref: _bump_after_failover(store, keys, failover_epoch, broker) for ref, keys in groups.items()}
                bumped, faulty = await gather_readable(calls)
                raised += sum(bumped.values())
                log_faulty("generations", faulty)
                for ref in faulty:
                    on_faulty(groups[ref])
    await store.command("HSET", store.cluster_keys.info, _RAISED_IN, failover_epoch)
    return raised


async def _groups_of(store: Store, shard: int) -> list[str]:
    """The names of a shard's groups. Without them nobody can protect their generations, so the error names the key."""
    key = store.shard_keys(shard).groups
    try:
        return [decode_name(name) for name in await store.command("HKEYS", key)]
    except FaultyKeys as error:
        raise StoreUnavailable(
            f"the key {key} cannot be read, so lost generations may be used again: {error}"
        ) from None


async def _bump_after_failover(store: Store, keys: GroupKeys, failover_epoch: int, broker: str) -> int:
    args = _args(store, keys, broker, _NOTHING, failover_epoch)
    (raised,) = await store.run(BUMP_GENERATION, _key_names(keys), *args)
    _log(keys, (0, raised))
    return int(raised)
